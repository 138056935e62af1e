"""Which method ``"auto"`` takes, and why: what each method does is counted, and each count has its price.

A method's predicted time is the sum of its counts times what one of them costs, in seconds. The functions `linear`,
`blelloch` and `chunked` count; the prices are measured on each machine by ``bppsa-nb calibrate``, and come from another
one otherwise. What is counted:

============  ==========================================================================================
`calls`       1, for what a call costs whatever its size
`launches`    times that workers are set to work and waited for: a kernel, or a level of the tree
`steps`       steps that wait for each other; in NumPy, operations that Python starts
`products`    small products that are started one by one
`matvec`      multiply-adds of matrices with single vectors
`matmul`      multiply-adds of matrices with matrices
`entries`     numbers that are written to be read again, besides the result
============  ==========================================================================================

All are counted along the busiest worker. Where the work falls into independent pieces (samples, chunks, pairs of a
level), workers share them out: NumPy is one worker, the compiled CPU code has a thread per core, and a GPU runs about
a thousand blocks at once.
"""

import functools
from dataclasses import dataclass

import numpy as np

from bppsa_nb import backends
from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

METHODS = ("linear", "blelloch", "truncated", "chunked")
KINDS = ("dense", "structured")

BLOCKS = 1024  # thread blocks that a large GPU runs at once

# Orders of magnitude, on two CPU cores and on a large GPU.
_NUMPY = {"calls": 2e-5, "steps": 5e-6, "products": 1e-7, "matvec": 3e-10, "matmul": 1e-10, "entries": 1e-9}
_CPU = {"calls": 1e-5, "launches": 2e-5, "products": 1e-7, "matvec": 2e-10, "matmul": 1e-10, "entries": 5e-10}
_CUDA = {"calls": 5e-5, "launches": 1e-5, "steps": 1e-6, "matvec": 1e-10, "matmul": 1e-10, "entries": 1e-11}
_DEFAULTS = {
    backend: {kind: dict.fromkeys(("linear", "blelloch", "chunked"), prices) for kind in KINDS}
    for backend, prices in (("numpy", _NUMPY), ("cpu", _CPU), ("cuda", _CUDA))
}


def linear(T, B, H, weights, workers):
    """Count what the linear scan does, along the busiest worker.

    Parameters
    ----------
    T, B, H : int
        Length of the chain, batch size, size of each x_t.
    weights : int
        K of a structured chain, whose steps are made of K shared weights; 0 for stored dense Jacobians.
    workers : int
        Among which samples are shared out.

    Returns
    -------
    dict of str to int
        The counts of the module's table that are not 0.
    """
    samples = _share(B, workers)
    return {
        "calls": 1,
        "launches": 1,
        "steps": T,
        "products": T * samples,
        "matvec": T * samples * H * H * max(weights, 1),
    }


def blelloch(T, B, H, weights, workers):
    """Count what Algorithm 1 does. Parameters and result are those of `linear`.

    A structured chain's Jacobians are assembled first: T x B x H x H entries, of K multiply-adds each.
    """
    # Each level's first pair meets the gradient going up, and the identity going down; the gradient at x_0 is one more.
    up = [num_pairs(T, d) - 1 for d in range(up_levels(T))]
    down = [num_pairs(T, d) - 1 for d in range(down_levels(T))]
    matmuls = sum(_share(pairs * B, workers) for pairs in up)
    matvecs = sum(_share(pairs * B, workers) for pairs in down) + _share(B, workers) * (up_levels(T) + (T > 0))
    copied = _share(T * B, workers)
    return {
        "calls": 1,
        "launches": up_levels(T) + down_levels(T),
        "steps": sum(up) + sum(down) + up_levels(T) + (T > 0),
        "products": matmuls + matvecs,
        "matvec": matvecs * H * H,
        "matmul": matmuls * H**3,
        "entries": (matmuls + (1 + weights) * copied) * H * H,
    }


