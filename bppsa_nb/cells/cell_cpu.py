"""A cell's equations compiled for CPUs, for rows of numbers: those of all units of some samples at once.

Loops over time are compiled once for all cells. They are given a table with the addresses of these two functions, as
products are given theirs (`machine.tiles`): a call for each step costs nothing beside what it does.
"""

import functools

import numpy as np
from llvmlite import ir
from numba import from_dtype, njit, types
from numba.core import cgutils, errors
from numba.extending import intrinsic

import bppsa_nb.machine.elementary  # noqa: F401  what is in `pointwise`, for compiled code
from bppsa_nb.machine import pointwise
from bppsa_nb.machine.compiling import INSIDE, cfunc, inline, lock

STEP, BACK, SPLIT, CARRY, GATES, PREACTS = range(6)  # places in a table
_INT = ir.IntType(64)


@functools.cache
def table_of(cell, dtype):
    """Return what loops over time are given of a cell, for float32 or float64: addresses, and numbers."""
    with lock:
        try:
            step, back = _compile(cell, from_dtype(dtype))
        except errors.TypingError as error:
            known = "Python's operators, and functions of bppsa_nb.machine.pointwise or compiled by numba.njit"
            why = next((line for line in str(error).splitlines() if "Untyped" in line or "Unknown" in line), str(error))
            raise TypeError(f"a cell's functions must be written in {known}: {why.strip()}") from error
    return np.array([step.address, back.address, cell.split, int(cell.carry), cell.gates, cell.preacts], np.int64)


def _compile(cell, real):
    _, _, gates, _, num_states, num_kept, *_ = cell
    row, many, num_preacts, split = types.CPointer(real), types.int64, cell.preacts, cell.split
    take_step, go_back, activate = njit(**INSIDE)(cell.step), njit(**INSIDE)(cell.back), _activate_of(cell)
    compiled = {"error_model": "numpy", "fastmath": {"contract"}}

    @cfunc(types.void(*[row, many] * 6, many), **compiled)
    def step(x, x_apart, h, h_apart, biases, apart, before, before_apart, after, after_apart, kept, kept_apart, n):
        for i in range(n):
            of_x, of_h = _taken(x, x_apart, gates, i), _taken(h, h_apart, gates, i)
            preacts = _preacts(of_x, of_h, _taken(biases, apart, num_preacts, i), split)
            states, values = take_step(activate(preacts), _taken(before, before_apart, num_states, i))
            _put(0, after, after_apart, states, i)
            _put(1, kept, kept_apart, values, i)

    @cfunc(types.void(*[row, many] * 6, many), **compiled)
    def back(grads, apart, before, before_apart, after, after_apart, kept, kept_apart, at, at_apart, past, past_at, n):
        for i in range(n):
            states = _taken(before, before_apart, num_states, i), _taken(after, after_apart, num_states, i)
            taken = _taken(kept, kept_apart, num_kept, i)
            found, through = go_back(_taken(grads, apart, num_states, i), *states, taken)
            _put(2, at, at_apart, found, i)
            _put(3, past, past_at, through, i)

    return step, back


def _activate_of(cell):
    """Make what takes a unit's preactivations, a tuple, to what its step is given."""

    def followed(before, number, function):
        if function is None:
            return inline(lambda preacts: (*before(preacts), preacts[number]))
        return inline(lambda preacts: (*before(preacts), function(preacts[number])))

    own = {getattr(pointwise, name) for name in ("sigmoid", "tanh", "relu")}
    functions, activate = dict(enumerate(cell.activations, start=cell.split)), inline(lambda preacts: ())
    for number in range(cell.preacts):
        function = functions.get(number)
        activate = followed(activate, number, function if function in {None, *own} else njit(**INSIDE)(function))
    return activate


def _place(builder, rows, apart, k, i):
    return builder.gep(rows, [builder.add(builder.mul(apart, _INT(k)), i)])


def _scopes(builder, names):
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "rows of a cell")])
    return module.add_metadata([module.add_metadata([ir.MetaDataString(module, name), domain]) for name in names])


# No row that is written shares memory with any other. Loops that do not know look, before they vectorize, at each row
# and each other, which takes as long as a small batch.
_PARTS = "step's next states", "step's kept numbers"
_PARTS += "back's gradients at preactivations", "back's gradients past preactivations"
_WRITTEN = [f"{name} {k}" for name in range(2) for k in range(16)]


