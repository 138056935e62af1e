"""The scan, written once, over any operand that knows ⋄ (see :mod:`bppsa_nb.scan.operator`)."""

from functools import partial

import numpy as np

from bppsa_nb.scan import blelloch, chunked, hillis_steele, linear, truncated
from bppsa_nb.scan.operator import IDENTITY

__all__ = ["scan", "steps"]


def steps(a: list, method: str, levels: int | None = None, length: int | None = None):
    """Run a scan in place, pausing after each level: the array can be looked at between two levels.

    Parameters
    ----------
    a : list of operands [length n + 1]
        Equation 5's array: the gradient at x_n, then the transposed Jacobians from the last to the first. At the end it
        is Equation 4's, with the product of all appended: ``[I, a0, a0 ⋄ a1, ..., a0 ⋄ ... ⋄ an]``.
    method : {"linear", "blelloch", "truncated", "chunked", "hillis_steele"}
    levels : int, optional
        The k of ``"truncated"``.
    length : int, optional
        Links of a chunk of ``"chunked"``.

    Returns an iterator of `Level`. Raises TypeError or ValueError for an unknown method, ``"truncated"`` without
    ``levels >= 0``, ``"chunked"`` without ``length >= 1``, or one of these numbers with another method.
    """
    methods = {
        "linear": linear.steps, "blelloch": blelloch.steps, "truncated": partial(truncated.steps, levels=levels),
        "chunked": partial(chunked.steps, length=length), "hillis_steele": hillis_steele.steps,
    }  # fmt: skip
    if not isinstance(method, str) or method not in methods:
        raise ValueError(f"method must be one of {', '.join(map(repr, methods))}, got {method!r}")
    for name, value, least, of in (("levels", levels, 0, "truncated"), ("length", length, 1, "chunked")):
        if method != of:
            if value is not None:
                raise ValueError(f"{name} must be None for {method!r}, got {value!r}")
        else:
            check_count(f"{name} for {of!r}", value, least)
    return methods[method](a)


def check_count(name, value, least, most=np.inf):
    """Raise TypeError or ValueError unless `value` is an integer from `least` to `most`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.timedelta64)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {f'at least {least}' if value < least else f'at most {most}'}, got {value}")


def scan(operands, method: str, levels: int | None = None, length: int | None = None) -> list:
    """Return all inclusive prefixes ``[a0, a0 ⋄ a1, ..., a0 ⋄ ... ⋄ an]`` of a list of operands.

    Parameters and errors are those of `steps`; `operands` is left as it is. Operands that do not fit each other raise
    their own error.
    """
    if isinstance(operands, (str, bytes)) or not hasattr(operands, "__iter__"):
        raise TypeError(f"operands must be a list of operands, got {operands!r}")
    a = list(operands)
    if not a:
        raise ValueError("operands must hold at least one, got none")
    for i, operand in enumerate(a):
        if i and not hasattr(operand, "__matmul__") and operand is not IDENTITY:
            raise TypeError(f"operands[{i}] must have a method __matmul__, got {type(operand).__name__}")
    for _ in steps(a, method, levels, length):
        pass
    return a[1:]
