"""Training on MPI ranks: samples shared out among replicas of a model, steps among the ranks of each."""

import inspect
import sys
import time
from contextlib import contextmanager

import numpy as np

from bppsa_nb.distributed import ranks
from bppsa_nb.machine.checks import is_integer
from bppsa_nb.training.loss import check_labels, check_order, cross_entropy


def add_up(group, arrays):
    """Add up dicts of arrays, alike in names, shapes and dtype on all ranks, in one message, to the same bits."""
    total = np.concatenate([array.ravel() for array in arrays.values()])
    group.timed(group.comm.Allreduce, sys.modules["mpi4py.MPI"].IN_PLACE, total)  # the same result, says the standard
    ends = np.cumsum([array.size for array in arrays.values()])
    parts = zip(arrays.items(), np.split(total, ends[:-1]), strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in parts}


class Replicas:
    """The ranks of a trainer.

    A replica is as many consecutive ranks as share the steps of a sequence. Rank r has place ``r % places`` in replica
    ``r // places``.

    `group` are all ranks, `comm` the places of this rank's replica; `replicas` and `places` say how many there are,
    `replica` and `place` which this rank has. TypeError or ValueError is raised if `comm` is no communicator, or
    cannot be cut into replicas of `sequence_ranks` (all ranks if None).
    """

    def __init__(self, comm, sequence_ranks):
        self.group = ranks.group(comm)
        size = self.group.size
        with self.group.together() as tell:
            places = size if sequence_ranks is None else sequence_ranks
            if not is_integer(places):
                raise TypeError(f"sequence_ranks must be an integer, got {places!r}")
            if places < 1 or size % places:
                raise ValueError(f"sequence_ranks must divide the number of ranks, {size}, got {places}")
            every = tell({"sequence_ranks": int(places)})
        self.group.check_alike(every)
        self.places, self.replicas = int(places), size // int(places)
        self.replica, self.place = divmod(self.group.rank, self.places)
        split = self.group.comm.Split
        self.comm = ranks.kept(self.group.comm, f"{places} places", lambda: split(self.replica, self.place))

    @contextmanager
    def alike(self):
        """Have what fails in a block fail on all ranks, and what the yielded dict is filled with be the same."""
        given = {}
        with self.group.together() as tell:
            yield given
            every = tell({name: value if isinstance(value, str) else repr(value) for name, value in given.items()})
        self.group.check_alike(every)

    def words_of(self, arrays):
        """Return what tells a dict of arrays from others, in words."""
        return f"that {ranks.checksum(*arrays.values())}"

    def first(self, number):
        """Return the integer that rank 0 has."""
        return self.group.timed(self.group.comm.bcast, number)

    def check_dataset(self, dataset):
        """Raise TypeError unless a data set gives the parts that are asked for."""
        known = inspect.signature(dataset.batch).parameters.values()
        if self.places > 1 and not any(one.name == "part" or one.kind is one.VAR_KEYWORD for one in known):
            raise TypeError(
                f"dataset.batch must take part=(i, n), for the i-th of n parts of the steps, with {self.places} "
                "sequence_ranks, as bppsa_nb.training.datasets.ArrayDataset.batch does; "
                f"{type(dataset).__name__}.batch does not"
            )

    def own(self, dataset, indices):
        """Return this rank's part of a batch: the steps of its place, of the samples of its replica."""
        share = np.array_split(indices, self.replicas)[self.replica]
        if not len(share):
            return np.zeros((0, 0, 1)), np.zeros(0, np.int64)
        return dataset.batch(share, part=(self.place, self.places)) if self.places > 1 else dataset.batch(share)

    def stop(self):
        """Raise KeyboardInterrupt, on all ranks at the same place, while Ctrl-C is held back."""
        time.sleep(0.2)  # mpiexec sends Ctrl-C to all ranks, and it is to arrive on none of them later
        raise KeyboardInterrupt

    def train(self, model, make, how, began, stopped):
        """Compute the loss and the gradients of a batch.

        ``make()`` returns this rank's part of the batch: x (T, B, I), of which T or B may be 0, and labels. `how` is
        the method, backend and levels of the model's `backward`; ``began()`` returns the seconds since the iteration
        began; `stopped` is not empty if Ctrl-C arrived here. Returned are the mean loss over the batch of all replicas,
        its gradients, not all of which need be finite, what `began` returned on rank 0, and whether Ctrl-C arrived on
        some rank. On all ranks, TypeError or ValueError is raised if a part is wrong on one, or they do not go
        together; FloatingPointError if logits overflow.
        """
        method, backend, levels = how

        def compute(x, y, samples):
            activations, loss, grad_logits = model.forward(x, None, backend, self.comm), 0.0, None
            if activations.logits is not None:
                share = len(y) / samples
                loss, grad_logits = cross_entropy(activations.logits, y)
                loss, grad_logits = loss * share, grad_logits * model.dtype.type(share)
            grads = model.backward(activations, grad_logits, method, backend, levels, self.comm)
            if list(grads) != list(model.params):  # as which they are added up
                raise ValueError(f"backward must return gradients of {list(model.params)}, got {list(grads)}")
            return (loss, 0.0), grads

        def finish(numbers):
            return numbers[0], began() if self.group.rank == 0 else 0.0

        (loss, seconds), grads, stop = self._compute(model, make, compute, stopped, finish)
        if self.replicas > 1:
            if grads is None or self.place > 0:  # a replica's ranks have the same gradients, and one counts
                grads = {name: np.zeros_like(param) for name, param in model.params.items()}
            grads = add_up(self.group, grads)
        return loss, grads, seconds, stop

    def evaluate(self, model, make, backend, stopped):
        """Compute the loss of a batch, summed, and how many of its samples are known; see `train`, also for errors.

        Returned are both, over all replicas, and whether Ctrl-C arrived on some rank.
        """

        def compute(x, y, samples):
            logits = model.forward(x, None, backend, self.comm).logits
            if logits is None:
                return (0.0, 0.0), None
            return (cross_entropy(logits, y)[0] * len(y), np.count_nonzero(logits.argmax(axis=1) == y)), None

        (loss, correct), _, stop = self._compute(model, make, compute, stopped)
        return loss, correct, stop

    def predict(self, model, x, backend):
        """Return the classes of this replica's samples, on all of its ranks."""
        logits = model.forward(x, None, backend, self.comm).logits
        return self.comm.bcast(None if logits is None else logits.argmax(axis=1), self.places - 1)

    def _compute(self, model, make, compute, stopped, finish=tuple):
        """Make a batch, and compute with this replica's share of it; return sums of two numbers over all ranks."""
        x, y, samples = self._batch(model, make)
        numbers, found, fault = (0.0, 0.0), None, None
        with self.group.together() as tell:
            try:
                if len(y):
                    numbers, found = compute(x, y, samples)
            except FloatingPointError as error:
                fault = error
            faults, stops, every = zip(*tell((fault is not None, bool(stopped), finish(numbers))), strict=True)
        if any(faults):
            raise fault or FloatingPointError(f"logits overflow {model.dtype} on rank {faults.index(True)}")
        return np.sum(every, axis=0).tolist(), found, any(stops)  # the same bits on all ranks

    def _batch(self, model, make):
        """Return this rank's part of a batch, and how many samples all replicas have of it."""
        with self.group.together() as tell:
            x, y = make()
            if not isinstance(x, np.ndarray) or x.ndim != 3:
                raise ValueError(f"x must have shape (T, B, I) with comm, got {np.shape(x)}")
            check_order(x, y)
            y = check_labels(y, x.shape[1], model.num_classes)
            if len(y):
                model.check_input(x)
            params = {"model.params": f"those {ranks.checksum(*model.params.values())}"}
            every = tell((params, (len(y), ranks.checksum(y.astype(np.int64)))))
        self.group.check_alike([params for params, _ in every])
        for rank, (_, labels) in enumerate(every):
            first = rank - rank % self.places
            if labels != every[first][1]:
                raise ValueError(
                    f"y must be the labels of the same samples on all ranks of a replica: rank {rank} has others than "
                    f"rank {first}"
                )
        samples = sum(count for _, (count, _) in every[:: self.places])
        if not samples:
            raise ValueError("x must hold at least one sample, on all ranks together")
        return x, y, samples
