"""Long short-term memory: its equations, and the model made of them."""

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.pointwise import sigmoid, tanh


def step(preacts, before):
    """Take a step, with two states h and c; keep i, f, g, o and tanh(c_t).

    ``i_t = sigmoid(I_t)`` with ``I_t = W_ii x_t + b_ii + W_hi h_{t-1} + b_hi``, ``f_t`` and ``o_t`` likewise, ``g_t =
    tanh(G_t)``, ``c_t = f_t c_{t-1} + i_t g_t``, ``h_t = o_t tanh(c_t)``.
    """
    (i, f, g, o), (_, c) = preacts, before
    c = f * c + i * g
    t = tanh(c)
    return (o * t, c), (i, f, g, o, t)


def back(grads, before, after, kept):
    """Go a step back: what reaches c_t from h_t joins what came along c; only that goes past the preactivations."""
    (grad, grad_c), (_, c), (i, f, g, o, t) = grads, before, kept
    at_t = grad * o
    grad_c = grad_c + (at_t - at_t * t * t)
    at_i, at_o = grad_c * g * i, at_t * t
    at_g, at_f = grad_c * i, grad_c * c * f
    return (at_i - at_i * i, at_f - at_f * f, at_g - at_g * g * g, at_o - at_o * o), (grad_c * f,)


class LSTM(Recurrent):
    """Layers of long short-term memory, and a linear layer on the last hidden state.

    Parameters
    ----------
    input_size, hidden_size, num_classes, num_layers, rng, dtype
        As for `RNN`.

    Attributes
    ----------
    params : dict of str to np.ndarray
        With PyTorch's names, layout and order of gates (i, f, g, o), for each layer l: ``weight_ih_l<l>``
        [shape=(4 H, I)] (l > 0: [shape=(4 H, H)]), ``weight_hh_l<l>`` [shape=(4 H, H)], ``bias_ih_l<l>`` and
        ``bias_hh_l<l>`` [shape=(4 H,)]; then ``fc.weight`` [shape=(C, H)], ``fc.bias`` [shape=(C,)].

    Examples
    --------
    >>> import numpy as np
    >>> model = LSTM(input_size=38, hidden_size=20, num_classes=11)
    >>> activations = model.forward(np.ones((7, 2, 38), np.float32), backend="numpy")
    >>> activations.logits.shape, activations.hidden.shape
    ((2, 11), (1, 8, 2, 20))
    >>> h, c = activations.states[0]
    >>> c.shape
    (8, 2, 20)
    """

    cell = Cell(step, back, gates=4, states=2, kept=5, activations=(sigmoid, sigmoid, tanh, sigmoid))
