"""Operands times exact powers of two, so that their products stay in range; see `bppsa_nb.operands.range`."""

import numpy as np

from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.operands import products
from bppsa_nb.operands.range import DynamicRangeError, narrow, threshold


@with_repr("operand", "exponent")
class Scaled:
    """An operand times a power of two, ``operand * 2**exponent``, the largest entry of each sample being in [1/2, 1).

    A sample that is zero stays as it is. Scaling by powers of two is exact, so nothing is rounded that the unscaled
    product would not have rounded. `fresh` says that nobody else needs the operand as it was: a product that was just
    made is scaled where it stands. Raises DynamicRangeError if the entries of one sample differ by so much that a
    product could drop some of them; and so does a product with a vector where it may have lost a term.
    """

    def __init__(self, operand, exponent=0, fresh=False):
        values, there = operand.values, operand.products
        peak, floor = there.magnitude_range(values)
        if not narrow(peak, floor).all():
            raise DynamicRangeError
        power = np.maximum(np.frexp(peak)[1], np.finfo(peak.dtype).minexp)  # `range.shift`
        self.operand = operand.with_values(there.scale(values, -power, values if fresh else None))
        self.exponent = exponent + power

    def __matmul__(self, other):
        if not isinstance(other, np.ndarray):
            return Scaled(self.operand @ other.operand, self.exponent + other.exponent, fresh=True)
        peak, floor = products.magnitude_range(other)
        power = np.frexp(peak)[1]
        product = self.operand @ np.ldexp(other, -power[..., None])
        if (~narrow(peak, floor)[..., None] & (np.abs(product) < threshold(other.dtype))).any():
            raise DynamicRangeError
        return np.ldexp(product, (self.exponent + power)[..., None])
