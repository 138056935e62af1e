"""Whether a cell's equations fit together: its derivatives against central differences, compiled code against NumPy."""

import functools
from typing import get_origin, get_type_hints

import numpy as np

from bppsa_nb.cells import layer
from bppsa_nb.cells.cell import NAMES, Cell
from bppsa_nb.machine import backends, checks
from bppsa_nb.machine.arguments import Rng, checked, look_of
from bppsa_nb.machine.checks import short_repr
from bppsa_nb.machine.dispatch import implementation

_UNITS, _NUDGE, _WITHIN = 200, 1e-6, 1e-6  # of which all are looked at; relative to the largest derivative


@checked
def check_cell(cell: Cell, rng: Rng = 0) -> None:
    """Check a cell of your own: raise an error that says what is wrong, or return nothing.

    Derivatives are compared with central differences, at random preactivations and states. Compiled code is compared
    with NumPy, in float32 and float64.

    Parameters
    ----------
    cell
        The equations, and how many numbers they take and return.
    rng
        Where preactivations and states come from.

    Raises
    ------
    TypeError, ValueError
        If numbers of the cell do not fit together; if `step` or `back` returns something else than so many states, kept
        numbers and gradients, all finite, or cannot be compiled; if a derivative is wrong: the message says of which
        state, and by which preactivation or state.

    Examples
    --------
    >>> from bppsa_nb import GRU
    >>> check_cell(GRU.cell)
    """
    check_numbers(cell)
    rng = np.random.default_rng(rng)
    counts = cell.preacts, cell.states, cell.states
    preacts, states, grads = (rng.standard_normal((count, _UNITS)) for count in counts)
    _check_derivatives(cell, preacts, states, grads)
    if cell.bounded:
        h = np.clip(states, -1, 1)
        for s, after in enumerate(_run(cell, 4 * preacts, h, grads)[0]):
            if np.abs(after).max() > 1:
                most = f"state {s} goes from {h[s].max():.3g} to {after.max():.3g}"
                raise ValueError(f"cell.bounded must be False: {most}")
    if backends.compiles():
        for dtype in (np.float64, np.float32):
            _check_compiled(cell, dtype, rng)


def check_numbers(cell):
    """Raise TypeError or ValueError unless a cell's functions take and return as many numbers as it says."""
    look_of(Cell)("cell", cell, {})
    for name, kind in get_type_hints(Cell, include_extras=True).items():
        value = getattr(cell, name)
        if get_origin(kind) is tuple and not isinstance(value, tuple):
            raise TypeError(f"cell.{name} must be a tuple, got {short_repr(value)}")
        look_of(kind)(f"cell.{name}", value, {})
    _check_numbers(cell)


@functools.cache
def _check_numbers(cell):
    if len({*NAMES, *cell.vectors}) < len(cell.names) or not all(map(str.isidentifier, cell.vectors)):
        raise ValueError(f"cell.vectors must be names, none of them twice or one of {NAMES}, got {cell.vectors}")
    if cell.split > cell.gates:
        raise ValueError(f"cell.split must be at most gates = {cell.gates}, got {cell.split}")
    if cell.elementwise and (cell.split or not cell.carry):
        got = f"split={cell.split} and carry={cell.carry}"
        raise ValueError(f"cell.split must be 0 and cell.carry True of a cell that is elementwise, got {got}")
    if cell.activations and len(cell.activations) != cell.gates - cell.split:
        expected = f"one for each of the {cell.gates - cell.split} gates with whole preactivations, or none"
        raise ValueError(f"cell.activations must be {expected}, got {len(cell.activations)}")
    for dtype in (np.float64, np.float32):
        _run(cell, *(np.full((count, 3), 0.5, dtype) for count in (cell.preacts, cell.states, cell.states)))


@np.errstate(all="ignore")  # whatever leaves the range is found in the result
def _run(cell, preacts, states, grads):
    """Return what step and back return, or raise TypeError or ValueError where it is not what it must be."""
    preacts, states, grads = (tuple(map(checks.read_only, each)) for each in (preacts, states, grads))
    step = lambda preacts, before: cell.step(cell.activate(preacts), before)  # noqa: E731
    after, kept = _called(cell, "step", step, (cell.states, cell.kept), preacts, states)
    return after, kept, *_called(cell, "back", cell.back, (cell.preacts, cell.carries), grads, states, after, kept)


