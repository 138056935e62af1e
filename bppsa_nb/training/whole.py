"""Whole training steps of an RNN or a GRU on a CPU: what comes in is looked at once, and what came out at the end.

Forward pass, loss, backward pass and update are the same functions that a step in parts calls, without the checks that
each of them makes for itself. A step that they would refuse shows in two ways: its arguments are not those that were
settled, or some number of the update is not finite, as one NaN or infinity anywhere would have it. Then nothing has
changed, and the step in parts gives the answer or says by name what is wrong.
"""

from functools import partial
from itertools import accumulate, chain
from operator import attrgetter, is_

import numpy as np

from bppsa_nb.cells import stacked
from bppsa_nb.cells.backward_cpu import Loops
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.layer import NAMES
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.cells.unroll import SolverOptions
from bppsa_nb.chains.backprop import choose
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.training import optimizers_cpu
from bppsa_nb.training.forward import share_of
from bppsa_nb.training.local import LocalStrategy, differs
from bppsa_nb.training.loss_cpu import cross_entropy
from bppsa_nb.training.optimizers import SGD, Adam

_UPDATES = {SGD: optimizers_cpu.sgd, Adam: optimizers_cpu.adam}
_SMALL = 2**17  # states
_layout = attrgetter("shape", "flags.carray")


class WholeStrategy(LocalStrategy):
    """Steps of exactly an `RNN` or a `GRU`, by exactly `SGD` or `Adam`; what is anything else goes in parts."""

    steps = "whole"

    def __init__(self):
        self._settled, self._ways = None, {}

    def __reduce__(self):
        return WholeStrategy, ()  # copies find arrays of their own

    def take(self, trainer, x, y):
        """Take a step; return its loss. What changes does so within one call, so that Ctrl-C need not be held back."""
        loss, update = self._compute(trainer, x, y)
        update()
        return loss

    def _compute(self, trainer, x, y):
        model, settled, way = trainer.model, self._settle(trainer.model, trainer.optimizer), None
        if settled is not None and settled.takes(x, y):
            way = self._way(trainer, x.shape)
        if way is None:
            loss, update = super()._compute(trainer, x, y)
            return loss, partial(_held, update)
        options, how = way
        with np.errstate(all="ignore"):
            if options.method == how[0] == "linear" and settled.is_small(x.shape):
                loss, grads, solved = settled.by_loops(x, y), None, ()
            else:
                h0 = np.zeros((model.num_layers, x.shape[1], model.hidden_size), model.dtype)
                saved, solved = stacked.forward(model, x, h0, options, "cpu")
                last = saved[-1][0][-1]
                loss, grad_logits = cross_entropy(stacked.logits(model, last), y)
                grads, at_last = stacked.from_logits(model, last, grad_logits)
                grads |= stacked.backward(model, x, saved, [None] * (len(saved) - 1) + [at_last], None, how)[0]
            update = settled.update(grads)
        return loss, partial(self._commit, trainer, x, y, update, solved)

    def _commit(self, trainer, x, y, update, solved):
        if not trainer.forward.rest and not any(solved):
            done = update()
        else:
            share = share_of(trainer.model, x.shape, solved, "cpu")
            with interrupts_held():
                if done := update():
                    trainer.forward.remember(share)
        if not done:
            _, update = super()._compute(trainer, x, y)
            _held(update)

    def _settle(self, model, optimizer):
        settled = self._settled
        if settled is None or not settled.holds(model, optimizer):
            settled = self._settled = _settled(model, optimizer)
        return settled

    def _way(self, trainer, shape):
        """Return how a step of a shape goes, forward and back; None if it goes in parts."""
        forward, asked = trainer.forward, (trainer.method, trainer.backend, trainer.levels)
        asked += forward.method, forward.rest > 0, forward.checkpoint_every
        known = self._ways.get(shape)
        if known is None or known[0] != asked:
            if len(self._ways) > 1000:  # sequences of every length
                self._ways.clear()
            known = self._ways[shape] = asked, _way(trainer, shape)
        return known[1]


def _held(update):
    with interrupts_held():
        update()


