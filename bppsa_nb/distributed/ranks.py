"""What MPI ranks agree on: that all of them can go on, and with the same arguments; and how programs on ranks end.

Small values, and those whose size differs between ranks, are pickled, by mpi4py's lower-case methods and by `exchange`:
one user started all ranks. Large arrays are sent as buffers. Nothing that comes from a file is unpickled.
"""

import contextlib
import os
import pickle
import sys
import time
import traceback
import zlib
from contextlib import ExitStack, contextmanager
from functools import lru_cache

import numpy as np

from bppsa_nb.machine.checks import check_array, check_finite, short_repr
from bppsa_nb.machine.process import rank_and_size


def world():
    """Return the communicator of all ranks that mpiexec started; None for a single process without mpi4py.

    If mpi4py is missing, or does not belong to this mpiexec, the process exits, saying what to install.
    """
    _, started = rank_and_size()
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        comm, size = None, 1
    except (ImportError, RuntimeError) as error:  # mpi4py is there, its MPI is not
        sys.exit(f"mpi4py finds no MPI: {error}; `pip install 'bppsa-nb[mpi]'` installs one")
    else:
        comm, size = MPI.COMM_WORLD, MPI.COMM_WORLD.size
    if size != started and started > 1:
        advice = "`pip install 'bppsa-nb[mpi]'` installs mpi4py and the mpiexec that belongs to it"
        sys.exit(f"mpiexec started {started} processes, but this one finds {size}: {advice}")
    return comm


@contextmanager
def rank_0_output(rank, *names):
    """Silence ``"stdout"`` or ``"stderr"`` in a block on all ranks but 0."""
    with ExitStack() as quiet:
        if rank > 0:
            nowhere = quiet.enter_context(open(os.devnull, "w"))
            for name in names:
                quiet.enter_context(getattr(contextlib, f"redirect_{name}")(nowhere))
        yield


@contextmanager
def abort_on_error(comm, foreseen):
    """Run a program's block; an error in it on one rank ends all ranks, with a traceback unless it is `foreseen`."""
    try:
        yield
    except BaseException as error:
        known = isinstance(error, foreseen)
        if comm is None or comm.size == 1:
            if known:
                sys.exit(f"{type(error).__name__}: {error}")
            raise
        # If one rank left alone, the others would hang.
        text = f"rank {comm.rank}: {type(error).__name__}: {error}\n" if known else traceback.format_exc()
        if known and comm.rank > 0:
            time.sleep(1)  # where all ranks fail, rank 0 says why, and ends the others meanwhile
        print(text, end="", file=sys.stderr, flush=True)
        time.sleep(0.2)  # mpiexec drops what it has not read when a rank aborts
        comm.Abort(1)


def check_comm(comm):
    """Raise TypeError unless `comm` is a communicator."""
    mpi = sys.modules.get("mpi4py.MPI")  # whoever has a communicator has loaded it
    if mpi is None or not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        got = f"got {short_repr(comm)}; mpi4py comes with `pip install 'bppsa-nb[mpi]'`"
        raise TypeError(f"comm must be an mpi4py.MPI.Intracomm, such as mpi4py.MPI.COMM_WORLD, or None, {got}")


def exchange(comm, value, to=None, source=None):
    """Send a value to one rank, and return what another one sends; there may be no such rank.

    mpi4py's `recv` and `sendrecv` look for a message before they receive it, and MPICH keeps the core while it looks:
    with more ranks than cores, they are some fifty times slower than this.
    """
    to, source = (sys.modules["mpi4py.MPI"].PROC_NULL if rank is None else rank for rank in (to, source))
    message, size = pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.zeros(1, np.int64)
    comm.Sendrecv(np.array([len(message)]), to, recvbuf=size, source=source)
    received = bytearray(size[0])
    comm.Sendrecv(message, to, recvbuf=received, source=source)
    return pickle.loads(received) if received else None


def group(comm):
    """Return the Group of a communicator, ready to talk without meeting any message of the user's."""
    check_comm(comm)
    return Group(kept(comm, "own", comm.Dup))


