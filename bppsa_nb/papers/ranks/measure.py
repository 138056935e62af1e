"""What programs on ranks measure: time, memory, messages, and ⋄ by itself."""

import ctypes
import re
import time
from pathlib import Path

import numpy as np

from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.distributed import ranks
from bppsa_nb.distributed.segments import DenseSegment
from bppsa_nb.distributed.solver import exscan
from bppsa_nb.machine import process
from bppsa_nb.papers.timing import take_turns
from bppsa_nb.scan.operator import IDENTITY, diamond

MESSAGES = tuple(8**i for i in range(1, 8))  # bytes


def turns(calls, rounds, comm=None):
    """Have calls take turns on all ranks: yield round, name, result and seconds; a first round does not count."""
    rank = 0 if comm is None else comm.rank
    for number in process.bar(range(-1, rounds), unit="round", leave=False, disable=True if rank else None):
        for name, call in calls.items():
            if comm is not None:
                comm.Barrier()
            start = time.perf_counter()
            result, seconds = call(), time.perf_counter() - start
            if number >= 0:
                yield number, name, result, seconds


def medians(calls, rounds):
    """Time calls that take turns on this rank: median seconds by name."""
    return dict(zip(calls, np.median(take_turns(calls.values(), 0, (rounds, rounds)), axis=0).tolist(), strict=True))


def peak(call):
    """Call; return the result, and the most bytes that this process had meanwhile, above what it had before.

    Memory that was freed earlier goes back to the system first, so that none of it is used again unseen. There are no
    huge pages meanwhile: NumPy asks for them, and a single byte would count as 2 MiB. Counted is what is resident,
    shared memory of MPI included, as far as it is touched for the first time. None where the system does not tell: it
    takes Linux, whose ``/proc/self/clear_refs`` forgets the peak so far.
    """
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def resident(which):
        return 1024 * int(re.search(rf"^{which}:\s+(\d+) kB", status.read_text(errors="replace"), re.MULTILINE)[1])

    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(ctypes.c_size_t(0))
    try:
        before = resident("VmRSS")
        forget.write_text("5")
    except OSError:
        return call(), None
    libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
    try:
        result = call()
    finally:
        libc.prctl(41, 0, 0, 0, 0)
    return result, max(resident("VmHWM") - before, 0)


def messages(comm, rounds):
    """Send messages back and forth between the first two ranks, while others wait.

    Returned are dicts of `bytes` and the median `seconds` of one way, on the first rank; the others know nothing of it.
    """
    found = []
    for size in MESSAGES:
        buffer, seconds = np.zeros(size, np.uint8), []
        comm.Barrier()
        for _ in range(1 + rounds if comm.rank < 2 else 0):
            start, other = time.perf_counter(), 1 - comm.rank
            for way in range(2):
                if way == comm.rank:
                    comm.Send(buffer, other)
                else:
                    comm.Recv(buffer, other)
            seconds.append((time.perf_counter() - start) / 2)
        if comm.rank == 0:
            found.append({"bytes": size, "seconds": float(np.median(seconds[1:]))})
    comm.Barrier()
    return found


def _map_bytes(width, batch, dtype):
    """Return the bytes of an affine map: rows of matrices, their powers of two, and a loss term, for each sample."""
    return batch * (width * (width * dtype.itemsize + 8) + width * dtype.itemsize)


def _operands(width, batch, dtype, backend):
    """Return a segment, the map that it is reduced to, which is as large as that of any other, and a gradient."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(-1, 1, (1, width, width)).astype(dtype)
    segment = DenseSegment(StructuredChain(weights, np.ones((1, 2, batch, width), dtype)), batch, backend)
    with np.errstate(all="ignore"):
        return segment.reduce(None, None), np.ones((batch, width), dtype)


def operator(width, batch, dtype, backend, rounds):
    """Time ⋄ of two maps, made on a backend, on this rank; ⋄ itself is NumPy's.

    Returned are `bytes` of a map; median seconds of `product` (two maps) and `apply` (a map, and a gradient).
    """
    own, gradient = _operands(width, batch, dtype, backend)
    calls = {"product": lambda: diamond(own, own), "apply": lambda: diamond(gradient, own)}
    return {"bytes": _map_bytes(width, batch, dtype)} | medians(calls, rounds)


def scan(comm, width, batch, dtype, backend, rounds):
    """Time the scan over the maps of all ranks, as chunks are scanned.

    Returned are `bytes` of a map; median `seconds`, of the rank done last; `combined`, how often this one computed ⋄.
    """
    group = ranks.group(comm)
    own, gradient = _operands(width, batch, dtype, backend)
    place = group.from_end
    own = gradient if place.rank == 0 else IDENTITY if place.rank == place.size - 1 else own
    calls = list(turns({"scan": lambda: exscan(group, place, own, backend)[1]}, rounds, group.comm))
    slowest = np.max(group.share([seconds for *_, seconds in calls]), axis=0)
    return {"bytes": _map_bytes(width, batch, dtype), "seconds": float(np.median(slowest)), "combined": calls[-1][2]}
