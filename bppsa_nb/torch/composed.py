"""Layers once more, of PyTorch's own operations: for those who differentiate a backward pass, or transform a call."""

from functools import cache
from inspect import getclosurevars
from itertools import compress

import torch
from torch.nn.functional import linear

from bppsa_nb.cells.cell import NAMES
from bppsa_nb.machine import pointwise

_FORMS = {getattr(pointwise, name): getattr(torch, name) for name in ("tanh", "sigmoid", "relu", "where")}
_FORMS |= {pointwise.constant: lambda value, like: value}


@cache
def _for_tensors(function):
    """Return a cell's function for tensors."""
    if function in _FORMS:
        return _FORMS[function]
    function = getattr(function, "py_func", function)  # of one that Numba compiles
    called = getclosurevars(function)
    compiled = [each for each in (*called.globals.values(), *called.nonlocals.values()) if hasattr(each, "py_func")]
    return pointwise.with_own(function, _FORMS | {each: _for_tensors(each) for each in compiled})


def gradients(ctx, grads):
    """Return what `Solve.backward` returns with its `ctx`, by operations that PyTorch can differentiate and batch."""
    needed = ctx.needs_input_grad[3:]
    tensors = ctx.saved_tensors[: len(needed)]
    # Each under a name of its own: one may depend on another, or be given twice.
    with torch.enable_grad():
        own = [tensor.view_as(tensor) for tensor in tensors]
        outputs = run(ctx, ctx.sequences, ctx.every, *own)
    read = [each is not None for each in grads]
    outputs, grads, wanted = list(compress(outputs, read)), list(compress(grads, read)), list(compress(own, needed))
    found = iter(torch.autograd.grad(outputs, wanted, grads, None, torch.is_grad_enabled(), allow_unused=True))
    return None, None, None, *(next(found) if need else None for need in needed)


def run(layers, sequences, every, given, *tensors):
    """Return what `Solve.forward` returns, of layers that have a `cell`, and of the same tensors; step by step."""
    cell, spans, found = layers.cell, sequences.spans, []
    starts, params, x = sequences.of_each(tensors[: cell.states]), tensors[cell.states :], sequences.steps(given)
    for layer in range(len(starts[0])):
        own = params[len(cell.names) * layer :][: len(cell.names)]
        found.append(_through_steps(cell, x, [each[layer] for each in starts], own, spans))
        x = found[-1][0]
    last = [[sequences.by_sample(spans.last(each)) for each in of_layer] for of_layer in found]
    states = [[sequences.given(each) for each in of_layer] for of_layer in found if every]
    return sequences.given(x), *map(torch.stack, (*zip(*last, strict=True), *zip(*states, strict=True)))


def _through_steps(cell, x, starts, params, spans):
    """Return a layer's states [shape=(T, B, H)], of inputs [shape=(T, B, I)]; see `bppsa_nb.cells.layer.forward`."""
    params = dict(zip(cell.names, params, strict=True))
    weight_ih, weight_hh, bias_ih, bias_hh = map(params.get, NAMES)
    whole, several, states = cell.gates - cell.split, spans.places.size, []
    step, activations = _for_tensors(cell.step), tuple(map(_for_tensors, cell.activations))
    bias, vectors = bias_ih if bias_hh is None or cell.split else bias_ih + bias_hh, [params[e] for e in cell.vectors]
    cell, products = cell._replace(activations=activations), linear(x, weight_ih, bias).unbind()
    before = [each[spans.places[1] == 0] for each in starts] if several else starts
    for t in range(len(x)):
        if not spans.whole and (numbers := spans.resets[t]).any():
            anew = torch.from_numpy(numbers != 0).to(x.device)[:, None]
            begun = [each[numbers.clip(1) - 1] for each in starts] if several else [0] * cell.states
            before = [torch.where(anew, *both) for both in zip(begun, before, strict=True)]
        if cell.split:
            of_x, of_h = (each.chunk(cell.gates, 1) for each in (products[t], linear(before[0], weight_hh, bias_hh)))
            preacts = *of_x[whole:], *map(torch.add, of_x[:whole], of_h[:whole]), *of_h[whole:]
        else:
            preacts = products[t] if cell.elementwise else torch.addmm(products[t], before[0], weight_hh.T)
            preacts = preacts.chunk(cell.gates, 1) if cell.gates > 1 else (preacts,)
        before = step(cell.activate((*preacts, *vectors)), tuple(before))[0]
        states.append(before)
    return list(map(torch.stack, zip(*states, strict=True)))
