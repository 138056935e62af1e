"""A cell that the package does not have, in one file: a minimal gated unit, with a single gate f (Zhou et al., 2016).

``f_t = sigmoid(W_if x_t + b_if + W_hf h_{t-1} + b_hf)``, ``M_t = W_hn h_{t-1} + b_hn``,
``n_t = tanh(W_in x_t + b_in + f_t M_t)``, ``h_t = (1 - f_t) n_t + f_t h_{t-1}``.
"""

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.pointwise import sigmoid, tanh


def step(preacts, before):
    """Take a step; keep f, n and M."""
    (N, f, M), (h,) = preacts, before
    n = tanh(N + f * M)
    return (n + f * (h - n),), (f, n, M)


def back(grads, before, after, kept):
    """Go a step back."""
    (grad,), (h,), (f, n, M) = grads, before, kept
    at_n = grad - grad * f
    at_N = at_n - at_n * n * n
    at_f = grad * (h - n) + at_N * M
    return (at_N, at_f * (f - f * f), at_N * f), (grad * f,)


class MinimalGatedUnit(Recurrent):
    """Layers of the cell, and a linear layer on the last state."""

    cell = Cell(step, back, gates=2, split=1, kept=3, carry=True, activations=(sigmoid,), bounded=True)