@intrinsic(prefer_literal=True)
def _taken(_, rows, apart, count, i):
    """Return the i-th number of each of so many rows, which are `apart`."""
    taken = types.UniTuple(rows.dtype, count.literal_value)

    def code(context, builder, signature, arguments):
        rows, apart, _, i = arguments
        values = [builder.load(_place(builder, rows, apart, k, i)) for k in range(taken.count)]
        for loaded in values:
            loaded.set_metadata("alias.scope", _scopes(builder, ["read"]))
        return context.make_tuple(builder, taken, values)

    return taken(rows, apart, count, i), code


@intrinsic(prefer_literal=True)
def _put(_, name, rows, apart, values, i):
    """Write the i-th number of each of some rows, which are `apart`."""
    number = name.literal_value
    for value in values:
        if value != rows.dtype:
            said = "numbers are written constant(1, x), where x is one of those given"
            what = f"cell.{_PARTS[number]} must be {rows.dtype} for {rows.dtype}, in compiled code, got {value}"
            raise TypeError(f"{what}: {said}")

    def code(context, builder, signature, arguments):
        _, rows, apart, found, i = arguments
        for k in range(len(values)):
            value, own = builder.extract_value(found, k), f"{number % 2} {k}"
            stored = builder.store(value, _place(builder, rows, apart, k, i))
            stored.set_metadata("alias.scope", _scopes(builder, [own]))
            stored.set_metadata("noalias", _scopes(builder, ["read", *(other for other in _WRITTEN if other != own)]))
        return context.get_dummy_value()

    return types.none(name, rows, apart, values, i), code


@intrinsic(prefer_literal=True)
def _preacts(_, from_x, from_h, biases, split):
    """Return a unit's preactivations, sums of what inputs and states add to gates, and of biases; see `Cell`."""
    gates, preacts, split_type = len(from_x), types.UniTuple(from_x.dtype, len(biases)), split
    split = split.literal_value

    def code(context, builder, signature, arguments):
        x, h, values = (cgutils.unpack_tuple(builder, each) for each in arguments[:3])
        for k in range(preacts.count):
            if k < gates:
                values[k] = builder.fadd(x[(k - split) % gates], values[k])
            if split <= k < split + gates:
                values[k] = builder.fadd(values[k], h[k - split])
        return context.make_tuple(builder, preacts, values)

    return preacts(from_x, from_h, biases, split_type), code


def _calling(place, kinds):
    """Return the code that calls one of a table's functions on arrays by rows, from places on, and n numbers of each.

    A function is given of each array an address, and how far its rows are apart.
    """

    def code(context, builder, signature, arguments):
        (table, *arguments, n), values = arguments, []
        for kind, array, start in zip(kinds[1:], arguments[::2], arguments[1::2], strict=True):
            array = context.make_array(kind)(context, builder, array)
            apart = builder.sdiv(cgutils.unpack_tuple(builder, array.strides)[0], _INT(kind.dtype.bitwidth // 8))
            values += [builder.gep(array.data, [start]), apart]
        function = ir.FunctionType(ir.VoidType(), [value.type for value in (*values, n)])
        table = context.make_array(kinds[0])(context, builder, table).data
        address = builder.load(builder.gep(table, [_INT(place)]))
        builder.call(builder.inttoptr(address, function.as_pointer()), [*values, n])
        return context.get_dummy_value()

    cell, *arrays = kinds
    return types.none(cell, *(kind for array in arrays for kind in (array, types.int64)), types.int64), code


@intrinsic
def step(_, cell, from_x, x_at, from_h, h_at, biases, biases_at, before, before_at, after, after_at, kept, kept_at, n):
    """Take a step of n numbers in compiled code; `cell` is a table.

    All arrays are by rows, contiguous within each, and read or written from a place on: what inputs add to each gate,
    and states; biases of each sum; states before and after the step; and what is kept.
    """
    return _calling(STEP, (cell, from_x, from_h, biases, before, after, kept))


@intrinsic
def back(_, cell, grads, grads_at, before, before_at, after, after_at, kept, kept_at, at, at_at, past, past_at, n):
    """Go a step of n numbers back in compiled code, as `step` takes one."""
    return _calling(BACK, (cell, grads, before, after, kept, at, past))