def chunked(T, B, H, weights, workers, length):
    """Count what the chunked scan does with chunks of `length` steps. Parameters and result are those of `linear`.

    Of C = ⌈T / length⌉ chunks, all but the one at the loss are multiplied into one matrix each; the gradient goes back
    over these products; every chunk is replayed. A single worker goes along the chunks of a structured chain side by
    side, but takes stored Jacobians one by one.
    """
    chunks = -(-T // length)
    across = max(chunks - 1, 0)
    reduced, replayed, samples = (_share(pieces * B, workers) for pieces in (across, chunks, 1))
    passes = max(weights, 1)
    in_turn = 1 if weights or workers > 1 else chunks
    return {
        "calls": 1,
        "launches": 3,
        "steps": (2 if reduced else 1) * length * in_turn + across,
        "products": (reduced + replayed) * length + across * samples,
        "matvec": (replayed * length * passes + across * samples) * H * H,
        "matmul": reduced * length * H**3 * passes,
        "entries": reduced * H * H,
    }


def _share(pieces, workers):
    return -(-pieces // workers)


@dataclass(frozen=True)
class Explanation:
    """What ``method="auto"`` takes for a chain, and what each candidate was expected to cost.

    Attributes
    ----------
    method, backend : str
        What runs.
    seconds : dict
        Predicted time of every candidate method.
    length : int
        Steps of a chunk in the candidate ``"chunked"``.
    reason : str
        One sentence. `str()` of the explanation shows everything.
    source : str
        Where the prices come from: this machine, or the package's defaults.
    """

    method: str
    backend: str
    seconds: dict
    length: int
    reason: str
    source: str

    def __str__(self):
        lines = [f"method={self.method!r}, backend={self.backend!r}: {self.reason}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            note = f", chunks of {self.length} steps" if name == "chunked" else ""
            lines.append(f"  {name:<10} {seconds * 1e3:10.3g} ms predicted{note}")
        lines.append(f"Predicted from {self.source}.")
        lines.append(
            "Matrix products carry exact powers of two; where the entries of one lie too far apart for the dtype, "
            "the linear scan computes the answer."
        )
        return "\n".join(lines)


def explain(T, B, H, dtype=np.float32, backend="auto", weights=0):
    """Say which method and backend ``"auto"`` takes for a chain, and why.

    Parameters
    ----------
    T, B, H : int
        Length of the chain, batch size, size of each x_t.
    dtype : np.dtype
        float32 or float64.
    backend : {"auto", "numpy", "cpu", "cuda"}
    weights : int
        How many weights a `StructuredChain` has: 1 from an RNN, 3 from a GRU. 0 stands for stored dense Jacobians.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        If T or weights is negative, B or H not positive, or the backend unknown.
    TypeError
        For another dtype.
    """
    return _explain(*_checked(T, B, H, dtype, backend, weights))


def chunk_length(T, B, H, dtype=np.float32, backend="auto", weights=0):
    """Return how many steps a chunk has: of several lengths, the one with the least predicted time.

    Tried are the powers of two up to T, and T divided among the workers.

    Parameters and errors are those of `explain`.

    Returns
    -------
    int
        In 1 ... max(T, 1).
    """
    return _chunk_length(*_checked(T, B, H, dtype, backend, weights))


def candidate_lengths(T, workers):
    """List the chunk lengths that `chunk_length` chooses from, ascending."""
    powers = {1 << i for i in range(max(T, 1).bit_length())}
    return sorted(powers | {max(1, _share(T, workers))})


def _checked(T, B, H, dtype, backend, weights):
    for name, value, least in (("T", T, 0), ("B", B, 1), ("H", H, 1), ("weights", weights, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype}")
    return int(T), int(B), int(H), dtype.itemsize // 4, backends.resolve(backend), int(weights)


def workers(backend):
    """Return how many pieces of work a backend does at once."""
    if backend == "numpy":
        return 1
    if backend == "cuda":
        return BLOCKS
    from bppsa_nb.workers import THREADS

    return THREADS


def price(counts, prices, width=1):
    """Add up what counts cost, in seconds.

    Parameters
    ----------
    counts : dict
        As `linear` returns it.
    prices : dict
        Seconds of one, for some or all of the counts; what has no price costs nothing.
    width : int
        Numbers take that many times four bytes: 1 in float32, 2 in float64.
    """
    return sum(
        prices.get(name, 0) * count * (width if name in ("matvec", "matmul", "entries") else 1)
        for name, count in counts.items()
    )


@functools.lru_cache(1024)
def _chunk_length(T, B, H, width, backend, weights):
    prices = _DEFAULTS[backend]["structured" if weights else "dense"]["chunked"]
    at_once = workers(backend)
    return min(
        candidate_lengths(T, at_once),
        key=lambda length: price(chunked(T, B, H, weights, at_once, length), prices, width),
    )


@functools.lru_cache(1024)
def _explain(T, B, H, width, backend, weights):
    at_once, prices = workers(backend), _DEFAULTS[backend]["structured" if weights else "dense"]
    length = _chunk_length(T, B, H, width, backend, weights)
    sizes = T, B, H, weights
    seconds = {
        "linear": price(linear(*sizes, at_once), prices["linear"], width),
        "chunked": price(chunked(*sizes, at_once, length), prices["chunked"], width),
        "blelloch": price(blelloch(*sizes, at_once), prices["blelloch"], width),
    }
    method = min(seconds, key=seconds.get)
    return Explanation(method, backend, seconds, length, _reason(method, *sizes, length), "the package's defaults")


def _reason(method, T, B, H, weights, length):
    def times(counts):
        work = (counts.get("matvec", 0) + counts.get("matmul", 0)) / max(linear(T, B, H, weights, 1)["matvec"], 1)
        return f"{work:.3g} times the work"

    tree = blelloch(T, B, H, weights, 1)
    if method == "linear":
        return (
            f"the tree has {tree['launches']} levels instead of {T} steps, but multiplies matrices by matrices, "
            f"{times(tree)}, and this backend has too few workers to make up for it"
        )
    if method == "chunked":
        counts = chunked(T, B, H, weights, 1, length)
        return (
            f"{-(-T // length)} chunks of {length} steps go side by side: {counts['steps']} steps instead of {T} make "
            f"up for {times(counts)} of the linear scan"
        )
    return f"{tree['launches']} levels instead of {T} steps: the workers make up for {times(tree)} of the linear scan"
