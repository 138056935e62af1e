"""The gated recurrent unit of Equation 10: its computations in NumPy, and the model made of them."""

import numpy as np
from scipy.special import expit

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.chains.structured import StructuredChain


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run a GRU over time (Equation 10, with the names of Appendix E), and keep its gates.

    ``r_t = sigmoid(W_ir x_t + b_ir + W_hr h_{t-1} + b_hr)``, ``z_t`` likewise, ``M_t = W_hn h_{t-1} + b_hn``, ``n_t =
    tanh(W_in x_t + b_in + r_t M_t)``, ``h_t = (1 - z_t) n_t + z_t h_{t-1}``.

    `x` is [shape=(T, B, I)], `h0` [shape=(B, H)]; weights [shape=(3 H, I)] and [shape=(3 H, H)] and biases [shape=(3
    H,)] have rows of r, then z, then n, as in PyTorch. Returns the hidden states [shape=(T + 1, B, H)], and r, z, n and
    M [shape=(4, T, B, H)], which are all that Appendix E recomputes for its Jacobians.
    """
    steps, batch, inputs = x.shape
    size = weight_hh.shape[1]
    hidden = np.empty((steps + 1, batch, size), x.dtype)
    gates = np.empty((4, steps, batch, size), x.dtype)
    hidden[0] = h0
    r, z, n, m = gates
    # No input product waits for another: all of them are one matrix product, before the time loop.
    products = (x.reshape(steps * batch, inputs) @ weight_ih.T + bias_ih).reshape(steps, batch, 3 * size)
    for t in range(steps):
        x_r, x_z, x_n = np.split(products[t], 3, axis=1)
        h_r, h_z, m[t] = np.split(hidden[t] @ weight_hh.T + bias_hh, 3, axis=1)
        r[t] = expit(x_r + h_r)
        z[t] = expit(x_z + h_z)
        n[t] = np.tanh(x_n + r[t] * m[t])
        hidden[t + 1] = (1 - z[t]) * n[t] + z[t] * hidden[t]
    return hidden, gates


def slopes(hidden, gates):
    """Compute how far each h_t moves with the pre-activations of its gates, from j2 ... j10 of Appendix E.

    Takes what `forward` returns; returns the diagonal derivatives of h_t by N_t, R_t, Z_t and M_t, four arrays
    [shape=(T, B, H)]. Here as everywhere, N comes first and M last: inputs are added to the first three, states to the
    last three.
    """
    r, z, n, m = gates
    j2, j3 = r * (1 - r), m  # d r / d R, d N / d r
    j5, j6 = r, 1 - n * n  # d N / d M, d n / d N
    j7 = 1 - z  # d h / d n
    j9, j10 = z * (1 - z), hidden[:-1] - n  # d z / d Z, d h / d z
    return j6 * j7, j2 * j3 * j6 * j7, j9 * j10, j5 * j6 * j7


def chain(weight_hh, hidden, gates):
    """Take Equation 11's ``(d h_{t+1} / d h_t)^T`` for a chain of three weights and a carry, J11 = diag(z).

    Its weights, transposed, are J1, J8 and J4 of Appendix E.
    """
    _, *by_states = slopes(hidden, gates)
    size = weight_hh.shape[1]
    return StructuredChain.made(weight_hh.reshape(3, size, size), np.stack(by_states), gates[1])


def gate_gradients(chain, hidden, gates, grad_hidden):
    """Turn gradients at the hidden states [shape=(T + 1, B, H)] into those at R_t, Z_t, N_t and M_t.

    Returns two lists of arrays [shape=(T, B, H)]: at what the input's products were added to (R, Z, N), and at what the
    hidden state's were (R, Z, M).
    """
    grad = grad_hidden[1:]
    at_r, at_z, at_m = chain.slopes * grad
    at_n = grad * slopes(hidden, gates)[0]
    return [at_r, at_z, at_n], [at_r, at_z, at_m]


class GRU(Recurrent):
    """The paper's second classifier: gated recurrent layers and a linear layer on the last state (Section 4.2).

    Parameters
    ----------
    input_size, hidden_size, num_classes, num_layers, rng, dtype
        As for `RNN`.

    Attributes
    ----------
    params : dict of str to np.ndarray
        With PyTorch's names, layout and order of gates (r, z, n), for each layer l: ``weight_ih_l<l>``
        [shape=(3 H, I)] (l > 0: [shape=(3 H, H)]), ``weight_hh_l<l>`` [shape=(3 H, H)], ``bias_ih_l<l>`` and
        ``bias_hh_l<l>`` [shape=(3 H,)]; then ``fc.weight`` [shape=(C, H)], ``fc.bias`` [shape=(C,)].

    Examples
    --------
    >>> import numpy as np
    >>> model = GRU(input_size=38, hidden_size=20, num_classes=11)
    >>> activations = model.forward(np.ones((7, 2, 38), np.float32), backend="numpy")
    >>> activations.logits.shape, activations.hidden.shape
    ((2, 11), (1, 8, 2, 20))
    >>> r, z, n, m = activations.gates[0]
    >>> r.shape
    (7, 2, 20)
    """

    cell_module, gate_blocks, kept_gates = __name__, 3, 4
