"""A trainer's step: the gradients of a batch's loss, and then an update that changes everything or nothing.

`Step` is a step of one shape, prepared: a batch is looked at once, runs through all layers forward and back, and what
came out is looked at in the end. `bppsa_nb.training.step_cuda` has its counterpart for a GPU, which is recorded once
and replayed. `Local` takes a trainer's steps in this process; those of `bppsa_nb.distributed` take them over ranks.
"""

import time
import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np

from bppsa_nb.cells import stack
from bppsa_nb.cells.cell import Spans
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.cells.unroll import share_of
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import all_finite, as_array, check_has, short_repr
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.memory import contiguous
from bppsa_nb.machine.parameters import Parameters
from bppsa_nb.training.loss import check_order, cross_entropy, first_places, mean_loss
from bppsa_nb.training.optimizers import KINDS

_KEPT = 2**22  # states of a shape, for which arrays are kept


class Step:
    """A step of recurrent layers on the host, for batches of a shape (T, B, I), T at least 1.

    `how` is the method, the backend and the levels by which gradients go back, `options` say how states are found.
    What is not finite is found in the end: any NaN or infinity shows in the update.
    """

    def __init__(self, model, optimizer, shape, how, options, shared):
        self.model, self.optimizer, self.shape, self.backend = model, optimizer, shape, how[1]
        self.params, self.grads = model.params, np.empty(model.params.flat.shape, model.dtype)
        self.layers = stack.Host(model, shape, self.backend, options, how)
        self.head = model.head
        sizes = [sum(param.size for param in params) for params in (*self.layers.params, self.head[:1])]
        self.parts = np.split(self.grads, np.cumsum(sizes))  # of every layer; the head's weights, its biases
        self.layers.states[:, :, 0], self.chunked = 0, self.layers.options.method != "linear"
        self.starts, self.rows = [None] * model.num_layers, first_places(shape[1], model.num_classes)

    def run(self, x, labels):
        """Go forward and back; return the loss. Nothing has changed yet."""
        with np.errstate(all="ignore"):
            stack.forward(self.layers, x, self.starts)
            last = self.layers.hidden[-1][-1]
            loss, at_logits = mean_loss(stack.logits(self.head, last), self.rows + labels)
            of_weight, of_bias, end = stack.from_logits(self.head, last, at_logits)
            stack.backward(self.layers, x, [*self.starts[1:], end])
            for part, grad in zip(self.parts, (*self.layers.flat, of_weight.reshape(-1), of_bias), strict=True):
                part[...] = grad
        return loss

    def commit(self):
        """Update the parameters; return False, and change nothing, if something would not be finite."""
        there = implementation("bppsa_nb.training.optimizers", self.backend)
        return there.step(self.optimizer, self.params, self.grads)

    def share(self):
        """Predict the time that the forward pass took in chunks, in that of the loop."""
        return share_of(self.model, self.shape, self.layers.solved, self.backend)


