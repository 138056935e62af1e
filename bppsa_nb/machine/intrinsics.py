"""What loops for CPUs are made of, beside Numba's own: numbers by where they begin, and small ones taken for zero.

A slice of Numba's is wrapped around, clipped, counted and let go of, in a hundred instructions that the compiler has to
see through each time. Where loops know what they ask for, a pointer and a number are enough, and what is done to rows
of numbers is the call of a function, which each module has once.

Gradients that vanish over a long sequence pass through the subnormal numbers on their way to zero, and processors
compute with those a hundred times slower. A thread can have its processor take them for zero; NaN, infinity and all
other numbers stay what they are. Compiled code calls `flush` before such a loop and `restore` after it, and between the
two neither allocates nor raises: Python's own arithmetic shall not notice. What a thread computes for another one it
computes as that one does, from `restore` with the other's `state`.
"""

import platform
from functools import update_wrapper

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from bppsa_nb.machine.compiling import inline

_INT = ir.IntType(64)
_ALIGNED = 64  # bytes: a vector register of any processor


@intrinsic
def pointer(_, array, start):
    """Point to the number so far from the first of a C-contiguous array, which has to outlive this, or from another."""
    _check(array)

    def code(context, builder, signature, arguments):
        return builder.gep(_first(context, builder, array, arguments[0]), [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), code


@intrinsic
def buffer(_, like, shape):
    """Make an array without values, of another one's dtype; np.empty would compile something for each ndim."""
    kind = types.Array(like.dtype, len(shape), "C")

    def code(context, builder, signature, arguments):
        sizes, total = integers(context, builder, shape, arguments[1]), _INT(like.dtype.bitwidth // 8)
        for size in sizes:
            total = builder.mul(total, size)
        memory = context.nrt.meminfo_alloc_aligned(builder, total, align=_ALIGNED)
        return _laid_out(context, builder, kind, context.nrt.meminfo_data(builder, memory), sizes, memory)

    return kind(like, shape), code


@intrinsic
def shaped(_, array, start, shape):
    """View numbers of a C-contiguous array from `start` on as an array."""
    _check(array)
    kind = types.Array(array.dtype, len(shape), "C")

    def code(context, builder, signature, arguments):
        source = context.make_array(array)(context, builder, arguments[0])
        sizes = integers(context, builder, shape, arguments[2])
        return _view(context, builder, kind, source, builder.gep(source.data, [arguments[1]]), sizes)

    return kind(array, types.intp, shape), code


@intrinsic
def bits(_, array):
    """View numbers as unsigned integers [shape=(array.size,)], which but for the sign bit are in the same order."""
    _check(array)
    kind = types.Array(getattr(types, f"uint{array.dtype.bitwidth}"), 1, "C")

    def code(context, builder, signature, arguments):
        source = context.make_array(array)(context, builder, arguments[0])
        return _view(context, builder, kind, source, source.data, [source.nitems])

    return kind(array), code


def _view(context, builder, kind, source, first, shape):
    view = _laid_out(context, builder, kind, first, shape, source.meminfo)
    context.nrt.incref(builder, kind, view)
    return view


def _laid_out(context, builder, kind, first, shape, memory):
    array, size = context.make_array(kind)(context, builder), _INT(kind.dtype.bitwidth // 8)
    strides = [size]
    for each in reversed(shape[1:]):
        strides.insert(0, builder.mul(each, strides[0]))
    data = builder.bitcast(first, array.data.type)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=memory)
    return array._getvalue()


def integers(context, builder, kind, value):
    """Return the integers of a tuple, for the code of an intrinsic."""
    values = zip(cgutils.unpack_tuple(builder, value), kind, strict=True)
    return [context.cast(builder, each, own, types.int64) for each, own in values]


# Numbers are given by a pointer, or by a C-contiguous array, from its first on. No two share memory.


def _emitted(body):
    """Make an intrinsic with the parameters of `body`, which emits the function that it calls."""

    def call(_, *kinds):
        for kind in kinds:
            _check(kind)

        def code(context, builder, signature, arguments):
            values = [_first(context, builder, *each) for each in zip(signature.args, arguments, strict=True)]
            call_own(builder, body.__name__, body, values)
            return context.get_dummy_value()

        return types.none(*(types.intp if isinstance(kind, types.Integer) else kind for kind in kinds)), code

    return intrinsic(update_wrapper(call, body))


@_emitted
def copy(builder, source, target, count):
    """Copy numbers; an assignment to a slice would compile, for seconds, what it says of shapes that do not fit."""
    cgutils.raw_memcpy(builder, target, source, count, cgutils.sizeof(builder, source.type))


@_emitted
def copy_rows(builder, source, apart, target, target_apart, count, rows):
    """Copy so many rows of numbers, which begin so many numbers apart, here and there."""
    builder.function.attributes.add("noinline")
    size = cgutils.sizeof(builder, source.type)
    gaps = builder.or_(builder.xor(apart, count), builder.xor(target_apart, count))
    with builder.if_else(cgutils.is_null(builder, gaps)) as (together, row_by_row):
        with together:
            cgutils.raw_memcpy(builder, target, source, builder.mul(rows, count), size)
        with row_by_row, cgutils.for_range(builder, rows) as loop:
            here, there = (builder.mul(loop.index, each) for each in (apart, target_apart))
            cgutils.raw_memcpy(builder, builder.gep(target, [there]), builder.gep(source, [here]), count, size)


@_emitted
def clear(builder, target, count):
    """Set numbers to zero."""
    cgutils.memset(builder, target, builder.mul(count, cgutils.sizeof(builder, target.type)), 0)


@_emitted
def add(builder, target, source, count):
    """Add terms to numbers in place."""
    builder.function.attributes.add("noinline")
    target.add_attribute("noalias")
    with cgutils.for_range(builder, count) as loop:
        place, term = (builder.gep(each, [loop.index]) for each in (target, source))
        builder.store(builder.fadd(builder.load(place), builder.load(term)), place)


def _check(array):
    if getattr(array, "layout", "C") != "C":
        raise TypeError(f"array must be C-contiguous, got {array}")


def _first(context, builder, kind, value):
    return context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value


def call_own(builder, name, body, values):
    """Call a function of the module's own, made at the first call: `body` emits it, given a builder and parameters."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, f"bppsa_nb.{name}.{kind}")
    if function.is_declaration:
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block())
        body(inside, *function.args)
        inside.ret_void()
    builder.call(function, values)


_STATES = {"x86_64": "x86", "AMD64": "x86", "aarch64": "arm", "arm64": "arm"}
_KIND = _STATES.get(platform.machine())
# What says so: flush to zero and denormals are zero in MXCSR (x86), flush to zero in FPCR (ARM).
_FLUSHED = {"x86": 1 << 15 | 1 << 6, "arm": 1 << 24}
_BITS = _FLUSHED.get(_KIND, 0)
_INT32, _INT64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _read(builder):
    if _KIND == "arm":
        return _call(builder, "llvm.aarch64.get.fpcr", _INT64)
    place = cgutils.alloca_once(builder, _INT32)
    _call(builder, "llvm.x86.sse.stmxcsr", _VOID, place)
    return builder.zext(builder.load(place), _INT64)


def _write(builder, state):
    if _KIND == "arm":
        _call(builder, "llvm.aarch64.set.fpcr", _VOID, state)
    else:
        place = cgutils.alloca_once_value(builder, builder.trunc(state, _INT32))
        _call(builder, "llvm.x86.sse.ldmxcsr", _VOID, place)


@intrinsic
def state(_):
    """Return how this thread takes subnormal numbers, for `restore`."""

    def code(context, builder, signature, arguments):
        return _INT64(0) if _KIND is None else _read(builder)

    return types.int64(), code


@intrinsic
def restore(_, before):
    """Go back to what `state` or `flush` returned."""

    def code(context, builder, signature, arguments):
        if _KIND is not None:
            _write(builder, arguments[0])
        return context.get_dummy_value()

    return types.none(types.int64), code


@inline
def flush():
    """Take subnormal numbers for zero from here on, in this thread; return the state before.

    Does nothing on processors other than x86-64 and 64-bit ARM.
    """
    before = state()
    restore(before | _BITS)
    return before
