"""Where a trainer's steps run: in this process, by what model and optimizer compute themselves."""

import time
from contextlib import nullcontext
from functools import partial

import numpy as np

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.cells.spans import Spans
from bppsa_nb.machine.checks import all_finite, check_count, check_has
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.machine.reprs import short_repr
from bppsa_nb.training.forward import share_of
from bppsa_nb.training.loss import check_order, cross_entropy


class LocalStrategy:
    """Steps in this process; `device.DeviceStrategy` and those of `bppsa_nb.distributed` have the same methods.

    `make` is always a callable that returns a batch: its inputs, its labels, and its lengths, if it has any.
    """

    steps = "in parts"  # how they run
    is_main_process = True  # which shows progress and writes files

    def check(self, model, optimizer, method, backend, levels, forward):
        """Raise what `Trainer` says it raises, unless these can be trained so."""
        check_parts(model, optimizer)
        forward.check(model)
        model.check_method(method, backend, levels)

    def check_dataset(self, dataset, batch_size):
        """Return what an epoch consists of, or raise TypeError or ValueError where a data set gives no batches."""
        batch_size = check_count("batch_size", batch_size, 1)
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "batch"):
            example = "bppsa_nb.training.datasets.ArrayDataset(x, y)"
            got = type(dataset).__name__
            raise TypeError(f"dataset must have a length and a method batch(indices), as {example} has, got {got}")
        if len(dataset) == 0:
            raise ValueError("dataset must hold at least one sample")
        return {"num_samples": len(dataset), "batch_size": batch_size}

    def collective_check(self):
        """Have what fails in a block fail wherever steps run, and what it puts into a dict be the same there."""
        return nullcontext({})

    def broadcast(self, number):
        """Return the integer that counts where each process has one."""
        return number

    def stoppable(self):
        """Have Ctrl-C end a block where all processes can be stopped."""
        return nullcontext()

    def stop_if_asked(self):
        """Raise KeyboardInterrupt if Ctrl-C was held back."""

    def batch(self, dataset, indices):
        """Return what this process needs of a batch."""
        return check_batch(dataset.batch(indices), len(indices))

    def take(self, trainer, *batch):
        """Take a step; return its loss."""
        with self.stoppable():
            loss, update = self.step(trainer, lambda: batch)
            with interrupts_held():
                update()
            self.stop_if_asked()
        return loss

    def step(self, trainer, make):
        """Compute one step; return its loss, and a call that writes the result into model and optimizer."""
        self._began = time.perf_counter()
        return self._compute(trainer, *make())

    def _compute(self, trainer, x, y, lengths=None):
        check_order(x, y)
        x, y, lengths = by_length(x, y, lengths)
        model = trainer.model
        activations = self._forward(trainer, x, lengths)
        loss, grad_logits = cross_entropy(activations.logits, y)
        grads = model.backward(activations, grad_logits, trainer.method, trainer.backend, trainer.levels)
        check_gradients(grads, f" after {len(x)} time steps" if x.ndim == 3 else "")  # sequences, not images
        return loss, partial(self._update, trainer, grads, activations)

    @staticmethod
    def _update(trainer, grads, activations):
        trainer.optimizer.step(trainer.model.params, grads)
        solved, share = getattr(activations, "solved", None), None  # other networks have no loop over time
        if solved:
            steps, *sizes = activations.x.shape
            steps = min(steps, trainer.forward.checkpoint_every or steps)
            share = share_of(trainer.model, (steps, *sizes), solved, trainer.backend)
        trainer.forward.remember(share)

    def seconds(self):
        """Return how long ago the last step began."""
        return time.perf_counter() - self._began

    def evaluate(self, trainer, make):
        """Return the summed loss of a batch, and how many of its samples are known."""
        x, y, *lengths = make()
        check_order(x, y)
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
    """Return a batch with its longest samples first, which takes the least time, and no more steps than these have."""
    if lengths is None or type(x) is not np.ndarray or x.ndim != 3 or np.shape(y) != x.shape[1:2]:
        return x, y, lengths
    lengths = Spans.checked(lengths, None, x).lengths
    order = np.argsort(-lengths, kind="stable")
    return np.ascontiguousarray(x[: lengths.max(initial=0), order]), np.asarray(y)[order], lengths[order]


def whole_samples(x, y, lengths=None):
    """Return inputs and labels of a batch, or raise ValueError for lengths, which ranks do not know."""
    if lengths is not None:
        raise ValueError(f"lengths must be None with comm, got {short_repr(lengths)}")
    return x, y


def check_parts(model, optimizer):
    """Raise TypeError unless a model and an optimizer have what a trainer needs of them."""
    check_has("model", model, ("params", "forward", "backward", "check_method"), "bppsa_nb.RNN(1, 20, 10)")
    check_has("optimizer", optimizer, ("step", "settings", "zeros", "state", "steps"), "bppsa_nb.Adam()")


def check_gradients(grads, after=""):
    """Raise FloatingPointError unless all gradients are finite; `after` says how many steps back they go."""
    for name, grad in grads.items():
        if not all_finite(grad):
            what = f"the gradient of {name} overflows {grad.dtype}{after}"
            raise FloatingPointError(f"{what}; the parameters were not updated")


def differs(part, kinds):
    """Tell whether an object is of another class than these, or has a method of its own."""
    return type(part) not in kinds or any(callable(getattr(type(part), name, None)) for name in vars(part))


def is_recurrent(model):
    """Tell whether a model is what `Recurrent` makes of a cell: neither its class nor itself has methods of its own."""
    kinds = type(model).__mro__
    own = [model, *kinds[: kinds.index(Recurrent)]] if Recurrent in kinds else []
    public = {name for name, value in vars(Recurrent).items() if callable(value) and not name.startswith("__")}
    return bool(own) and not any(public & vars(each).keys() for each in own)
