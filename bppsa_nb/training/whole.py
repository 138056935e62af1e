"""Whole training steps of recurrent layers on a CPU: what comes in is looked at once, and what came out at the end.

Loops forward and back, loss and update are those of a step in parts, without the checks that each part makes for
itself. A step that these would refuse shows in two ways: its arguments are not what was settled, or some number of the
update is not finite, as one NaN or infinity anywhere would have it. Then nothing has changed, and the step in parts
gives the answer or says by name what is wrong.
"""

from functools import partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter, is_

import numpy as np
from numpy.lib.array_utils import byte_bounds

from bppsa_nb.cells import stacked
from bppsa_nb.cells.backward_cpu import Loops
from bppsa_nb.cells.unroll import SolverOptions
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.training import optimizers_cpu
from bppsa_nb.training.local import LocalStrategy, differs, is_recurrent
from bppsa_nb.training.loss_cpu import cross_entropy
from bppsa_nb.training.optimizers import SGD, Adam

_UPDATES = {SGD: optimizers_cpu.sgd, Adam: optimizers_cpu.adam}
_KEPT = 2**22  # states of a shape, for which room is kept
_layout = attrgetter("shape", "flags.carray")


class WholeStrategy(LocalStrategy):
    """Steps of a cell's layers and nothing else, in loops, by exactly `SGD` or `Adam`; all others go in parts."""

    steps = "whole"

    def __init__(self):
        self._known = None

    def __reduce__(self):
        return WholeStrategy, ()  # copies find arrays of their own

    def take(self, trainer, *batch):
        """Take a step; return its loss. What changes does so within one call, so that Ctrl-C need not be held back."""
        loss, update = self._compute(trainer, *batch)
        update()
        return loss

    def _compute(self, trainer, x, y, lengths=None):
        if lengths is not None:
            return self._in_parts(trainer, x, y, lengths)
        known = self._known
        if known is None or not known.holds(trainer.model, trainer.optimizer):
            known = self._known = _known(trainer.model, trainer.optimizer)
        layers = known.layers_for(trainer, x, y) if known is not None else None
        if layers is None:
            return self._in_parts(trainer, x, y)
        with np.errstate(all="ignore"):
            loss = known.find_gradients(layers, *stacked.plain(x), y)
            update = known.update()
        return loss, partial(self._commit, trainer, x, y, update)

    def _commit(self, trainer, x, y, update):
        if not update():
            self._in_parts(trainer, x, y)[1]()

    def _in_parts(self, trainer, *batch):
        loss, update = super()._compute(trainer, *batch)

        def held():
            with interrupts_held():
                update()

        return loss, held


