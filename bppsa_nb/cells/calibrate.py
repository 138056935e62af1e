"""Measures on this machine what starts, steps and multiply-adds cost: the prices that ``method="auto"`` goes by.

`run` times every method on a few small chains, finds the prices that explain these times best, and stores them in the
user's cache folder. ``bppsa-nb calibrate`` is `run`.
"""

import itertools
import math
import time
from datetime import UTC, datetime
from functools import partial

import numpy as np

from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains import counts, plan, prices
from bppsa_nb.chains.backprop import backprop
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.machine import backends, files, process

SIZES = [  # T, B, H: each of what a product consists of is most of the time somewhere
    *((10, 1, 4), (60, 8, 64), (60, 1, 128), (400, 1, 16), (400, 8, 16), (400, 64, 4)),
    *((1000, 2, 20), (2500, 1, 4)),
]
LONG = [(3000, 4, 20), (3000, 1, 64), (3000, 8, 64), (1000, 4, 64), (1000, 1, 128), (3000, 2, 128)]  # of forward passes


def runnable():
    """List the backends that can be measured here: NumPy, and the CPU where code is compiled.

    Not a GPU: calls last milliseconds there, whatever they do, for Python issues the launches. Prices that fit that say
    nothing of a recorded step; machine code tells more of it.
    """
    return ["numpy", *(["cpu"] if backends.compiles() else [])]


def points():
    """List what is measured: dicts of the arguments of `counts.count`, without the backend."""
    listed = []
    for (chain, methods), (T, B, H), weights in itertools.product(counts.METHODS.items(), [*SIZES, *LONG], (0, 1, 3)):
        if (weights == 0) == (chain == "dense") and (chain == "forward" or (T, B, H) in SIZES):
            for method in methods:
                lengths = sorted({T // 16, math.isqrt(T), T // 2} - {0}) if method == "chunked" else [None]
                if (chain, method) == ("forward", "chunked"):  # a few steps leave hardly anything to repair
                    lengths = [n for n in lengths if counts.WARM_UP < T and n >= counts.CHECK_EVERY // 2]
                listed += [
                    {"chain": chain, "method": method, "T": T, "B": B, "H": H, "weights": weights, "length": length}
                    for length in lengths
                ]
    return listed


def chain(T, B, H, weights, rng):
    """Make a chain whose transposed Jacobians are orthogonal, so that gradients neither grow nor vanish.

    It is in float32; with more than one weight, all but the first are 0, which takes as long as other numbers do.
    """
    orthogonal = np.linalg.qr(rng.standard_normal((H, H)))[0].astype(np.float32)
    signs = rng.integers(0, 2, (max(weights, 1), T, B, H)).astype(np.float32) * 2 - 1
    if not weights:
        return signs[0][..., None] * orthogonal
    stacked = np.zeros((weights, H, H), np.float32)
    stacked[0] = orthogonal
    return StructuredChain(stacked, signs, np.zeros((T, B, H), np.float32) if weights > 1 else None)


def measure(backend, progress=True, rounds=3):
    """Time the methods at all `points`; return their seconds.

    Of several calls, in `rounds` over all points, it is the fastest, which neither had to compile nor was held up by
    something else on the machine.
    """
    listed = points()
    fastest = [math.inf] * len(listed)
    with process.bar(total=rounds * len(listed), desc=backend, disable=None if progress else True) as bar:
        for _, i in itertools.product(range(rounds), range(len(listed))):
            fastest[i] = min(fastest[i], *_time(backend, **listed[i]))
            bar.update()
    return fastest


def _time(backend, chain, length, **sizes):
    call = _forward(backend, length=length, **sizes) if chain == "forward" else _backward(backend, **sizes)
    times, begun = [], time.perf_counter()
    with plan.chunks_of(None if chain == "forward" else length):
        while len(times) < 3 or (time.perf_counter() - begun < 0.01 and len(times) < 10):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return times


def _backward(backend, method, T, B, H, weights):
    operand = chain(T, B, H, weights, np.random.default_rng(0))
    return partial(backprop, operand, np.ones((B, H), np.float32), method=method, backend=backend)


def _forward(backend, method, T, B, H, weights, length):
    model, rng = {1: RNN, 3: GRU}[weights](1, H, 1), np.random.default_rng(0)
    for name in ("weight_hh_l0", "bias_hh_l0"):
        model.params[name][...] = 0  # what forgets at once is what `counts.repaired` counts
    x = rng.standard_normal((T, B, 1)).astype(np.float32)
    return partial(model.forward, x, backend=backend, method=method, length=length)


def fit(backend, listed, seconds):
    """Find the prices that explain the times of `points` best: in relative error, and none below 0.

    Returned are prices in seconds, by kind of product, and what they predict for each point.
    """
    from scipy.optimize import nnls

    counted = np.zeros((len(listed), 3 * len(counts.KINDS)))
    for row, point in zip(counted, listed, strict=True):
        for kind, work in counts.count(**point, backend=backend).items():
            each = work.starts, work.steps, counts.WRITTEN * work.written + work.multiply_adds
            row.reshape(-1, 3)[counts.KINDS.index(kind)] = each
    # Columns of one length, or the solver takes what is small for nothing.
    relative = counted / np.array(seconds)[:, None]
    norms = np.linalg.norm(relative, axis=0)
    found = nnls(relative / norms, np.ones(len(listed)))[0] / norms
    rounded = [[float(f"{price:.3g}") for price in each] for each in found.reshape(-1, 3)]
    return dict(zip(counts.KINDS, rounded, strict=True)), counted @ found


def run(chosen=None, progress=True, **measuring):
    """Measure this machine, and store its prices: those of the `chosen` backends, or of all that can be measured here.

    Returned are the records by backend, see `prices.load`, and how far each one's predictions are from what was
    measured, relative to it (points,). The file is written at the end: whoever stops before leaves the old one as it
    was. `progress`, and whatever else is given, is `measure`'s. Raises ValueError for a backend that cannot be measured
    here, and OSError, before anything is measured where that is known, if prices cannot be stored.
    """
    for backend in chosen or ():
        if backend not in runnable():
            known = f"{', '.join(runnable())} (a GPU's prices follow from its machine code)"
            raise ValueError(f"backend must be one that can be measured here, {known}; got {backend!r}")
    prices.load("numpy")  # raises where the file cannot be read; what cannot be stored is not measured
    files.check_writable(prices.path())
    records, errors = {}, {}
    for backend in chosen or runnable():
        seconds = measure(backend, progress, **measuring)
        fitted, predicted = fit(backend, points(), seconds)
        date = datetime.now(UTC).date().isoformat()
        records[backend] = {"machine": prices.machine(), "date": date, "prices": fitted}
        errors[backend] = np.abs(predicted / seconds - 1)
    prices.store(records)
    plan.refresh()
    return records, errors
