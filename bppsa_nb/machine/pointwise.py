"""Functions of single numbers that a cell's equations are written in: of arrays in NumPy, of scalars where compiled.

`bppsa_nb.machine.elementary` has what they are in compiled code, `bppsa_nb.cells.cell_cuda` what they are on a GPU.
"""

from types import CellType, FunctionType

import numpy as np
from scipy.special import expit


def tanh(x):
    """Return the hyperbolic tangent."""
    return np.tanh(x)


def sigmoid(x):
    """Return ``1 / (1 + exp(-x))``."""
    return expit(x)


def relu(x):
    """Return x where it is positive, and otherwise 0."""
    return np.maximum(x, 0)


def where(condition, x, y):
    """Return x where a condition holds, and otherwise y."""
    return np.where(condition, x, y)


def constant(value, like):
    """Return a number in the precision of others: in compiled code, ``1 - z`` has 64 bits whatever z has."""
    return like.dtype.type(value)


def with_own(function, own):
    """Return a function with others in the place of what it calls, where `own` maps these to others."""
    own = {id(called): form for called, form in own.items()}
    swap = lambda value: own.get(id(value), value)  # noqa: E731
    names = {name: swap(value) for name, value in function.__globals__.items()}
    cells = function.__closure__ and tuple(CellType(swap(cell.cell_contents)) for cell in function.__closure__)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