def _way(trainer, shape):
    """Return what `WholeStrategy` keeps of a shape (T, B, I)."""
    (steps, batch, _), model, forward = shape, trainer.model, trainer.forward
    sizes = (steps, batch, model.hidden_size), model.dtype, model.gate_blocks
    try:
        how = choose(trainer.method, trainer.backend, trainer.levels, *sizes)
    except (TypeError, ValueError, RuntimeError):  # which a step in parts raises, unless something else comes first
        return None
    if how[1] != "cpu" or forward.checkpoint_every is not None:
        return None
    options = SolverOptions(**{"method": "auto"} | forward.how())
    return stacked.resolve_method(model, options, shape, "cpu")[0], how


class _Settled:
    """Parameters and averages that were looked at, with rows of numbers for compiled code."""

    def __init__(self, model, optimizer, names, state):
        self.model, self.optimizer, self.state, self.count = model, optimizer, state, optimizer.count
        self.groups = model.params, *state.values()
        self.arrays = [group[name] for group in self.groups for name in names]
        self.names, self.attributes = names, (len(vars(model)), len(vars(optimizer)))
        self.layouts = [(shape, True) for shape in model.shapes().values()]
        self.rows = tuple(array.reshape(-1) for array in self.arrays)
        ends = list(accumulate(row.size for row in self.rows[: len(names)]))
        self.flat, self.found = np.empty(ends[-1], model.dtype), np.empty((len(self.groups), ends[-1]), model.dtype)
        parts = np.split(self.flat, ends[:-1])
        self.loops = {}  # by the shape of x
        self.grads = {name: part.reshape(model.params[name].shape) for name, part in zip(names, parts, strict=True)}

    def holds(self, model, optimizer):
        """Tell whether all is still what it was: the same arrays of the same layout."""
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
            and list(map(_layout, arrays[: len(self.names)])) == self.layouts
            and (len(vars(model)), len(vars(optimizer))) == self.attributes
        )

    def takes(self, x, y):
        """Tell whether inputs and labels fit; numbers that are not finite, and no classes, show later."""
        if not type(x) is type(y) is np.ndarray or x.dtype != self.model.dtype or x.ndim != 3:
            return False
        fits = x.shape[2] == self.model.input_size and x.shape[1:2] == y.shape
        return fits and y.dtype.kind in "iu" and y.size > 0

    def is_small(self, shape):
        """Tell whether a step is so short that what is around its loops counts, and room for it may be kept."""
        return self.model.num_layers == 1 and shape[0] * shape[1] * self.model.hidden_size < _SMALL

    def by_loops(self, x, y):
        """Take one layer there and back; return the loss, and leave the gradients in their places."""
        model = self.model
        loops = self.loops.get(x.shape)
        if loops is None:
            if len(self.loops) > 3:  # a full batch, the last one of an epoch, and two of a test
                self.loops.clear()
            cell = implementation(model.cell_module, "cpu")
            loops = self.loops[x.shape] = Loops(cell, self.arrays[: len(NAMES)], x.shape)
        (x,) = stacked.plain(x)
        last = loops.forward(x)
        loss, grad_logits = cross_entropy(stacked.logits(model, last), y)
        grads, at_last = stacked.from_logits(model, last, grad_logits)
        total = loops.backward(x, at_last)
        self.flat[: len(total)] = total
        for name, grad in grads.items():
            self.grads[name][...] = grad
        return loss

    def update(self, grads):
        """Return a call that takes the optimizer's step, or changes nothing and returns False where it overflows.

        Gradients are a dict, or None if they are in their places.
        """
        for name in grads or ():
            self.grads[name][...] = grads[name]
        settings = np.array(optimizers_cpu.factors(self.optimizer), self.flat.dtype)
        return partial(_UPDATES[type(self.optimizer)], self.rows, self.flat, self.found, settings, self.count)


def _settled(model, optimizer):
    """Return a `_Settled`, or None unless model and optimizer are exactly what whole steps know."""
    state, params = optimizer.state, model.params
    if differs(model, (RNN, GRU)) or differs(optimizer, (SGD, Adam)) or optimizer.count.dtype != np.int64:
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
    return _Settled(model, optimizer, list(params), state)