class Local:
    """Steps of a trainer in this process; those of `bppsa_nb.distributed` have the same methods.

    What is whole, and what goes in parts, is said of `steps` by `Trainer`. `make` is always a callable that returns a
    batch: its inputs, its labels, and its lengths, if it has any.
    """

    is_main_process = True  # which shows progress and writes files

    def __init__(self, model, optimizer, backend):
        there, known = backends.resolve(backend), _is_known(model, optimizer)
        if there == "cuda" and isinstance(model, Recurrent) and not known:
            warnings.warn(
                "whole steps run on the GPU only of a cell's layers and nothing else, by SGD or Adam; of other models "
                "and optimizers, forward and backward of the model and the optimizer's step are called",
                stacklevel=4,  # who made the trainer
            )
        self._known, self._made, self._shared = (), {}, {}

    def __getstate__(self):
        return vars(self) | {"_known": (), "_made": {}, "_shared": {}}  # copies make arrays of their own

    def steps(self, trainer):
        """Say how a trainer's steps run."""
        if trainer.forward.checkpoint_every is not None or not _is_known(trainer.model, trainer.optimizer):
            return "in parts"
        return "on the GPU" if backends.resolve(trainer.backend) == "cuda" else "whole"

    def check(self, model, optimizer, method, backend, levels, forward):
        """Raise what `Trainer` says it raises, unless these can be trained so."""
        check_parts(model, optimizer, forward)
        model.check_method(method, backend, levels)

    def check_dataset(self, dataset, batch_size):
        """Return what an epoch consists of, or raise TypeError or ValueError where a data set gives no batches."""
        check_has("dataset", dataset, ("__len__", "batch"), "bppsa_nb.training.datasets.ArrayDataset(x, y)")
        if len(dataset) == 0:
            raise ValueError("dataset must hold at least one sample")
        return {"num_samples": len(dataset), "batch_size": batch_size}

    def collective_check(self):
        """Have what fails in a block fail wherever steps run, and what it puts into a dict be the same there."""
        return nullcontext({})

    def broadcast(self, number):
        """Return the integer that counts where each process has one."""
        return number

    def batch(self, dataset, indices):
        """Return what this process needs of a batch."""
        return check_batch(dataset.batch(indices), len(indices))

    def step(self, trainer, make):
        """Compute one step; return its loss, and a call that writes the result into model and optimizer."""
        self._began = time.perf_counter()
        return self._compute(trainer, *make())

    def _compute(self, trainer, x, y, lengths=None):
        step = self._prepared(trainer, x, y) if lengths is None else None
        if step is None:
            return self._compute_parts(trainer, x, y, lengths)
        return step.run(*contiguous(x), y), partial(self._commit, trainer, step, x, y)

    def _commit(self, trainer, step, *batch):
        if step.commit():
            if step.chunked or trainer.forward.rest:
                trainer.forward.remember(step.share() if step.chunked else None)
        else:  # in parts, the step says by name what is wrong
            self._compute_parts(trainer, *batch)[1]()

    def _prepared(self, trainer, x, y):
        """Return a `Step` for a batch, or None where it goes in parts. Numbers that are not finite show later."""
        model, optimizer, forward = trainer.model, trainer.optimizer, trainer.forward
        known = self._known
        sizes = len(vars(model)), len(vars(optimizer))  # more where somebody has overridden a method
        if not known or known[:2] != (model, optimizer) or known[2] is not model.cell or known[3:] != sizes:
            known = (model, optimizer, model.cell, *sizes) if _is_known(model, optimizer) else ()
            self._known, self._made, self._shared = known, {}, {}
        if not known or not type(x) is type(y) is np.ndarray or x.dtype != model.dtype or x.ndim != 3:
            return None
        # Labels are integers that fit into 64 bits with a sign.
        if x.shape[2] != model.input_size or x.shape[1:2] != y.shape or y.dtype.char not in "bhilqBHI" or not y.size:
            return None
        if not (len(x) and 0 <= np.minimum.reduce(y) and np.maximum.reduce(y) < model.num_classes):
            return None
        how = trainer.method, trainer.backend, trainer.levels
        how += forward.method, forward.rest > 0, forward.checkpoint_every
        made = self._made.get(x.shape)
        if made is None or made[0] != how:
            if len(self._made) > 3 or x.shape[0] * x.shape[1] * model.hidden_size > _KEPT:
                self._made.clear()  # of full batches, the last one of an epoch, and the same of a test
            made = self._made[x.shape] = how, self._new_step(trainer, x.shape)
        return made[1]

    def _new_step(self, trainer, shape):
        model, forward = trainer.model, trainer.forward
        try:
            how, options = model.choose(trainer.method, trainer.backend, trainer.levels, shape), forward.options()
        except (TypeError, ValueError, RuntimeError):  # which a step in parts raises, unless something else comes first
            return None
        if forward.checkpoint_every is not None or (how[1] == "cuda" and options.method == "newton"):
            return None
        kind = implementation(__name__, "cuda").Step if how[1] == "cuda" else Step
        return kind(model, trainer.optimizer, shape, how, options, self._shared)

    def _compute_parts(self, trainer, x, y, lengths=None):
        """Compute one step by what model and optimizer compute themselves."""
        x, y, lengths = by_length(x, y, lengths)
        model = trainer.model
        activations = self._forward(trainer, x, lengths)
        loss, grad_logits = cross_entropy(activations.logits, y)
        grads = model.backward(activations, grad_logits, trainer.method, trainer.backend, trainer.levels)
        check_gradients(grads, f" after {len(x)} time steps" if x.ndim == 3 else "")  # sequences, not images
        return loss, partial(self._update, trainer, grads, activations)

    @staticmethod
    def _update(trainer, grads, activations):
        solved, share = getattr(activations, "solved", None), None  # other networks have no loop over time
        if solved:
            steps, *sizes = activations.x.shape
            steps = min(steps, trainer.forward.checkpoint_every or steps)
            share = share_of(trainer.model, (steps, *sizes), solved, trainer.backend)
        trainer.optimizer.step(trainer.model.params, grads)
        trainer.forward.remember(share)

    def seconds(self):
        """Return how long ago the last step began."""
        return time.perf_counter() - self._began

    def evaluate(self, trainer, make):
        """Return the summed loss of a batch, and how many of its samples are known."""
        x, y, *lengths = make()
        x, y, lengths = by_length(x, y, *lengths)
        logits = self._forward(trainer, x, lengths).logits
        return cross_entropy(logits, y)[0] * len(y), np.count_nonzero(logits.argmax(axis=1) == y)

    def predict(self, trainer, x, lengths=None):
        """Return the most likely class of every sample."""
        return self._forward(trainer, x, lengths).logits.argmax(axis=1)

    @staticmethod
    def _forward(trainer, x, lengths=None):
        how = trainer.forward.how()
        if lengths is not None:
            if not isinstance(trainer.model, Recurrent):
                raise ValueError(f"lengths must be None for a {type(trainer.model).__name__}, which has no steps")
            how["lengths"] = lengths
        return trainer.model.forward(x, backend=trainer.backend, **how)


