"""How products stay in range: the rules, stated and derived once, for NumPy, compiled code and kernels alike.

Products of hundreds of Jacobians leave the range of a float long before the gradient does. So a matrix, or each of its
rows, carries an exact power of two beside it. Normal numbers lie between 2**minexp and 2**maxexp and have nmant binary
digits behind the first (`numpy.finfo`); powers of two made of these decide:

`half`      No product of two numbers from here up underflows: 2 * half = minexp.
`spread`    Entries that lie within it below the largest are *narrow*: with that one in [1/2, 1), none is below
            ``half``. What is not narrow cannot be multiplied safely, whatever its scale.
`ample`     Between ``half`` and this, numbers can be multiplied as they are, and 2**32 such terms be added up:
            2 * ample + 32 = maxexp. They are *moderate*, and need no scale.
`blurred`   A term that underflows is off by less than 2**minexp. From here up, 256 of them are less than the last digit
            of what they are added to; below, a sum may have lost a term that counts.
`shift`     The power of two that goes, so that the largest entry is in [1/2, 1): its own, but none whose inverse would
            overflow.
`part`      A power of two may be too far out for one factor; this is as much of it as one can carry.

These six take plain integers, so that compiled code and kernels inline them; `narrow` and `threshold` are for arrays.
"""

import numpy as np


class DynamicRangeError(ArithmeticError):
    """A product's entries spread over more powers of two than its dtype can carry."""


def half(minexp):
    """Return the power of two from which up products do not underflow."""
    return minexp // 2


def spread(minexp):
    """Return how far entries may lie below the largest of a narrow operand, as a power of two."""
    return minexp // 2 + 1


def ample(maxexp):
    """Return up to which power of two moderate numbers go."""
    return maxexp // 2 - 16


def blurred(minexp, nmant):
    """Return the power of two below which a sum may have lost a term that counts."""
    return minexp + nmant + 8


def shift(power, minexp):
    """Return by which power of two to divide what has its largest entry in [2**(power - 1), 2**power)."""
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
