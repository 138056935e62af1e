"""How a process reaches those that hold the layers before and after its own (Section III-D)."""

import math

import numpy as np


def connect(comm, backward=False):
    """Return the links for a ``comm`` argument; gradients go backward, from the last rank to the first."""
    return Alone(backward) if comm is None else Ranks(comm, backward)


class Alone:
    """All layers are here.

    Parameters
    ----------
    backward : bool
    """

    def __init__(self, backward=False):
        self.backward = backward

    def depth(self, layers):
        """Return how many layers there are in all."""
        return layers

    def norm(self, norms):
        """Return the norm of the whole residual from that at every C-point here."""
        return math.hypot(*norms)

    def shift(self, level):
        """Hand the last value on, and take that of the layers before as the first."""

    def receive(self, level):
        """Wait for the first value."""

    def send(self, level):
        """Hand the last value on."""


class Ranks(Alone):
    """Every rank of a communicator holds a part of the layers, in order; see `bppsa_nb.multigrid.partition`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    backward : bool
    """

    def __init__(self, comm, backward=False):
        from mpi4py import MPI

        super().__init__(backward)
        before, after = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (comm.rank - 1, comm.rank + 1))
        self._comm = comm
        self._before, self._after = (after, before) if backward else (before, after)
        self._is_first = self._before == MPI.PROC_NULL

    def depth(self, layers):
        counts = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([layers]), counts)
        return int(counts.sum())

    def norm(self, norms):
        # All ranks add up all norms, in the same order on however many: so they agree to the last bit.
        counts = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([len(norms)]), counts)
        every = np.empty(counts.sum())
        self._comm.Allgatherv(norms, [every, counts])
        return super().norm(every)

    def shift(self, level):
        first = level.first
        self._comm.Sendrecv(np.ascontiguousarray(level.last), self._after, recvbuf=first, source=self._before)
        if not self._is_first:
            level.first = first

    def receive(self, level):
        if not self._is_first:
            first = level.first
            self._comm.Recv(first, self._before)
            level.first = first

    def send(self, level):
        self._comm.Send(np.ascontiguousarray(level.last), self._after)