def _called(cell, name, function, counts, *given):
    """Call one of a cell's functions; return two tuples of so many numbers, or say what is wrong with them."""
    try:
        found = function(*given)
    except (TypeError, ValueError) as error:
        numbers = f"{cell.preacts} preactivations and vectors, {cell.states} states and {cell.kept} kept numbers"
        raise type(error)(f"cell.{name} fails, of a cell of {numbers}: {error}") from error
    what = ("gradients at preactivations", "gradients past preactivations")
    what = ("next states", "kept numbers") if name == "step" else what
    if not isinstance(found, tuple) or [type(part) for part in found] != [tuple, tuple]:
        raise TypeError(f"cell.{name} must return two tuples, {what[0]} and {what[1]}, got {short_repr(found)}")
    like = given[0][0]
    for part, values, count in zip(what, found, counts, strict=True):
        if len(values) != count:
            raise ValueError(f"cell.{name} must return {count} {part}, got {len(values)}")
        for k, value in enumerate(values):
            if np.shape(value) != like.shape or value.dtype != like.dtype:
                got = short_repr(np.asarray(value))
                raise TypeError(f"cell.{name} must return {short_repr(like)} for {part}[{k}], got {got}")
            if not checks.all_finite(value):
                i = int(np.argmin(np.isfinite(value)))
                got = f"got {value[i]} for {part}[{k}], given {[[float(a[i]) for a in each] for each in given]}"
                raise ValueError(f"cell.{name} must return finite numbers, {got}{checks.why_lost(function, *given)}")
    return found


def _check_derivatives(cell, preacts, states, grads):
    """Hold what back returns for a gradient of one at each state against central differences, and its sum."""
    given, carried = np.concatenate([preacts, states]), np.zeros((cell.states - cell.carries, _UNITS))
    run = lambda given, grads: _run(cell, given[: cell.preacts], given[cell.preacts :], grads)  # noqa: E731
    names = [f"preactivation {k}" for k in range(cell.gates + cell.split)]
    names += [*(f"vector {name}" for name in cell.vectors), *(f"state {s}" for s in range(cell.states))]

    def back(grads):
        _, _, grad_preacts, past = run(given, grads)
        return np.array([*grad_preacts, *carried, *past])

    total = np.zeros(given.shape)
    for s, unit in enumerate(np.eye(cell.states)[..., None] * np.ones(_UNITS)):
        found = back(unit)
        total += grads[s] * found
        for k, (name, derivative) in enumerate(zip(names, found, strict=True)):
            nudge = np.zeros(given.shape)
            nudge[k] = _NUDGE
            up, down = (run(given + moved, grads)[0][s] for moved in (nudge, -nudge))
            measured = (up - down) / (2 * _NUDGE)
            off = np.abs(derivative - measured)
            if not off.max() <= _WITHIN * (1 + np.abs(measured).max()):
                worst = int(np.argmax(off))
                values = f"{measured[worst]:.6g} by central differences, {derivative[worst]:.6g} by cell.back"
                where = f"preactivations are {preacts[:, worst]} and states {states[:, worst]}"
                raise ValueError(f"the derivative of state {s} by {name} is {values}, where {where}")
    if not np.abs(back(grads) - total).max() <= _WITHIN * (1 + np.abs(total).max()):
        raise ValueError("cell.back must return, of several gradients, the sum of what it returns of each alone")


@np.errstate(all="ignore")
def _check_compiled(cell, dtype, rng):
    """Hold steps forward and back in compiled code against NumPy's."""
    compiled, size = implementation(layer.__name__, "cpu"), 5
    shapes = (4, 3, 2), (cell.states, 3, size), (5, 3, cell.states * size), *cell.shapes(2, size).values()
    x, start, grads, *own = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    params = cell.of_layer(dict(zip((f"{name}_l0" for name in cell.names), own, strict=True)), 0)
    found, expected = [], []
    for module, results in (compiled, found), (layer, expected):
        saved = layer.new_saved(cell, start, len(x))
        module.forward(cell, x, saved, *params)
        results += [*saved, np.array(module.preact_gradients(cell, *saved, grads))]
    names = "states", "kept numbers", "gradients at preactivations"
    for name, one, other in zip(names, found, expected, strict=True):
        if not checks.all_finite(other):
            why = checks.why_lost(layer.forward, cell, x, saved, *params)
            raise ValueError(f"{name} must be finite after {len(x)} steps of random numbers in {dtype.__name__}{why}")
        if not np.abs(one - other).max(initial=0) <= 1e3 * np.finfo(dtype).eps * (1 + np.abs(other).max(initial=0)):
            raise ValueError(f"compiled code must compute what NumPy does in {dtype.__name__}; {name} differ")
