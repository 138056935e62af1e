"""Multigrid over MPI ranks: how one reaches those that hold the layers before and after its own (Section III-D)."""

import numpy as np

from bppsa_nb.distributed import ranks
from bppsa_nb.multigrid.cycles import Alone
from bppsa_nb.multigrid.grids import check_levels


class Ranks(Alone):
    """Every rank of a communicator holds a part of the layers, in order; see `bppsa_nb.multigrid.partition`."""

    def __init__(self, comm, backward=False):
        self.backward, self._group, self._counts = backward, ranks.group(comm), None
        before, after = (self._group.neighbor(step) for step in (-1, 1))
        self._before, self._after = (after, before) if backward else (before, after)
        self.is_first = self._group.rank == (self._group.size - 1 if backward else 0)

    @property
    def seconds(self):
        """Spent in communication so far, waiting for other ranks included."""
        return self._group.seconds

    def __enter__(self):
        self._check = self._group.collective_check()
        self._gather = self._check.__enter__()
        return self

    def __exit__(self, kind, error, traceback):
        return self._check.__exit__(kind, error, traceback)

    def agree(self, net, first, initial, options):
        """As `Alone.agree`; the only place where an error on one rank can abort all of them."""
        given = {
            "the solver": "solve_adjoint" if self.backward else "solve",
            "net": f"layers of shape {net.weights.shape[1:]}, {net.dtype}, h={net.h!r}, {net.activation}",
            "u0 or grad_output": f"of shape {first.shape}, {ranks.checksum(first)}",
            "whether initial is given": str(initial is not None),
        }
        layers = self._gather(len(net), given | {name: repr(value) for name, value in vars(options).items()})
        coarsening, levels = check_levels(sum(layers), options.coarsening, options.levels)
        unit = coarsening ** (levels - 1)
        if any(count % unit for count in layers[:-1]):
            why = f"all but the last, for coarsening={coarsening} and {levels} levels, as of multigrid.partition"
            raise ValueError(f"ranks must hold multiples of {unit} layers, {why}; got {layers}")
        return coarsening, levels

    def norm(self, norms):
        """Return the norm of the whole residual, as `Alone.norm`."""
        if self._counts is None:
            self._counts = self._group.share(len(norms))
        every = np.empty(sum(self._counts))
        self._group.timed(self._group.comm.Allgatherv, np.ascontiguousarray(norms), [every, self._counts])
        return super().norm(every)

    def shift(self, level):
        """Hand the last value on, and take that of the layers before as the first."""
        first, last = np.array(level.first, order="C"), np.ascontiguousarray(level.last)
        self._group.timed(self._group.comm.Sendrecv, last, self._after, recvbuf=first, source=self._before)
        if not self.is_first:
            level.first = first

    def receive(self, level):
        """Wait for the first value."""
        if not self.is_first:
            first = np.array(level.first, order="C")
            self._group.timed(self._group.comm.Recv, first, self._before)
            level.first = first

    def send(self, level):
        """Hand the last value on."""
        self._group.timed(self._group.comm.Send, np.ascontiguousarray(level.last), self._after)
