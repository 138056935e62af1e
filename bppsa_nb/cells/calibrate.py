"""Measures on this machine what `bppsa_nb.chains.counts` counts: the prices that ``method="auto"`` goes by.

`run` times the methods at a grid of small chains, finds the prices that explain these times best, and stores them in
the user's cache folder. ``bppsa-nb calibrate`` is `run`.
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
from bppsa_nb.chains.prices import NAMES
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine import backends, extras, files, hardware

SECONDS = 28  # of measuring, per backend
FEWEST = 60  # points that are measured however long it takes: ten of each kind and method
LARGEST = 2**22  # entries of a chain's Jacobians, and of whatever a method does with them


def runnable():
    """List the backends that can be measured here: NumPy, and the CPU where code is compiled.

    Not a GPU: calls last milliseconds there, whatever they do, for Python issues the launches. Prices that fit that say
    nothing of a recorded step; machine code tells more of it (`bppsa_nb.chains.costs`).
    """
    return ["numpy", *(["cpu"] if backends.compiles() else [])]


def points():
    """List what is measured, dicts of kind, method and sizes, in an order in which the first stand for all others."""
    listed = []
    sizes = (10, 60, 400, 2500), (1, 8, 64), (4, 16, 64, 128, 512), (1, 3)
    for (kind, method), T, B, H, weights in itertools.product(prices.kinds_and_methods(), *sizes):
        if kind == "dense" and weights == 3:
            continue
        weights = 0 if kind == "dense" else weights
        lengths = sorted({T // 16, math.isqrt(T), T // 2} - {0}) if method == "chunked" else [None]
        if (kind, method) == ("forward", "chunked"):  # a few steps leave hardly anything to repair
            lengths = [n for n in lengths if counts.WARM_UP < T and n >= counts.CHECK_EVERY // 2]
        for length in lengths:
            point = dict(kind=kind, method=method, T=T, B=B, H=H, weights=weights, length=length)
            done = count(point, "numpy")
            stored = 0 if kind == "forward" else T * B * H * H
            if max(stored, done["entries"], done["matvec"] // 8, done.get("matmul", 0) // 16) <= LARGEST:
                listed.append(point)
    np.random.default_rng(0).shuffle(listed)
    # Kinds and methods take turns, so that none is left out where time is short.
    turn = {}
    for point in listed:
        turn.setdefault((point["kind"], point["method"]), []).append(point)
    return [point for together in itertools.zip_longest(*turn.values()) for point in together if point]


def count(point, backend):
    """Count what a method does at a point; see `bppsa_nb.chains.counts`."""
    sizes = [point[name] for name in ("T", "B", "H", "weights")]
    length = [point["length"]] if point["method"] == "chunked" else []
    return counts.KINDS[point["kind"]][point["method"]](*sizes, backend, *length)


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


def measure(backend, progress=True, seconds=SECONDS, clock=time.perf_counter):
    """Time the methods at as many of the `points` as there is time for; return these with their `seconds`.

    Of several calls it is the fastest, which neither had to compile nor was held up by something else on the machine.
    """
    listed = points()
    fastest, start = [math.inf] * len(listed), clock()
    with extras.bar(total=seconds, desc=backend, unit="s", disable=None if progress else True) as bar:
        for i in itertools.cycle(range(len(listed))):
            fastest[i] = min(fastest[i], *_time(backend, listed[i], clock))
            passed = clock() - start
            bar.update(min(round(passed, 1), seconds) - bar.n)
            if passed > seconds and sum(s < math.inf for s in fastest) >= min(FEWEST, len(listed)):
                break
    return [point | {"seconds": s} for point, s in zip(listed, fastest, strict=True) if s < math.inf]


def _time(backend, point, clock):
    call = (_forward if point["kind"] == "forward" else _backward)(backend, point)
    times, begun = [], clock()
    with plan.chunks_of(None if point["kind"] == "forward" else point["length"]):
        while len(times) < 3 or (clock() - begun < 0.01 and len(times) < 10):
            start = clock()
            call()
            times.append(clock() - start)
    return times


def _backward(backend, point):
    operand = chain(*(point[name] for name in ("T", "B", "H", "weights")), np.random.default_rng(0))
    gradient = np.ones((point["B"], point["H"]), np.float32)
    return partial(backprop, operand, gradient, method=point["method"], backend=backend)


def _forward(backend, point):
    model, rng = {1: RNN, 3: GRU}[point["weights"]](1, point["H"], 1), np.random.default_rng(0)
    for name in ("weight_hh_l0", "bias_hh_l0"):
        model.params[name][...] = 0  # what forgets at once is what `counts.repaired` counts
    x = rng.standard_normal((point["T"], point["B"], 1)).astype(np.float32)
    how = {"method": "linear"} if point["method"] == "linear" else {"method": "chunked", "length": point["length"]}
    return partial(model.forward, x, backend=backend, **how)


def fit(measured, backend):
    """Find the prices that explain the measured times best: in relative error, and none below 0.

    Returned are prices in seconds, by kind of chain, method and count, and what they predict for each point.
    """
    from scipy.optimize import nnls

    fitted, predicted = {}, [0.0] * len(measured)
    for kind, method in prices.kinds_and_methods():
        chosen = [i for i, point in enumerate(measured) if (point["kind"], point["method"]) == (kind, method)]
        if not chosen:
            raise ValueError(f"measured must have points of all kinds and methods, got none of {kind} {method}")
        counted = np.array([[count(measured[i], backend).get(name, 0) for name in NAMES] for i in chosen], float)
        times = np.array([measured[i]["seconds"] for i in chosen])
        # Columns of one length, or the solver takes what is small for nothing.
        relative = counted / times[:, None]
        norms = np.linalg.norm(relative, axis=0)
        norms[norms == 0] = 1
        found = nnls(relative / norms, np.ones(len(times)))[0] / norms
        priced = {name: float(f"{price:.3g}") for name, price in zip(NAMES, found, strict=True) if price}
        fitted.setdefault(kind, {})[method] = priced
        for i, seconds in zip(chosen, counted @ found, strict=True):
            predicted[i] = float(seconds)
    return fitted, predicted


def errors(record):
    """Return how far a record's predictions are from what was measured, relative to it: median and worst."""
    off = [abs(point["predicted"] / point["seconds"] - 1) for point in record["points"]]
    return float(np.median(off)), max(off)


def run(chosen=None, progress=True, **measuring):
    """Measure this machine, and store its prices: those of the `chosen` backends, or of all that can be measured here.

    Returned are the records by backend; see `prices.load`. The file is written at the end: whoever stops before leaves
    the old one as it was, and what it holds on other backends stays. `progress`, and whatever else is given, is
    `measure`'s. Raises ValueError for a backend that cannot be measured here, and OSError, before anything is measured
    where that is known, if prices cannot be stored.
    """
    for backend in chosen or ():
        if backend not in runnable():
            raise ValueError(f"backend must be one that can be measured here, {', '.join(runnable())}; got {backend!r}")
    prices.stored()  # raises where that cannot be read; what cannot be stored is not measured
    files.check_writable(prices.path())
    records = {}
    for backend in chosen or runnable():
        measured = measure(backend, progress, **measuring)
        fitted, predicted = fit(measured, backend)
        records[backend] = {
            "machine": prices.machine(backend),
            "date": datetime.now(UTC).date().isoformat(),
            "versions": hardware.versions(),
            "prices": fitted,
            "points": [point | {"predicted": p} for point, p in zip(measured, predicted, strict=True)],
        }
    prices.store(records)
    plan.refresh()
    return records
