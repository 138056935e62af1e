"""The gated recurrent unit of Equation 10: its equations, and the model made of them."""

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.pointwise import sigmoid, tanh


def step(preacts, before):
    """Take a step (Equation 10, with the names of Appendix E); keep r, z, n and M.

    ``r_t = sigmoid(R_t)`` with ``R_t = W_ir x_t + b_ir + W_hr h_{t-1} + b_hr``, ``z_t`` likewise, ``M_t = W_hn h_{t-1}
    + b_hn``, ``N_t = W_in x_t + b_in``, ``n_t = tanh(N_t + r_t M_t)``, ``h_t = (1 - z_t) n_t + z_t h_{t-1}``.
    """
    (N, r, z, M), (h,) = preacts, before
    n = tanh(N + r * M)
    return (n + z * (h - n),), (r, z, n, M)


def back(grads, before, after, kept):
    """Go a step back, by the derivatives j2 ... j10 of Appendix E; J11 = z goes past the preactivations."""
    (grad,), (h,), (r, z, n, M) = grads, before, kept
    at_n = grad - grad * z  # j7 = 1 - z
    at_N = at_n - at_n * n * n  # j6 = 1 - n²
    at_M = at_N * r  # j5 = r
    at_R = (at_M - at_M * r) * M  # j2 j3 = r (1 - r) M
    at_Z = at_n * z * (h - n)  # j9 j10 = z (1 - z) (h - n)
    return (at_N, at_R, at_Z, at_M), (grad * z,)


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

    cell = Cell(step, back, gates=3, split=1, kept=4, carry=True, activations=(sigmoid, sigmoid), bounded=True)
