"""The gated recurrent unit of Equation 10: its computations in NumPy, and the model made of them."""

import numpy as np
from scipy.special import expit

from bppsa_nb.cells.recurrent import Recurrent


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run a GRU over time (Equation 10, with the names of Appendix E), and keep its gates.

    ``r_t = sigmoid(W_ir x_t + b_ir + W_hr h_{t-1} + b_hr)``, ``z_t`` likewise, ``M_t = W_hn h_{t-1} + b_hn``,
    ``n_t = tanh(W_in x_t + b_in + r_t M_t)``, ``h_t = (1 - z_t) n_t + z_t h_{t-1}``.

    Parameters
    ----------
    x : np.ndarray [shape=(T, B, I)]
        Inputs, time first.
    h0 : np.ndarray [shape=(B, H)]
        Initial hidden state.
    weight_ih : np.ndarray [shape=(3 H, I)]
        Rows of r, then z, then n, as in PyTorch.
    weight_hh : np.ndarray [shape=(3 H, H)]
    bias_ih, bias_hh : np.ndarray [shape=(3 H,)]

    Returns
    -------
    hidden : np.ndarray [shape=(T + 1, B, H)]
        Hidden states, the initial one first.
    gates : np.ndarray [shape=(4, T, B, H)]
        r, z, n and M: all that Appendix E recomputes for its Jacobians.
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
    """Compute how far each h_t moves with the sums that its gates see, from j2 ... j10 of Appendix E.

    Parameters
    ----------
    hidden : np.ndarray [shape=(T + 1, B, H)]
    gates : np.ndarray [shape=(4, T, B, H)]

    Returns
    -------
    to_r, to_z, to_n, to_m : np.ndarray [shape=(T, B, H)]
        Derivatives of h_t by R_t, Z_t, N_t and M_t, all diagonal.
    """
    r, z, n, m = gates
    j2, j3 = r * (1 - r), m  # d r / d R, d N / d r
    j5, j6 = r, 1 - n * n  # d N / d M, d n / d N
    j7 = 1 - z  # d h / d n
    j9, j10 = z * (1 - z), hidden[:-1] - n  # d z / d Z, d h / d z
    return j2 * j3 * j6 * j7, j9 * j10, j6 * j7, j5 * j6 * j7


def jacobians_T(weight_hh, hidden, gates):
    """Assemble ``(d h_{t+1} / d h_t)^T`` for every step and sample (Equation 11).

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(3 H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    gates : np.ndarray [shape=(4, T, B, H)]

    Returns
    -------
    np.ndarray [shape=(T, B, H, H)]
        Ready for `bppsa_nb.backprop`.
    """
    J1, J8, J4 = (weight.T for weight in np.split(weight_hh, 3))
    to_r, to_z, _, to_m = (slope[:, :, None, :] for slope in slopes(hidden, gates))
    assembled = J1 * to_r + J4 * to_m + J8 * to_z
    J11 = gates[1]  # z, on the diagonal
    np.einsum("tbii->tbi", assembled)[...] += J11
    return assembled


def sweep(weight_hh, hidden, gates, grad_output, local_grads=None):
    """Back-propagate through time, one step after the other, without storing a Jacobian (Equation 3).

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(3 H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    gates : np.ndarray [shape=(4, T, B, H)]
    grad_output : np.ndarray [shape=(B, H)]
        Gradient of the loss at the last hidden state.
    local_grads : np.ndarray [shape=(T + 1, B, H)], optional
        Loss terms that enter at every hidden state.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
        Gradients at all hidden states, the initial one first.
    """
    to_r, to_z, _, to_m = slopes(hidden, gates)
    to_sums = np.concatenate([to_r, to_z, to_m], axis=2)
    z = gates[1]
    grad_hidden = np.zeros_like(hidden) if local_grads is None else local_grads.copy()
    grad_hidden[-1] += grad_output
    for t in reversed(range(len(z))):
        grad = grad_hidden[t + 1]
        grad_hidden[t] += z[t] * grad + (np.tile(grad, 3) * to_sums[t]) @ weight_hh
    return grad_hidden


def gate_gradients(hidden, gates, grad_hidden):
    """Turn gradients at the hidden states into gradients at the sums R_t, Z_t, N_t and M_t.

    Parameters
    ----------
    hidden, grad_hidden : np.ndarray [shape=(T + 1, B, H)]
    gates : np.ndarray [shape=(4, T, B, H)]

    Returns
    -------
    from_x, from_h : np.ndarray [shape=(T, B, 3 H)]
        At what the input's products were added to (R, Z, N), and at what the hidden state's were (R, Z, M).
    """
    to_r, to_z, to_n, to_m = slopes(hidden, gates)
    grad = np.tile(grad_hidden[1:], 3)
    return grad * np.concatenate([to_r, to_z, to_n], axis=2), grad * np.concatenate([to_r, to_z, to_m], axis=2)


class GRU(Recurrent):
    """The paper's second classifier: gated recurrent layers and a linear layer on the last state (Section 4.2).

    Parameters
    ----------
    input_size, hidden_size, num_classes : int
        I, H and C, at least one each.
    num_layers : int
        How many layers are stacked; each reads the hidden states of the one below.
    rng : int or np.random.Generator
        Where the initial parameters come from: uniform between -1 / sqrt(H) and 1 / sqrt(H), as in PyTorch.
    dtype : np.dtype
        float32 or float64, for parameters, inputs and gradients alike.

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

    _cell, _rows = "gru", 3