class _Known:
    """Parameters and averages that were looked at, as rows of numbers, and room for a step of each shape."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.state, self.count = model, optimizer, optimizer.state, optimizer.count
        self.groups = model.params, *self.state.values()
        self.arrays = [array for group in self.groups for array in group.values()]
        self.layouts = list(map(_layout, self.arrays))
        self.attributes = len(vars(model)), len(vars(optimizer))
        self.rows = tuple(array.reshape(-1) for array in self.arrays)
        *ends, size = accumulate(array.size for array in model.params.values())
        self.grads = np.empty(size, model.dtype)
        weight, self.of_bias = np.split(self.grads, ends)[-2:]
        self.of_weight = weight.reshape(model.params["fc.weight"].shape)
        self.room = {}

    def holds(self, model, optimizer):
        """Tell whether all is still what it was: the same arrays, of the same layout."""
        same = model is self.model and optimizer is self.optimizer
        if not same or optimizer.state is not self.state or optimizer.count is not self.count:
            return False
        groups = model.params, *self.state.values()
        if len(groups) != len(self.groups) or not all(map(is_, groups, self.groups)):
            return False
        arrays = list(chain.from_iterable(map(dict.values, groups)))
        return (
            len(arrays) == len(self.arrays)
            and all(map(is_, arrays, self.arrays))
            and list(map(_layout, arrays)) == self.layouts
            and (len(vars(model)), len(vars(optimizer))) == self.attributes
        )

    def layers_for(self, trainer, x, y):
        """Return the `Loops` of all layers, or None where inputs or labels do not fit, or a step is not in loops.

        Numbers that are not finite, and labels that are no classes, show later.
        """
        if not type(x) is type(y) is np.ndarray or x.dtype != self.model.dtype or x.ndim != 3:
            return None
        if x.shape[2] != self.model.input_size or x.shape[1:2] != y.shape or y.dtype.kind not in "iu" or not y.size:
            return None
        forward, how = trainer.forward, (trainer.method, trainer.backend, trainer.levels)
        how += forward.method, forward.rest > 0, forward.checkpoint_every
        made = self.room.get(x.shape)
        if made is None or made[0] != how:
            made = how, self._layers(x.shape) if _in_loops(trainer, x.shape) else None
            if len(self.room) > 3 or x.shape[0] * x.shape[1] * self.model.hidden_size > _KEPT:
                self.room.clear()  # of full batches, the last one of an epoch, and the same of a test
            self.room[x.shape] = made
        return made[1]

    def _layers(self, shape):
        cell, H, count = self.model.cell, self.model.hidden_size, len(self.model.cell.names)
        params = [self.arrays[count * i : count * (i + 1)] for i in range(self.model.num_layers)]
        return [Loops(cell, own, (*shape[:2], H if i else shape[2])) for i, own in enumerate(params)]

    def find_gradients(self, layers, x, y):
        """Go forward and back; return the loss, and leave the gradients in their places."""
        inputs = [x, *(layer.hidden[1:] for layer in layers[:-1])]
        for layer, below in zip(layers, inputs, strict=True):
            layer.forward(below)
        last = layers[-1].hidden[-1]
        loss, at_logits = cross_entropy(stacked.logits(self.model, last), y)
        found, grad = stacked.from_logits(self.model, last, at_logits)
        self.of_weight[...], self.of_bias[...] = found.values()
        grad = stacked.at_end(grad, None, layers[-1].states)
        local, end = None, self.grads.size - found["fc.weight"].size - found["fc.bias"].size
        for i in reversed(range(len(layers))):
            total, local = layers[i].backward(inputs[i], grad, local, i > 0)
            self.grads[end - total.size : end], end = total, end - total.size
            grad = stacked.at_end(None, local, layers[i - 1].states) if i else None
        return loss

    def update(self):
        """Return a call that takes the optimizer's step, or changes nothing and returns False: it might overflow."""
        settings = optimizers_cpu.factors(self.optimizer, self.grads.dtype)
        return partial(_UPDATES[type(self.optimizer)], self.rows, self.grads, settings, self.count)


def _in_loops(trainer, shape):
    """Tell whether both ways of a step of a shape (T, B, I) are loops on a CPU."""
    steps, model, forward = shape[0], trainer.model, trainer.forward
    if not steps or forward.rest or forward.checkpoint_every is not None:
        return False
    try:
        method, backend, _ = model.choose(trainer.method, trainer.backend, trainer.levels, shape)
        options = SolverOptions(**{"method": "auto"} | forward.how())
    except (TypeError, ValueError, RuntimeError):  # which a step in parts raises, unless something else comes first
        return False
    there, _ = stacked.resolve_method(model, options, shape, "cpu")
    return backend == "cpu" and method == there.method == "linear"


def _known(model, optimizer):
    """Return a `_Known`, or None unless model and optimizer are exactly what whole steps know."""
    state, params = optimizer.state, model.params
    if not is_recurrent(model) or differs(optimizer, (SGD, Adam)) or optimizer.count.dtype != np.int64:
        return None
    # Without a state of the optimizer the first step goes in parts, which makes one.
    if type(params) is not dict or type(state) is not dict or list(state) != list(optimizer.zeros({})):
        return None
    expected = [(name, model.dtype, (shape, True)) for name, shape in model.shapes().items()]
    for group in (params, *state.values()):
        if type(group) is not dict or not all(type(array) is np.ndarray for array in group.values()):
            return None
        if [(name, array.dtype, _layout(array)) for name, array in group.items()] != expected:
            return None
    memory = sorted(byte_bounds(array) for group in (params, *state.values()) for array in group.values())
    if any(end > start for (_, end), (start, _) in pairwise(memory)):  # of parameters that are one
        return None
    return _Known(model, optimizer)
