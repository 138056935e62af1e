"""How a process reaches those that hold the layers before and after its own (Section III-D)."""

import math
import sys
import time
import zlib
from dataclasses import fields
from functools import lru_cache

import numpy as np

from bppsa_nb.multigrid.cycles import Options
from bppsa_nb.multigrid.grids import check_levels

_OPTIONS = tuple(field.name for field in fields(Options))
_ALIKE = ("the solver", "net", "u0 or grad_output", "whether initial is given", *_OPTIONS)


def connect(comm, backward=False):
    """Return the links for a ``comm`` argument.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or None
    backward : bool
        Whether values go from the last rank to the first, as gradients do.

    Returns
    -------
    Alone or Ranks

    Raises
    ------
    TypeError
        For anything else.
    """
    if comm is None:
        return Alone(backward)
    mpi = sys.modules.get("mpi4py.MPI")  # whoever has a communicator has loaded it
    if mpi is None or not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise TypeError(
            f"comm must be an mpi4py.MPI.Intracomm, such as mpi4py.MPI.COMM_WORLD, or None, got {comm!r}; "
            "mpi4py comes with `pip install 'bppsa-nb[mpi]'`"
        )
    return Ranks(_own(mpi, comm), backward)


@lru_cache(maxsize=1)
def _own_key(mpi):
    return mpi.Comm.Create_keyval(delete_fn=lambda comm, key, own: own.Free())


def _own(mpi, comm):
    """Return a duplicate of a communicator that lives as long: none of its messages meets one of the user's."""
    own = comm.Get_attr(_own_key(mpi))
    if own is None:
        own = comm.Dup()
        comm.Set_attr(_own_key(mpi), own)
    return own


class Alone:
    """All layers are here.

    A solution is found within ``with links:``, so that an error in a rank's arguments can be known to all ranks.

    Parameters
    ----------
    backward : bool
        Whether values go from the last layer to the first.

    Attributes
    ----------
    is_first : bool
        Whether the values that all others follow from are here.
    seconds : float
        Spent in communication so far, waiting for other ranks included.
    """

    def __init__(self, backward=False):
        self.backward, self.is_first, self.seconds = backward, True, 0.0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        pass

    def agree(self, net, first, initial, options):
        """Settle how many layers a block has, and how many levels there are.

        Parameters
        ----------
        net : ResidualNetwork
            The layers here.
        first : np.ndarray [shape=(batch, ...)]
            What the first rank starts from.
        initial : np.ndarray or None
        options : Options

        Returns
        -------
        coarsening, levels : int

        Raises
        ------
        TypeError, ValueError
            On all ranks, if an argument is wrong on one, or differs between them, or blocks cross from rank to rank.
        """
        return check_levels(len(net), options.coarsening, options.levels)

    def norm(self, norms):
        """Return the norm of the whole residual from that at every C-point here, the same bits on all ranks."""
        return math.hypot(*np.sort(norms))  # in an order that does not depend on the number of ranks

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
    comm : mpi4py.MPI.Intracomm
    backward : bool
        Whether values go from the last rank to the first.
    """

    def __init__(self, comm, backward=False):
        super().__init__(backward)
        none = sys.modules["mpi4py.MPI"].PROC_NULL
        before, after = (rank if 0 <= rank < comm.size else none for rank in (comm.rank - 1, comm.rank + 1))
        self._comm = comm
        self._before, self._after = (after, before) if backward else (before, after)
        self.is_first = self._before == none
        self._agreed, self._counts = False, None

    def __exit__(self, kind, error, traceback):
        if not self._agreed and isinstance(error, Exception):
            # Others wait in `agree`, and must not wait for ever: this rank takes part, without a layer.
            text = f"{type(error).__name__}: {error}".encode()
            self._first_error(self._gather([0, len(text), *[0] * (len(_ALIKE) - 1)]), text)

    def agree(self, net, first, initial, options):
        """As `Alone.agree`; the only place where ranks can find that they cannot go on together."""
        here = _describe(net, first, initial, options, self.backward)
        self._agreed = True
        every = self._gather([len(net), *(zlib.crc32(value.encode()) for value in here)])
        layers = every[:, 0]
        if not layers.all():
            raise ValueError(f"arguments must be valid on all ranks; {self._first_error(every)}")
        for name, value, there in zip(_ALIKE, here, every[:, 1:].T, strict=True):
            if (other := np.flatnonzero(there != there[0])).size:
                raise ValueError(
                    f"{name} must be the same on all ranks: rank {other[0]} has another than rank 0; "
                    f"here, on rank {self._comm.rank}, it is {value}"
                )
        coarsening, levels = check_levels(int(layers.sum()), options.coarsening, options.levels)
        unit = coarsening ** (levels - 1)
        if any(int(count) % unit for count in layers[:-1]):
            raise ValueError(
                f"ranks must hold multiples of {unit} layers, all but the last, for coarsening={coarsening} and "
                f"{levels} levels, as of multigrid.partition; got {layers.tolist()}"
            )
        return coarsening, levels

    def norm(self, norms):
        """Return the norm of the whole residual, as `Alone.norm`."""
        if self._counts is None:
            self._counts = self._gather([len(norms)])[:, 0]
        every = np.empty(self._counts.sum())
        self._timed(self._comm.Allgatherv, np.ascontiguousarray(norms), [every, self._counts])
        return super().norm(every)

    def shift(self, level):
        """Hand the last value on, and take that of the layers before as the first."""
        first, last = np.array(level.first, order="C"), np.ascontiguousarray(level.last)
        self._timed(self._comm.Sendrecv, last, self._after, recvbuf=first, source=self._before)
        if not self.is_first:
            level.first = first

    def receive(self, level):
        """Wait for the first value."""
        if not self.is_first:
            first = np.array(level.first, order="C")
            self._timed(self._comm.Recv, first, self._before)
            level.first = first

    def send(self, level):
        """Hand the last value on."""
        self._timed(self._comm.Send, np.ascontiguousarray(level.last), self._after)

    def _first_error(self, every, text=None):
        """Have the first rank without a layer say its error; return it."""
        rank = int(np.argmin(every[:, 0]))
        said = np.frombuffer(text, np.uint8).copy() if rank == self._comm.rank else np.empty(every[rank, 1], np.uint8)
        self._timed(self._comm.Bcast, said, rank)
        return f"rank {rank} raised {said.tobytes().decode()}"

    def _gather(self, numbers):
        """Return the integers of all ranks [shape=(ranks, numbers)]."""
        every = np.empty((self._comm.size, len(numbers)), np.int64)
        self._timed(self._comm.Allgather, np.asarray(numbers, np.int64), every)
        return every

    def _timed(self, communicate, *arguments, **named):
        start = time.perf_counter()
        communicate(*arguments, **named)
        self.seconds += time.perf_counter() - start


def _describe(net, first, initial, options, backward):
    """Say what all ranks must be given alike, in the order of `_ALIKE`."""
    start = np.ascontiguousarray(first)
    chosen = [getattr(options, name) for name in _OPTIONS]
    return (
        "solve_adjoint" if backward else "solve",
        f"layers of shape {net.weights.shape[1:]}, {net.dtype}, h={net.h!r}, {net.activation}",
        f"of shape {start.shape}, with checksum {zlib.crc32(start):08x}",
        str(initial is not None),
        *(repr(value.item() if isinstance(value, np.generic) else value) for value in chosen),
    )
