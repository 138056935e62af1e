"""Matrices whose rows carry a power of two each, so that their products stay in range: what chunks are multiplied into.

Row j stands for ``2**exponents[j] * rows[j]`` and is where unit vector j ends; see `bppsa_nb.operands.range`.
"""

import numpy as np

from bppsa_nb.operands.range import DynamicRangeError, half, spread, threshold


def normalize(rows, exponents, floor=0.0):
    """Move powers of two from rows to exponents, so that the largest entry of each row is in [1/2, 1).

    Rows [shape=(..., H)] are overwritten; rows and exponents [shape=(...)] returned stand for the same matrices. No
    entry of the rows as they come may be smaller than `floor`, not even zero; see `smallest_kept`. Raises
    DynamicRangeError if the entries of one row differ too much for a product, or are not finite.
    """
    size = np.abs(rows)
    peak = size.max(axis=-1, keepdims=True)
    low = np.ldexp(peak, spread(np.finfo(rows.dtype).minexp))
    if not np.isfinite(peak).all() or ((size < low) & (size > 0) | (size < floor)).any():
        raise DynamicRangeError
    power = np.frexp(peak)[1]
    return np.ldexp(rows, -power, out=rows), exponents + power[..., 0]


def smallest_kept(weights, slopes, carry):
    """Return how small an entry of a product may be in a step of `bppsa_nb.chains.chain.products`.

    Below, it may have lost terms. Entries are 2**half at least. A term is one of them times a slope and a weight,
    or times a carry. Where none of these can underflow, an entry may have any size.
    """
    least = np.ldexp(1.0, half(np.finfo(weights.dtype).minexp))
    if _smallest(slopes) * min(_smallest(weights), 1) >= least and (carry is None or _smallest(carry) >= least):
        return 0.0
    # What is lost is below the smallest normal number, before it is multiplied by a weight or after.
    return max(float(np.abs(weights).max(initial=0)), 1.0) * threshold(weights.dtype)


def _smallest(array):
    """Return the smallest size of a non-zero entry, infinity if there is none."""
    smallest = np.inf
    for part in np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], buffersize=2**16):  # in little memory
        size = np.abs(part)
        smallest = min(smallest, float(np.min(size, where=size > 0, initial=np.inf)))
    return smallest


def apply(rows, exponents, grads):
    """Compute ``sum_j grads[v, j] * 2**exponents[j] * rows[j]`` in range, for every vector v of every sample.

    Rows are [shape=(B, H, H)] or [shape=(1, H, H)], the largest entry of each in [1/2, 1), or all 0; exponents
    [shape=(B, H)] or [shape=(1, H)]; gradients and result [shape=(B, V, H)]. Raises DynamicRangeError if an entry may
    be made up of terms too small to be seen.
    """
    return np.ldexp(*apply_scaled(rows, exponents, grads))


def apply_scaled(rows, exponents, grads):
    """Return `apply` as numbers, and the powers of two, broadcasting to [shape=(B, V, 1)], that belong to them."""
    info, there = np.finfo(grads.dtype), rows.any(axis=-1)[:, None]
    exponents = np.where(there, exponents[:, None], 2 * info.minexp)  # the power of a row of zeros says nothing
    top = exponents.max(axis=-1, keepdims=True)
    factors = grads * np.where(there, np.ldexp(grads.dtype.type(1), exponents - top), 0)
    size, least = np.abs(factors), float(np.ldexp(1.0, half(info.minexp)))
    if ((size >= least) & (size <= 1 / least) | (grads == 0) | ~there).all():  # no term is lost
        return factors @ rows, top
    fractions, powers = np.frexp(np.where(there, grads, 0))
    powers = np.where(fractions == 0, 2 * info.minexp + exponents.min(), powers + exponents)
    top = powers.max(axis=-1, keepdims=True)
    factors = np.ldexp(fractions, powers - top)
    total = factors @ rows
    wide = ((powers - top < spread(info.minexp)) & (fractions != 0)).any(axis=-1)
    if (np.abs(total[wide]) < threshold(grads.dtype)).any():
        raise DynamicRangeError
    return total, top
