"""What a run of a dense chain does to a gradient, as one affine map, and ⋄ of two such maps.

A map takes the gradient at the run's end to the one at its start, ``g -> sum_j g[j] * 2**exponents[j] * rows[j] +
offset``: the product of its transposed Jacobians, whose rows carry powers of two so that it neither overflows nor
underflows, and its loss terms. It is one record, which MPI sends as it is.

The run at the loss needs no product: that its gradient is known makes it a constant map, and ⋄ with it is a product of
a matrix and a vector.
"""

from functools import lru_cache

import numpy as np

from bppsa_nb.operands import rows as scaled_rows
from bppsa_nb.operands.range import DynamicRangeError

IDENTITY, LINEAR, CONSTANT, LOST = range(4)


@lru_cache(64)
def layout(matrices, batch, size, dtype):
    """Return the layout of a map, a NumPy record, of B samples and H entries; 1 matrix if all samples share it."""
    return np.dtype(
        [
            ("kind", np.int64),
            ("exponents", np.int64, (matrices, size)),
            ("rows", dtype, (matrices, size, size)),
            ("offset", dtype, (batch, size)),
        ]
    )


def combine(a, b):
    """Set ``b = a ⋄ b``: first what `a` does, which is closer to the loss, then what `b` does (Section 3.1).

    Where a product cannot keep its entries in range, `b` becomes `LOST`.
    """
    kinds = a["kind"], b["kind"]
    if LOST in kinds:
        b["kind"] = LOST
    elif kinds[1] == IDENTITY:
        for name in b.dtype.names:
            b[name] = a[name]
    elif kinds[0] != IDENTITY:
        try:
            _multiply(a, b)
        except DynamicRangeError:
            b["kind"] = LOST


def _multiply(a, b):
    rows, exponents = b["rows"], b["exponents"]
    if a["offset"].any():  # M_b (M_a g + c_a) + c_b
        b["offset"] += scaled_rows.apply(rows, exponents, a["offset"][:, None])[:, 0]
    if a["kind"] == LINEAR:
        product, powers = scaled_rows.apply_scaled(rows, exponents, a["rows"])
        b["rows"], b["exponents"] = scaled_rows.normalize(product, a["exponents"] + powers[..., 0])
    b["kind"] = a["kind"]
