"""A cell without weights of h, in one file: a minimal GRU (Feng et al., 2024).

``z_t = sigmoid(W_z x_t + b_z)``, ``h_t = (1 - z_t) h_{t-1} + z_t (W_n x_t + b_n)``.
"""

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.pointwise import sigmoid


def step(preacts, before):
    """Take a step; keep z and n."""
    (Z, n), (h,) = preacts, before
    z = sigmoid(Z)
    return (h + z * (n - h),), (z, n)


def back(grads, before, after, kept):
    """Go a step back."""
    (grad,), (h,), (z, n) = grads, before, kept
    return (grad * (n - h) * (z - z * z), grad * z), (grad - grad * z,)


class MinimalGRU(Recurrent):
    """Layers of the cell, and a linear layer on the last state."""

    cell = Cell(step, back, gates=2, kept=2, carry=True, elementwise=True)
