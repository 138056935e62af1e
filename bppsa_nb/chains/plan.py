"""Which method ``"auto"`` takes, and why: the one with the least predicted time.

What each method does is counted (`bppsa_nb.chains.counts`), and has its price (`bppsa_nb.chains.prices`).
"""

import functools
import shutil
import textwrap
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from bppsa_nb.chains import counts, prices
from bppsa_nb.chains.counts import CHECK_EVERY, count, fills, price, workers
from bppsa_nb.machine import backends
from bppsa_nb.machine.arguments import Backend, Count, Dtype, Size, checked
from bppsa_nb.machine.checks import check_count
from bppsa_nb.scan.levels import down_levels, up_levels

METHODS = ("linear", "blelloch", "truncated", "chunked")
LARGEST = {4: 108, 8: 64}  # rows of a matrix that the levels of a GPU multiply, by bytes of a number


@dataclass(frozen=True, repr=False)
class Explanation:
    """What ``method="auto"`` takes, and what each candidate was expected to cost. Printed, it says everything."""

    method: str
    backend: str
    seconds: dict[str, float]  # predicted time of every candidate method
    length: int  # steps of a chunk in the candidate "chunked"
    reason: str  # one sentence
    source: str  # where the prices come from: this machine, or the package's defaults
    caution: str  # what may turn out otherwise

    def __repr__(self):
        lines = [f"method={self.method!r}, backend={self.backend!r}: {self.reason}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            note = f", chunks of {self.length} steps" if name == "chunked" else ""
            lines.append(f"  {name:<10} {seconds * 1e3:10.3g} ms predicted{note}")
        lines.append(f"Predicted from {self.source}.")
        lines.append(self.caution)
        width = min(shutil.get_terminal_size().columns, 100)
        how = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
        return "\n".join(textwrap.fill(line, width, **how) for line in lines)


@checked
def explain(
    T: Count, B: Size, H: Size, dtype: Dtype = np.float32, backend: Backend = "auto", weights: Count = 0,
    forward: bool = False,
) -> Explanation:  # fmt: skip
    """Explain which method and backend ``"auto"`` takes for a chain, or for the forward pass of a layer.

    Parameters
    ----------
    T, B, H
        Length of the chain, batch size, size of a state.
    dtype
        Of all arrays.
    backend
        Where to compute, as in `backprop`.
    weights
        How many weights a `StructuredChain` has: 1 from an RNN, 3 from a GRU. 0 means stored dense Jacobians.
    forward
        Explain the forward pass of a layer with H hidden units instead; `weights` is then at least 1.

    Returns
    -------
    Explanation
        `method` and `backend` are the ones that ``"auto"`` takes; `seconds` are the predicted times of all methods.
        `reason` says why in a sentence, `source` where the cost estimates come from: this machine, or the package's
        defaults. Printing it shows all of this.
    """
    if weights < forward:
        raise ValueError(f"weights must be at least 1 with forward=True, got {weights}: an RNN has 1, and a GRU 3")
    return _explain(_kind(weights, forward), *_sizes(T, B, H, dtype, backend, weights))


def known(T, B, H, dtype, backend, weights, forward=False):
    """Return what `explain` says of sizes that are known to be right, on a backend that is none of "auto"."""
    return _explain(_kind(weights, forward), T, B, H, dtype.itemsize // 4, backend, weights)


def solve_seconds(solved, T, B, H, dtype, backend, weights):
    """Predict the seconds of a forward pass in chunks from what it took, a `bppsa_nb.cells.chunked.Solved`."""
    T, B, H, width, backend, weights = _sizes(T, B, H, dtype, backend, weights)
    # One more pass for the guess.
    took = counts.solving(solved.passes + 1, solved.steps, round(solved.work * T * B), H, weights, backend)
    return price(took, _priced(backend)[0], width)


def chunk_length(T, B, H, dtype=np.float32, backend="auto", weights=0, forward=False):
    """Return how many steps a chunk has, from 1 to max(T, 1): of several lengths, the one predicted to be the fastest.

    Tried are the powers of two up to T, and T divided among the workers; forward, T divided by powers of two.
    Parameters are those of `explain`.
    """
    imposed = None if forward else _imposed.get()
    if imposed is not None:
        return min(imposed, max(T, 1))
    return _chunk_length(_kind(weights, forward), *_sizes(T, B, H, dtype, backend, weights))


def _sizes(T, B, H, dtype, backend, weights):
    return T, B, H, np.dtype(dtype).itemsize // 4, backends.resolve(backend), weights


def candidate_lengths(T, workers):
    """List the chunk lengths that `chunk_length` chooses from, ascending."""
    powers = {1 << i for i in range(max(T, 1).bit_length())}
    return sorted(powers | {max(1, -(-T // workers))})


def _kind(weights, forward=False):
    return "forward" if forward else "structured" if weights else "dense"


@contextmanager
def chunks_of(length):
    """Have every chunk be of `length` steps inside the block, whatever is predicted: for measuring what lengths cost.

    None is for what is predicted; a chain that is shorter is one chunk. Raises ValueError for a length below 1.
    """
    before = _imposed.set(None if length is None else check_count("length", length, 1))
    try:
        yield
    finally:
        _imposed.reset(before)


_imposed = ContextVar("imposed", default=None)


def refresh():
    """Forget prices that were read, and all that was predicted from them; the next call reads them anew."""
    for function in (_priced, _chunk_length, _explain):
        function.cache_clear()


@functools.cache
def _priced(backend):
    """Return a backend's prices, and a few words on where they come from."""
    if backend == "cuda":
        return prices.defaults(backend)["prices"], "the machine code of the package's kernels, for an H100 or H200"
    advice = "`bppsa-nb calibrate` measures this machine"
    try:
        found = prices.load(backend)
    except OSError as error:  # a home folder that is another user's, for one
        found, advice = None, f"this machine's cannot be read: {error}"
    if found is not None:
        return found["prices"], f"prices measured on this machine, {found['date']}"
    found = prices.defaults(backend)
    return found["prices"], f"the package's defaults, measured on {found['machine']}; {advice}"


@functools.lru_cache(1024)
def _chunk_length(kind, T, B, H, width, backend, weights):
    priced = _priced(backend)[0]
    if kind == "forward":  # 2, 4, 8 ... chunks fill registers; short ones are repaired again and again
        halved = [-(-T // 2**i) for i in range(1, T.bit_length())]
        lengths = sorted(length for length in halved if length >= CHECK_EVERY) or [max(T, 1)]
    else:
        lengths = candidate_lengths(T, workers(backend))
    sizes = kind, "chunked", T, B, H, weights, backend
    return min(lengths, key=lambda length: price(count(*sizes, length), priced, width))


@functools.lru_cache(1024)
def _explain(kind, T, B, H, width, backend, weights):
    priced, source = _priced(backend)
    length = _chunk_length(kind, T, B, H, width, backend, weights)
    counted, alone = (  # what is said counts work whole: by a single worker
        {method: count(kind, method, T, B, H, weights, where, length) for method in counts.METHODS[kind]}
        for where in (backend, "numpy")
    )
    if backend == "cuda" and H > LARGEST[4 * width]:
        counted.pop("blelloch", None)
    seconds = {method: price(found, priced, width) for method, found in counted.items()}
    # Trees as high as the chain is long, and one or two chunks, are the linear scan with more to do around it.
    shorter = {"blelloch": up_levels(T) + down_levels(T) < T, "linear": True}
    shorter["chunked"] = length * 2 < T
    if kind == "forward":  # and how often chunks are repaired is not known: they must be expected to gain a tenth
        gains = not fills(B, backend) and seconds["chunked"] < 0.9 * seconds["linear"]
        shorter["chunked"] = length < T and gains
    method = min((name for name in seconds if shorter[name]), key=seconds.get)
    work = {name: sum(each.multiply_adds for each in found.values()) for name, found in alone.items()}
    times = {name: f"{work[name] / max(work['linear'], 1):.3g} times the work" for name in work}
    reason = _reason(kind, method, T, length, times)
    caution = (
        "If chunks soon meet; where they do not, the rest is taken one chunk after the other, and a trainer goes back "
        "to the loop."
        if kind == "forward"
        else "Matrix products carry exact powers of two; where the entries of one lie too far apart for the dtype, "
        "the linear scan computes the answer."
    )
    return Explanation(method, backend, seconds, length, reason, source, caution)


def _reason(kind, method, T, length, times):
    levels = up_levels(T) + down_levels(T)
    chunks = f"{-(-T // length)} chunks of at most {length} steps go side by side"
    if kind == "forward" and method == "linear":
        return f"a loop of {T} steps is over before chunks of it have been started, repaired, and found to meet"
    if kind == "forward":
        return f"{chunks}, as samples do, and what follows a wrong guess is repaired, {times['chunked']} of the loop"
    if method == "linear":
        return (
            f"the tree has {levels} levels instead of {T} steps, but multiplies matrices by matrices, "
            f"{times['blelloch']}, and this backend has too few workers to make up for it"
        )
    if method == "chunked":
        return f"{chunks}, which makes up for {times['chunked']} of the linear scan"
    return f"{levels} levels instead of {T} steps: the workers make up for {times['blelloch']} of the linear scan"
