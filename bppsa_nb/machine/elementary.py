"""The functions of `pointwise` compiled for CPUs: tanh and sigmoid to two units in the last place, and vectorized.

The library's are not. Both come from the exponential. Where x = k ln 2 + r, with an integer k and |r| <= ln(2) / 2, a
few terms of Taylor's series give exp(r) - 1, and 2**k is put together from its bits. There is no branch: all numbers
take the same path, several of them side by side.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype

from bppsa_nb.machine.compiling import INSIDE, inline
from bppsa_nb.machine.pointwise import constant, relu, sigmoid, tanh, where

_TERMS = {np.float32: 7, np.float64: 13}  # of the series, the first included; the rest is below half a unit
_LN2 = {  # in two parts: the first has few bits, so that its product with k is exact
    np.float32: (0.693359375, -2.12194440054690583e-4),
    np.float64: (0.693147180369123816490, 1.90821492927058770002e-10),
}


@intrinsic
def _two_to(_, shifted):
    """Make 2**k from 1.5 * 2**m + k, with k an integer and m the bits of a mantissa: its lowest bits are those of k."""
    info = np.finfo(str(shifted))
    mantissa, one = int(info.nmant), (1 - int(info.minexp)) << int(info.nmant)

    def code(context, builder, signature, arguments):
        bits = ir.IntType(signature.return_type.bitwidth)
        k = builder.shl(builder.bitcast(arguments[0], bits), bits(mantissa))
        return builder.bitcast(builder.add(k, bits(one)), arguments[0].type)

    return shifted(shifted), code


def _make(dtype):
    """Make both functions for one dtype."""
    info = np.finfo(dtype)
    one, two = dtype(1), dtype(2)
    shift = dtype(1.5 * 2.0**info.nmant)  # a number this large has no digits behind the point: adding it rounds
    per_ln2, (ln2_high, ln2_low) = dtype(1 / math.log(2)), map(dtype, _LN2[dtype])
    series = tuple(dtype(1 / math.factorial(n)) for n in range(_TERMS[dtype], 1, -1))
    tanh_is_one = dtype((info.nmant + 4) * math.log(2) / 2)
    lift = info.nmant + 2
    sigmoid_is_zero = dtype((info.minexp - lift) * math.log(2))
    lift, lower = dtype(lift), dtype(2.0**-lift)  # by which 2**k is kept a normal number until there

    @inline
    def reduced(x):
        """Compute k, shifted as `_two_to` has it, and exp(r) - 1."""
        shifted = x * per_ln2 + shift
        k = shifted - shift
        r = (x - k * ln2_high) - k * ln2_low
        total = series[0]
        for c in series[1:]:
            total = total * r + c
        return shifted, r + (r * r) * total

    @inline
    def ratio(a, b, c):
        """Compute a / (b + c), with what rounding the sum and the quotient loses put back."""
        total = b + c
        lost = c - (total - b)
        inverse = one / total
        quotient = a * inverse
        return quotient + inverse * ((a - quotient * total) - quotient * lost)

    def tanh(x):
        size = abs(x)
        size = tanh_is_one if size > tanh_is_one else size  # NaN passes through
        k, rest = reduced(size + size)
        power = _two_to(k)
        less_one = power * rest + (power - one)  # exp(2 |x|) - 1: no digit is lost where x is small
        return math.copysign(ratio(less_one, two, less_one), x)

    def sigmoid(x):
        size = -abs(x)
        size = sigmoid_is_zero if size < sigmoid_is_zero else size
        k, rest = reduced(size)
        power = _two_to(k + lift)
        small = (power * rest + power) * lower  # exp(-|x|)
        return ratio(small if x < 0 else one, one, small)

    return tanh, sigmoid


_made = {types.float32: _make(np.float32), types.float64: _make(np.float64)}


@overload(relu, jit_options=INSIDE)
def _relu(x):
    zero = as_dtype(x).type(0)
    return lambda x: zero if x < zero else x  # NaN passes through


@overload(where, jit_options=INSIDE)
def _where(condition, x, y):
    return lambda condition, x, y: x if condition else y


@overload(constant, jit_options=INSIDE)
def _constant(value, like):
    real = as_dtype(like).type
    return lambda value, like: real(value)


@overload(tanh, jit_options=INSIDE)
def _tanh(x):
    return _made[x][0]


@overload(sigmoid, jit_options=INSIDE)
def _sigmoid(x):
    return _made[x][1]