def check_batch(batch, count):
    """Return a data set's batch, or raise TypeError or ValueError unless it is one of `count` samples."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        what = "inputs and labels, (x, y), and lengths, if there are any"
        raise TypeError(f"dataset.batch must return {what}, got {short_repr(batch)}")
    if hasattr(batch[1], "__len__") and len(batch[1]) != count:
        raise ValueError(f"dataset.batch must return labels of the {count} samples asked for, got {len(batch[1])}")
    return batch


def by_length(x, y, lengths=None):
    """Return a batch with its longest samples first, which takes the least time, and no more steps than these have.

    ValueError if the samples of sequences, and not the steps, come first.
    """
    check_order(x, y)
    lengths = None if lengths is None else as_array("lengths", lengths)
    known = lengths is not None and type(x) is np.ndarray and lengths.dtype.kind in "iu"
    if not known or not x.shape[1:2] == np.shape(y) == lengths.shape:
        return x, y, lengths  # as far as they are wrong, `forward` says so
    lengths = Spans.checked(lengths, None, x).lengths
    order = np.argsort(-lengths, kind="stable")
    return np.ascontiguousarray(x[: lengths.max(initial=0), order]), np.asarray(y)[order], lengths[order]


def whole_samples(x, y, lengths=None):
    """Return inputs and labels of a batch, or raise ValueError for lengths, which ranks do not know."""
    if lengths is not None:
        raise ValueError(f"lengths must be None with comm, got {short_repr(lengths)}")
    return x, y


def check_parts(model, optimizer, forward):
    """Raise TypeError or ValueError unless a model and an optimizer have what a trainer needs, and `forward` fits."""
    check_has("model", model, ("params", "forward", "backward", "check_method"), "bppsa_nb.RNN(1, 20, 10)")
    check_has("optimizer", optimizer, ("step", "settings", "zeros", "state", "steps"), "bppsa_nb.Adam()")
    if isinstance(model.params, Parameters):
        model.params.seal()
    loops = getattr(type(model), "forward", None) is Recurrent.forward
    for name, value, usual in ("forward", forward.method, "auto"), ("checkpoint_every", forward.checkpoint_every, None):
        if value != usual and not loops:
            kind = type(model).__name__
            raise ValueError(f"{name} must be {usual!r} for a {kind}, which has no loop over time, got {value!r}")


def check_gradients(grads, after=""):
    """Raise FloatingPointError unless all gradients are finite; `after` says how many steps back they go."""
    for name, grad in grads.items():
        if not all_finite(grad):
            what = f"the gradient of {name} overflows {grad.dtype}{after}"
            raise FloatingPointError(f"{what}; the parameters were not updated")


def _is_known(model, optimizer):
    """Tell whether a model is what `Recurrent` makes of a cell, and an optimizer one of ours, without own methods."""
    kinds, kind = type(model).__mro__, type(optimizer)
    own = [model, *kinds[: kinds.index(Recurrent)]] if Recurrent in kinds else []
    owned = {name: value for name, value in vars(Recurrent).items() if not name.startswith("__")}
    public = {name for name, value in owned.items() if callable(value) or isinstance(value, property)}
    if not own or any(public & vars(each).keys() for each in own) or model.params.shapes != model.shapes():
        return False
    return kind in KINDS and not any(callable(getattr(kind, name, None)) for name in vars(optimizer))
