"""What is measured of a chain over ranks: time, memory, messages, and ⋄ by itself."""

import ctypes
import re
import time
from pathlib import Path

import numpy as np

from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.distributed import maps, ranks
from bppsa_nb.distributed.runs import Run

MESSAGES = tuple(8**i for i in range(1, 8))  # bytes


def peak(call):
    """Call, and find out how much memory this process had at most meanwhile, above what it had before.

    Memory that was freed earlier goes back to the system first, so that none of it is used again unseen. Counted is
    what is resident, shared memory of MPI included, as far as it is touched for the first time.

    Parameters
    ----------
    call : callable
        Without arguments.

    Returns
    -------
    result
        What it returned.
    bytes : int or None
        None where the system does not tell: it takes Linux, whose ``/proc/self/clear_refs`` forgets the peak so far.
    """
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def resident(which):
        return 1024 * int(re.search(rf"^{which}:\s+(\d+) kB", status.read_text(), re.MULTILINE)[1])

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))
    try:
        before = resident("VmRSS")
        forget.write_text("5")
    except OSError:
        return call(), None
    result = call()
    return result, max(resident("VmHWM") - before, 0)


def medians(calls, rounds):
    """Time calls that take turns; the first round does not count.

    Parameters
    ----------
    calls : dict of str to callable
    rounds : int

    Returns
    -------
    dict of str to float
        Median seconds.
    """
    seconds = {name: [] for name in calls}
    for _ in range(1 + rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(each[1:])) for name, each in seconds.items()}


def messages(comm, rounds):
    """Send messages back and forth between the first two ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of two ranks at least; the others wait.
    rounds : int

    Returns
    -------
    list of dict
        `bytes` and the median `seconds` of one way, on the first rank; the others know nothing of it.
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


def _tiny(width, batch, dtype, backend):
    """Return a run of two links, whose map is as large as that of any other."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(-1, 1, (1, width, width)).astype(dtype)
    return Run(StructuredChain(weights, np.ones((1, 2, batch, width), dtype)), batch, backend)


def diamonds(width, batch, dtype, backend, rounds):
    """Time ⋄ of two maps on this rank.

    Parameters
    ----------
    width, batch : int
        H and B.
    dtype : np.dtype
    backend : {"numpy", "cpu", "cuda"}
        What makes the maps; ⋄ itself is NumPy's.
    rounds : int

    Returns
    -------
    dict
        `bytes` of a map; median seconds of `merge` (two products), `apply` (a product, and a gradient that is known)
        and `keep` (a product, and the identity).
    """
    run = _tiny(width, batch, dtype, backend)
    with np.errstate(all="ignore"):
        own, known = run.map(None, None), run.known(np.ones((batch, width), dtype))
    spare = own.copy()

    def combine(a):
        spare[:] = own
        maps.combine(a[0], spare[0])

    calls = {"merge": lambda: combine(own), "apply": lambda: combine(known), "keep": lambda: combine(run.nothing())}
    return {"bytes": run.layout.itemsize} | medians(calls, rounds)


def exscan(comm, width, batch, dtype, backend, rounds):
    """Time MPI's Exscan with ⋄ over the maps of all ranks, as the chunked scan calls it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    width, batch, dtype, backend, rounds
        As for `diamonds`.

    Returns
    -------
    dict
        `bytes` of a map; median `seconds`, of the rank that is done last; `combined`, how often this rank computed ⋄.
    """
    group = ranks.group(comm)
    scan = group.from_end
    run, seconds = _tiny(width, batch, dtype, backend), []
    with np.errstate(all="ignore"):
        own = run.map(None, None)
    if scan.rank == scan.size - 1:
        own = run.nothing()
    if scan.rank == 0:
        own = run.known(np.ones((batch, width), dtype))
    for _ in range(1 + rounds):
        group.comm.Barrier()
        start = time.perf_counter()
        combined = run.exscan(group, scan, own)[1]
        seconds.append(time.perf_counter() - start)
    slowest = group.share(seconds[1:])
    return {"bytes": run.layout.itemsize, "seconds": float(np.median(np.max(slowest, 0))), "combined": combined}
