"""A cell that the package does not have, in one file: an LSTM whose gates see c (Gers and Schmidhuber, 2000).

Of an LSTM's equations, ``i_t = sigmoid(I_t + w_ci c_{t-1})``, ``f_t = sigmoid(F_t + w_cf c_{t-1})`` and ``o_t =
sigmoid(O_t + w_co c_t)`` differ, with vectors w_ci, w_cf and w_co, one number for each unit.
"""

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.pointwise import sigmoid, tanh


def step(preacts, before):
    """Take a step; keep i, f, g, o, tanh(c_t), and the vectors."""
    (pre_i, pre_f, g, pre_o, w_ci, w_cf, w_co), (_, c) = preacts, before
    i, f = sigmoid(pre_i + w_ci * c), sigmoid(pre_f + w_cf * c)
    c = f * c + i * g
    t, o = tanh(c), sigmoid(pre_o + w_co * c)
    return (o * t, c), (i, f, g, o, t, w_ci, w_cf, w_co)


def back(grads, before, after, kept):
    """Go a step back."""
    (grad, grad_c), (_, c), (_, c_after), (i, f, g, o, t, w_ci, w_cf, w_co) = grads, before, after, kept
    at_o, at_t = grad * t * (o - o * o), grad * o
    grad_c = grad_c + (at_t - at_t * t * t) + at_o * w_co
    at_i, at_f, at_g = grad_c * g * (i - i * i), grad_c * c * (f - f * f), grad_c * i
    grad_preacts = at_i, at_f, at_g - at_g * g * g, at_o
    return (*grad_preacts, at_i * c, at_f * c, at_o * c_after), (grad_c * f + at_i * w_ci + at_f * w_cf,)


VECTORS = "weight_ci", "weight_cf", "weight_co"


def identity(x):
    """Leave a preactivation as it is."""
    return x


class PeepholeLSTM(Recurrent):
    """Layers of the cell, and a linear layer on the last state."""

    activations = identity, identity, tanh, identity
    cell = Cell(step, back, gates=4, states=2, kept=8, activations=activations, vectors=VECTORS)
