"""Training on MPI ranks: samples shared out among replicas of a model, steps among the ranks of each."""

import sys
import time
from contextlib import contextmanager
from functools import partial

import numpy as np

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.distributed import ranks
from bppsa_nb.machine.checks import check_count, check_kind
from bppsa_nb.multigrid.model import ResidualModel
from bppsa_nb.training.loss import check_labels, check_order, cross_entropy
from bppsa_nb.training.step import Local, check_batch, check_gradients, check_parts, whole_samples


def add_up(group, arrays):
    """Add up a dict of arrays over all ranks, in one message; every rank gets the same bits."""
    total = np.concatenate([array.ravel() for array in arrays.values()])
    group.timed(group.comm.Allreduce, sys.modules["mpi4py.MPI"].IN_PLACE, total)  # the same result, says the standard
    ends = np.cumsum([array.size for array in arrays.values()])
    parts = zip(arrays.items(), np.split(total, ends[:-1]), strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in parts}


class ReplicaStrategy(Local):
    """Steps of a trainer on MPI ranks, which go on together, or not at all; its methods are those of `Local`.

    A replica is as many consecutive ranks as share the steps of a sequence: `sequence_ranks`, or all of them if that is
    None; all share the layers of a ResidualModel, whose samples are whole. Rank r has place ``r % places`` in replica
    ``r // places``; `comm` has the places of this rank's replica, samples are cut into so many `parts`. TypeError or
    ValueError if `comm` is no communicator, or cannot be cut into replicas of one size.
    """

    def __init__(self, model, comm, sequence_ranks):
        self.group = ranks.group(comm)
        self.is_main_process = self.group.rank == 0
        self._seconds = 0.0
        size = self.group.size
        with self.group.collective_check() as gather:
            if isinstance(model, ResidualModel) and sequence_ranks is not None:
                raise ValueError(f"sequence_ranks is for an RNN or a GRU, which have steps, got {sequence_ranks!r}")
            places = size if sequence_ranks is None else check_count("sequence_ranks", sequence_ranks, 1)
            if size % places:
                raise ValueError(f"sequence_ranks must divide the number of ranks, {size}, got {places}")
            gather(alike={"sequence_ranks": str(places)})
        self.places, self.replicas = places, size // places
        self.parts = 1 if isinstance(model, ResidualModel) else places
        self.replica, self.place = divmod(self.group.rank, self.places)
        split = self.group.comm.Split
        self.comm = ranks.kept(self.group.comm, f"{places} places", lambda: split(self.replica, self.place))

    def steps(self, trainer):
        """Say how a trainer's steps run."""
        return "over ranks"

    @contextmanager
    def collective_check(self):
        """Have what fails in a block fail on all ranks, and what it puts into a dict be the same on them."""
        given = {}
        with self.group.collective_check() as gather:
            yield given
            gather(alike={name: _words(value) for name, value in given.items()})

    def broadcast(self, value, rank=0):
        """Return what a rank has."""
        return self.group.timed(self.group.comm.bcast, value, rank)

    def seconds(self):
        """Return how long the last step took on rank 0."""
        return self._seconds

    def check(self, model, optimizer, method, backend, levels, forward):
        """Raise on all ranks unless these can be trained over ranks, and are the same on all of them."""
        with self.collective_check() as given:
            known = "an RNN, a GRU or a ResidualModel with comm, which shares out steps or layers"
            check_kind("model", model, (Recurrent, ResidualModel), known)
            check_parts(model, optimizer, forward)
            if forward.method == "newton":
                raise ValueError("forward must be 'auto', 'linear' or 'chunked' with comm, got 'newton'")
            if forward.checkpoint_every is not None:
                raise ValueError(f"checkpoint_every must be None with comm, got {forward.checkpoint_every!r}")
            model.check_method(method, backend, levels, self.comm)
            given |= {"method": method, "optimizer": optimizer.settings(), "forward": forward.method}

    def batch(self, dataset, indices):
        """Return the steps of this rank's place, of the samples of its replica."""
        share = np.array_split(indices, self.replicas)[self.replica]
        if not len(share):
            return np.zeros((0, 0, 1)), np.zeros(0, np.int64)
        part = {"part": (self.place, self.parts)} if self.parts > 1 else {}
        return check_batch(dataset.batch(share, **part), len(share))

    def step(self, trainer, make):
        """Compute one step; on all ranks raise what is wrong on one of them."""
        model, how = trainer.model, (trainer.method, trainer.backend, trainer.levels)

        def compute(x, y, samples):
            activations, loss, grad_logits = self._forward(trainer, x), 0.0, None
            if activations.logits is not None:
                share = len(y) / samples
                loss, grad_logits = cross_entropy(activations.logits, y)
                with np.errstate(under="ignore"):  # as in `cross_entropy`
                    loss, grad_logits = loss * share, grad_logits * model.dtype.type(share)
            grads = model.backward(activations, grad_logits, *how, self.comm)
            if list(grads) != list(model.params):  # as which they are added up
                raise ValueError(f"backward must return gradients of {list(model.params)}, got {list(grads)}")
            return (loss, 0.0), grads

        (loss, _), grads = self._compute(model, make, compute)
        if self.replicas > 1:
            if grads is None or self.place > 0:  # a replica's ranks have the same gradients, and one counts
                grads = {name: np.zeros_like(param) for name, param in model.params.items()}
            grads = add_up(self.group, grads)
        check_gradients(grads)
        return loss, partial(trainer.optimizer.step, model.params, grads)

    def evaluate(self, trainer, make):
        """Return the summed loss of a batch, and how many of its samples are known, over all ranks."""

        def compute(x, y, samples):
            logits = self._forward(trainer, x).logits
            if logits is None:
                return (0.0, 0.0), None
            return (cross_entropy(logits, y)[0] * len(y), np.count_nonzero(logits.argmax(axis=1) == y)), None

        return self._compute(trainer.model, make, compute)[0]

    def predict(self, trainer, x, lengths=None):
        """Return the classes of this replica's samples, on all of its ranks."""
        x, _ = whole_samples(x, None, lengths)
        logits = self._forward(trainer, x).logits
        return self.comm.bcast(None if logits is None else logits.argmax(axis=1), self.comm.size - 1)

    def _forward(self, trainer, x):
        # Ranks that go at once and are repaired wait no longer than for each other: there is nothing to remember.
        return trainer.model.forward(x, backend=trainer.backend, comm=self.comm, **trainer.forward.how())

    def _compute(self, model, make, compute):
        """Make a batch, and compute with this replica's share of it; return sums of two numbers over all ranks."""
        began = time.perf_counter()
        x, y, samples = self._batch(model, make)
        numbers, grads = (0.0, 0.0), None
        with self.group.collective_check() as gather:
            if len(y) or self.replicas == 1:  # a replica of several may have no samples
                numbers, grads = compute(x, y, samples)
            every, seconds = zip(*gather((numbers, time.perf_counter() - began)), strict=True)
        self._seconds = seconds[0]
        return np.sum(every, axis=0).tolist(), grads  # the same bits on all ranks

    def _batch(self, model, make):
        """Return this rank's part of a batch, and how many samples all replicas have of it."""
        with self.group.collective_check() as gather:
            x, y = whole_samples(*make())
            if isinstance(model, Recurrent) and (not isinstance(x, np.ndarray) or x.ndim != 3):
                raise ValueError(f"x must have shape (T, B, I) with comm, got {np.shape(x)}")
            check_order(x, y)
            y = check_labels(y, x.shape[1] if isinstance(model, Recurrent) else len(x), model.num_classes)
            if len(y):
                model.check_input(x)
            params = {"model.params": f"those {ranks.checksum(model.params.flat)}"}
            every = gather((len(y), ranks.checksum(y.astype(np.int64))), params)
        for rank, labels in enumerate(every):
            first = rank - rank % self.places
            if labels != every[first]:
                odd = f"rank {rank} has others than rank {first}"
                raise ValueError(f"y must be the labels of the same samples on all ranks of a replica: {odd}")
        samples = sum(count for count, _ in every[:: self.places])
        if not samples:
            raise ValueError("x must hold at least one sample, on all ranks together")
        return x, y, samples


def _words(value):
    """Say what an argument is, in words that differ where it does."""
    if isinstance(value, dict) and all(isinstance(entry, np.ndarray) for entry in value.values()):
        return f"that {ranks.checksum(*dict(sorted(value.items())).values())}"
    return value if isinstance(value, str) else repr(value)