@lru_cache
def _keyval(mpi, name):
    return mpi.Comm.Create_keyval(delete_fn=lambda comm, key, made: made.Free())


def kept(comm, name, make):
    """Return a communicator made from another one, which keeps it for the next time and frees it with itself."""
    key = _keyval(sys.modules["mpi4py.MPI"], name)
    made = comm.Get_attr(key)
    if made is None:
        made = make()
        comm.Set_attr(key, made)
    return made


class Group:
    """The ranks of a communicator; `seconds` were spent in communication so far, waiting for others included."""

    def __init__(self, comm):
        self.comm, self.rank, self.size, self.seconds = comm, comm.rank, comm.size, 0.0
        self.is_last = self.rank == self.size - 1

    @property
    def from_end(self):
        """The same ranks, counted from the last: mpi4py.MPI.Intracomm."""
        return kept(self.comm, "from_end", lambda: self.comm.Split(0, -self.rank))

    def neighbor(self, step):
        """Return the rank so many further on, or what stands for none."""
        rank = self.rank + step
        return rank if 0 <= rank < self.size else sys.modules["mpi4py.MPI"].PROC_NULL

    def timed(self, communicate, *arguments, **named):
        """Call a method of a communicator, and count its time."""
        start = time.perf_counter()
        result = communicate(*arguments, **named)
        self.seconds += time.perf_counter() - start
        return result

    def check_owner(self, rank, why, **given):
        """Raise ValueError for an argument that is given on another rank than the one that has what it is for."""
        for name, value in given.items():
            if value is not None and self.rank != rank:
                got = f"got {type(value).__name__}"
                raise ValueError(f"{name} must be None on all ranks but rank {rank}, which {why}, {got}")

    def check_grad_logits(self, grad_logits, model, batch, part):
        """Raise unless the gradient at the logits is given on the last rank alone, which has the last `part`."""
        self.check_owner(self.size - 1, f"has the last {part}", grad_logits=grad_logits)
        if self.is_last:
            check_array("grad_logits", grad_logits, model.dtype, (batch, model.num_classes))
            check_finite(grad_logits=grad_logits)

    def share(self, value):
        """Return the values of all ranks, in a list."""
        return self.timed(self.comm.allgather, value)

    @contextmanager
    def collective_check(self):
        """Raise an error of this block on all ranks, in one exchange: on others as a ValueError that names the rank.

        A FloatingPointError, which is nobody's fault, is the same on all of them. Yielded is a function that takes a
        value of this rank and returns those of all ranks, in a list. It may be called once, at the end of the block; if
        it is not, the exchange follows the block. With `alike`, a dict of words by name, it raises ValueError on all
        ranks unless these are the same.
        """
        gathered = False

        def gather(value=None, alike=None):
            nonlocal gathered
            gathered = True
            every = self.share((None, value, alike))
            for rank, (error, *_) in enumerate(every):
                if isinstance(error, FloatingPointError):
                    raise error
                if error is not None:
                    raise ValueError(f"aborted on all ranks because rank {rank} failed: {error}")
            for name in alike or ():
                check_same(name, [given.get(name) for *_, given in every])
            return [value for _, value, _ in every]

        try:
            yield gather
        except Exception as error:
            if not gathered:  # the others wait for this rank
                words = f"{type(error).__name__}: {error}"
                self.share((error if type(error) is FloatingPointError else words, None, None))
            raise
        if not gathered:
            gather()


def check_same(name, every):
    """Raise ValueError unless the words of all ranks are the same; None of a rank that cannot know fits any."""
    known = [(rank, words) for rank, words in enumerate(every) if words is not None]
    for rank, words in known:
        if words != known[0][1]:
            first = f"{known[0][1]} on rank {known[0][0]}"
            raise ValueError(f"{name} must be the same on all ranks: it is {words} on rank {rank}, and {first}")


def checksum(*arrays):
    """Return, in words, a number of 32 bits that other arrays hardly have: ranks compare it in the arrays' place."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array), found)
    return f"with checksum {found:08x}"
