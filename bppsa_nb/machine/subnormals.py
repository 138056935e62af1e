"""Count numbers below the smallest normal one as zero while a compiled loop runs.

Gradients that vanish over a long sequence pass through the subnormal numbers on their way to zero, and processors
compute with those a hundred times slower. A thread can have its processor take them for zero; NaN, infinity and all
other numbers stay what they are. Compiled code calls `flush` before such a loop and `restore` after it, and between the
two neither allocates nor raises: Python's own arithmetic shall not notice. What a thread computes for another one it
computes as that one does, from `restore` with the other's `state`.
"""

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bppsa_nb.machine.compiling import inline

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
