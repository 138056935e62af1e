"""How products stay in range: the rules, stated and derived once, for NumPy, compiled code and kernels alike.

Products of hundreds of Jacobians leave the range of a float long before the gradient does. So a matrix, or each of its
rows, carries an exact power of two beside it. Normal numbers lie between 2**minexp and 2**maxexp and have nmant binary
digits behind the first (`numpy.finfo`); powers of two made of these decide. The first six functions take plain
integers, so that compiled code and kernels inline them; `narrow` and `threshold` are for arrays.
"""

import numpy as np


class DynamicRangeError(ArithmeticError):
    """A product's entries spread over more powers of two than its dtype can carry."""


def half(minexp):
    """Return the power of two from which up no product of two numbers underflows: 2 * half = minexp."""
    return minexp // 2


def spread(minexp):
    """Return how far entries of a *narrow* operand may lie below its largest, as a power of two.

    With the largest in [1/2, 1), none is below `half`. What is not narrow cannot be multiplied safely at any scale.
    """
    return minexp // 2 + 1


def ample(maxexp):
    """Return up to which power of two, from `half` on, *moderate* numbers go, which need no scale.

    They can be multiplied as they are, and 2**32 such terms be added up: 2 * ample + 32 = maxexp.
    """
    return maxexp // 2 - 16


def blurred(minexp, nmant):
    """Return the power of two below which a sum may have lost a term that counts.

    A term that underflows is off by less than 2**minexp. From here up, 256 of them are less than the last digit.
    """
    return minexp + nmant + 8


def shift(power, minexp):
    """Return the power of two that brings a largest entry of this `power` to [1/2, 1); none whose inverse overflows."""
    return max(power, minexp)


def part(exponent, minexp, maxexp):
    """Return the part of a power of two that one factor can carry: itself, or the nearest that is a normal number."""
    return min(max(exponent, minexp), maxexp - 1)


def narrow(peak, floor):
    """Tell for each of several operands whether its smallest non-zero size lies within `spread` of its largest."""
    return floor >= np.ldexp(peak, spread(np.finfo(peak.dtype).minexp))


def threshold(dtype):
    """Return 2**blurred of a dtype, a float."""
    info = np.finfo(dtype)
    return float(np.ldexp(1.0, blurred(info.minexp, info.nmant)))
