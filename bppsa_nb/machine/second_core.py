"""Two cores on one product: they take panels of its matrix one by one, from either end.

A step of a few samples reads all weights, and the next step waits for it. Weights that are larger than a core's own
cache come from afar, step after step; of the half that each of two cores reads again and again, more stays near.

The loop that needs the products runs on one thread as if it were alone. Another one helps while there are panels to
take, and waits by spinning, since steps take microseconds. The loop waits for it only where it has taken a panel: if it
comes late, or not at all, the loop computes them all. Either core has the same code: sums do not depend on who takes
what.
"""

import functools
import platform
import sys
import time
from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bppsa_nb.machine import workers
from bppsa_nb.machine.compiling import cfunc, inline
from bppsa_nb.machine.intrinsics import restore, state

# Places in a table. First what stays: addresses of a product and, for two cores, of `_share`, and bytes of a number.
PRODUCT, SHARE, ITEMSIZE = range(3)
# What both cores write, far enough apart to share no line of a cache: how many panels are left to take (-1: no more
# products come), and how many of them the helper has done. Then the product, written before its panels are there: its
# number, the state that it is computed in, addresses, and sizes as `machine.tiles` has them.
_LEFT, _DONE = 16, 32
_NUMBER, _STATE, _ROWS, _MATRICES, _OUT, _SIZES = range(48, 54)
_WORDS, NUM_SIZES = 72, 13
_WIDTH, _COLUMNS, _PANELS, _STRIDE = _SIZES + 3, *range(_SIZES + 10, _SIZES + NUM_SIZES)
_PATIENCE = 2**22  # looks at a table where nothing happens, until the helper goes
_MISSED = 0.1  # of a block's time that its thread may be without a core; and seconds, which Windows counts by ticks
_TICK = 0.016 if sys.platform == "win32" else 0.0
_REST = 32  # times what a block took in which others had a core, the next ones go alone; and seconds at most
_LONGEST_REST = 3.0

_INT, _TABLE = ir.IntType(64), types.CPointer(types.int64)


@intrinsic
def _read(_, table, place):
    """Read what another core writes; what it wrote before can be read from here on."""

    def code(context, builder, signature, arguments):
        return builder.load_atomic(builder.gep(arguments[0], [arguments[1]]), "acquire", 8)

    return types.int64(table, types.intp), code


@intrinsic
def _write(_, table, place, value):
    """Write what another core reads, after all that was written before."""

    def code(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], builder.gep(arguments[0], [arguments[1]]), "release", 8)
        return context.get_dummy_value()

    return types.none(table, types.intp, types.int64), code


@intrinsic
def _swap(_, table, place, before, after):
    """Replace a number if it is still what it was; tell whether it was."""

    def code(context, builder, signature, arguments):
        place = builder.gep(arguments[0], [arguments[1]])
        return builder.extract_value(builder.cmpxchg(place, *arguments[2:], "acq_rel", "acquire"), 1)

    return types.boolean(table, types.intp, types.int64, types.int64), code


@intrinsic
def _pause(_):
    """Leave a moment to what else may run on this core, on processors that have an instruction for it."""

    def code(context, builder, signature, arguments):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.none(), code


def call_at(builder, place, table, *values):
    """Emit the call of what a table has the address of."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(builder.inttoptr(builder.load(builder.gep(table, [_INT(place)])), kind.as_pointer()), values)


@intrinsic
def _call(_, table, matrix, out):
    """Have the product of a table compute one panel."""

    def code(context, builder, signature, arguments):
        table, *panel = arguments
        rows, sizes = (builder.gep(table, [_INT(place)]) for place in (_ROWS, _SIZES))
        call_at(builder, PRODUCT, table, builder.load(rows), *panel, sizes)
        return context.get_dummy_value()

    return types.none(table, types.int64, types.int64), code


@inline
def _compute(table, number):
    start = min(number * table[_WIDTH], table[_COLUMNS] - table[_WIDTH])
    _call(table, table[_MATRICES] + number * table[_STRIDE], table[_OUT] + start * table[ITEMSIZE])


@inline
def _take(table):
    """Take one of the panels that are left, and tell whether that went well."""
    left = _read(table, _LEFT)
    return left > 0 and _swap(table, _LEFT, left, left - 1)


def _share(table, rows, matrices, out, sizes):
    """Have all panels of a product computed, with a helper."""
    table[_ROWS], table[_MATRICES], table[_OUT] = rows, matrices, out
    for i in range(NUM_SIZES):
        table[_SIZES + i] = sizes[i]
    table[_NUMBER], table[_STATE], table[_DONE] = table[_NUMBER] + 1, state(), 0
    panels, own = table[_PANELS], 0
    _write(table, _LEFT, panels)
    while _read(table, _LEFT):
        if _take(table):
            _compute(table, own)
            own += 1
    while own + _read(table, _DONE) < panels:
        _pause()


def _help(table):
    """Take panels from the end of one product after the other, until none come any more."""
    number = own = idle = 0
    before = state()
    while idle < _PATIENCE and _read(table, _LEFT) >= 0:
        if _take(table):
            # Read once a panel is taken: till it is done, the product stays this one.
            if table[_NUMBER] != number:
                number, own = table[_NUMBER], 0
                restore(table[_STATE])
            idle, own = 0, own + 1
            _compute(table, table[_PANELS] - own)
            _write(table, _DONE, own)
        else:
            idle += 1
            _pause()
    restore(before)


@functools.cache
def _compiled():
    """Compile `_share` and `_help`, where they are needed."""
    sharing = cfunc(types.void(_TABLE, types.int64, types.int64, types.int64, _TABLE))(_share)
    return sharing, cfunc(types.void(_TABLE))(_help)


def table_of(product, itemsize):
    """Return the table of a product, by its address, for one core."""
    table = np.zeros(_WORDS, np.int64)
    table[PRODUCT], table[ITEMSIZE] = product, itemsize
    return table


_rest_until = 0.0  # while other processes want the cores


@contextmanager
def helped(table):
    """Have another thread help within a block, with products of the table that it gives, unless cores are busy."""
    global _rest_until
    if workers.alone() or time.perf_counter() < _rest_until:
        yield table
        return
    (sharing, helping), table = _compiled(), table.copy()
    table[SHARE] = sharing.address
    began, computing = time.perf_counter(), time.thread_time()
    with workers.beside(lambda: helping.ctypes(table.ctypes.data_as(helping.ctypes.argtypes[0])), 1):
        try:
            yield table
        finally:
            table[_LEFT] = -1
            ended = time.perf_counter()
            seconds, missed = ended - began, ended - began - (time.thread_time() - computing)
            if missed > _MISSED * seconds + _TICK:
                _rest_until = ended + min(_REST * seconds, _LONGEST_REST)
