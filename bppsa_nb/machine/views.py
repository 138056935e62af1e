"""Views into arrays that cost compiled code nothing, neither to make nor to compile; and copies and sums of them.

A slice of Numba's is wrapped around, clipped, counted and let go of, in a hundred instructions that the compiler has to
see through each time. Where loops know what they ask for, a place and a number are enough.
"""

from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from bppsa_nb.machine.compiling import inline


@intrinsic
def flat_view(_, array, start, count):
    """View `count` consecutive numbers of a C-contiguous array from `start` on as one row, in compiled code.

    Neither of them is checked, and the array has to outlive the view.
    """

    def code(context, builder, signature, arguments):
        return _row(context, builder, array, arguments[0], array.dtype, *arguments[1:])

    return _row_type(array, array.dtype)(array, types.intp, types.intp), code


@intrinsic
def bits(_, array):
    """View the numbers of a C-contiguous array as unsigned integers [shape=(array.size,)], in compiled code.

    But for the sign bit, they are in the same order.
    """
    unsigned = getattr(types, f"uint{array.dtype.bitwidth}")

    def code(context, builder, signature, arguments):
        count = context.make_array(array)(context, builder, arguments[0]).nitems
        return _row(context, builder, array, arguments[0], unsigned, context.get_constant(types.intp, 0), count)

    return _row_type(array, unsigned)(array), code


def _row_type(array, dtype):
    if array.layout != "C":
        raise TypeError(f"array must be C-contiguous, got {array}")
    return types.Array(dtype, 1, "C")


def _row(context, builder, array, value, dtype, start, count):
    source, kind = context.make_array(array)(context, builder, value), types.Array(dtype, 1, "C")
    view = context.make_array(kind)(context, builder)
    data = builder.bitcast(builder.gep(source.data, [start]), context.get_value_type(dtype).as_pointer())
    size = source.itemsize
    populate_array(view, data=data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return view._getvalue()


@inline
def copy(array, out):
    """Copy numbers [shape=(n,)]; an assignment would compile, for seconds, what it says of shapes that do not fit."""
    for i in range(out.size):
        out[i] = array[i]


@inline
def clear(out):
    """Set numbers [shape=(n,)] to zero."""
    for i in range(out.size):
        out[i] = 0


@inline
def add(out, terms):
    """Add terms to numbers [shape=(n,)] in place."""
    for i in range(out.size):
        out[i] += terms[i]
