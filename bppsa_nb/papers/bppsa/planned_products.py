"""Planned sparse products on a pruned VGG-11: what the products that Figure 10 counts take in time and memory."""

import time
import tracemalloc

import numpy as np
from matplotlib import pyplot

from bppsa_nb.operands.batched import Planned
from bppsa_nb.papers.bppsa import vgg
from bppsa_nb.papers.bppsa.vgg import LEVELS
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.timing import take_turns
from bppsa_nb.scan import scan

ROUNDS = {"quick": (2, 6), "paper": (10, 50)}
METHODS = {"ordinary": ("ordinary", None), "linear": ("linear", None), "truncated": ("truncated", LEVELS)}
_WAYS = {
    "scipy": ("SciPy, same entries", "#999999"),
    "scipy_nonzero": ("SciPy, zeros left out", "#555555"),
    "planned": ("planned", COLORS["truncated"]),
}


class Timed:
    """An operand of one sample that logs its products: planned, by SciPy, and by SciPy without zeros."""

    def __init__(self, operand, log, rounds):
        self.operand, self.log, self.rounds = operand, log, rounds

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            product = self.operand @ other
            (seconds,) = np.median(take_turns([lambda: self.operand @ other], 0.2, self.rounds), axis=0)
            self.log.append({"planned": seconds, "multiply_adds": self.operand.pattern.nnz})
            return product
        start = time.perf_counter()
        plan = self.operand.pattern.times(other.operand.pattern)
        symbolic = time.perf_counter() - start
        left, right = (each.operand.pattern.matrix(each.operand.values[0]) for each in (self, other))
        few_left, few_right = map(vgg.without_zeros, (left, right))
        product = self.operand @ other.operand
        error = _difference(product, few_left @ few_right)
        values = product.values.copy()
        planned = lambda: plan(self.operand.values, other.operand.values, "cpu", values)  # noqa: E731
        calls = [lambda: left @ right, lambda: few_left @ few_right, planned]
        seconds = take_turns(calls, 0.5, self.rounds)
        row = {way: np.median(column) for way, column in zip(_WAYS, seconds.T, strict=True)}
        row |= {"symbolic": symbolic, "error": error, "multiply_adds": plan.multiply_adds}
        row["performed"] = plan.performed(self.operand.values[0])
        row |= {"nnz": plan.pattern.nnz, "bytes": product.values.nbytes, "kept": plan.pattern.indices.nbytes}
        self.log.append(row | {"spread": np.subtract(*np.percentile(seconds[:, -1], [75, 25])) / row["planned"]})
        return Timed(product, self.log, self.rounds)


def _difference(product, expected):
    """Return the largest difference from SciPy's product over the largest entry; all entries of up to 512 rows."""
    pattern, (values,) = product.pattern, product.values
    worst = 0.0
    for i in np.linspace(0, expected.shape[0] - 1, 512).astype(int):
        row, entries = expected[[i]].toarray()[0], slice(*pattern.indptr[i : i + 2])
        row[pattern.indices[entries]] -= values[entries]
        worst = max(worst, np.abs(row).max(initial=0))
    return worst / max(np.abs(expected.data).max(initial=0), np.finfo(np.float32).tiny)


def measure(scale, rng, progress):
    """Measure every product of the truncated scan, and whole backward passes: a row each."""
    network, images, activations, links = vgg.on_an_image(rng)
    points = [{"part": "products"}, *({"part": "backward", "method": method} for method in METHODS)]

    def measure_point(point, rng):
        if point["part"] == "products":
            log, gradient = [], rng.standard_normal((1, links[-1].shape[1])).astype(np.float32)
            operands = [Timed(Planned(link.pattern, link.values, "cpu"), log, ROUNDS[scale]) for link in links]
            scan([gradient, *reversed(operands)], "truncated", LEVELS)
            _, rows = vgg.products([link.pattern for link in links], LEVELS)
            return [row | measured for row, measured in zip(rows, log, strict=True)]
        return [_measure_backward(network, activations, METHODS[point["method"]], rng, ROUNDS[scale])]

    table = progress.collect(points, measure_point, rng)
    table.attrs["data"] = images.data
    return table


def _measure_backward(network, activations, how, rng, rounds):
    method, levels = how
    grad_logits = rng.standard_normal(activations.logits.shape).astype(np.float32)

    def backward():
        network.backward(activations, grad_logits, method=method, backend="cpu", levels=levels)

    seconds = take_turns([backward], 1.5, rounds)[:, 0]
    tracemalloc.start()
    backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    low, median, high = np.percentile(seconds, [25, 50, 75])
    kept = 0 if method == "ordinary" else sum(pattern.indices.nbytes for pattern in network.patterns())
    return {"planned": median, "spread": (high - low) / median, "bytes": peak, "kept": kept}


def levels(table):
    """Sum up each up-sweep level's matrix-matrix products: seconds of each way, multiply-adds, the largest error."""
    rows = where(table, part="products", kind="mm")
    sums = rows.groupby("level")[[*_WAYS, "symbolic", "multiply_adds"]].sum()
    return sums.assign(error=rows.groupby("level")["error"].max())


def plot(table):
    """Draw seconds per level and way, and the time and memory of backward passes."""
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(10.4, 4), width_ratios=(2, 1, 1), layout="constrained")
    sums = levels(table)
    places = np.arange(len(sums))
    for i, (way, (name, color)) in enumerate(_WAYS.items()):
        bars = left.bar(places + 0.27 * (i - 1), sums[way], 0.25, color=color, label=name)
        if way == "planned":
            texts = (1e3 * sums[way]).map("{:.3g} ms".format)
        else:
            texts = (sums[way] / sums["planned"]).map("{:.2g}×".format)
        left.bar_label(bars, texts, size=8, padding=2)
    counts = [f"level {int(level)}\n{n / 1e6:.3g} M multiply-adds" for level, n in sums["multiply_adds"].items()]
    left.set_xticks(places, counts)
    left.set(title="Products of each up-sweep level", ylabel="seconds", yscale="log")
    left.margins(y=0.15)
    left.legend(loc="upper left")
    left.grid(False, axis="x")
    rows = table[table["part"] == "backward"]
    colors = [COLORS["baseline"], COLORS["linear"], COLORS["truncated"]]
    bars = middle.bar(rows["method"], rows["planned"], 0.6, color=colors)
    middle.bar_label(bars, [f"{seconds:.2g} s" for seconds in rows["planned"]], size=9, padding=2)
    middle.set(title="One backward pass", ylabel="seconds")
    values, kept = rows["bytes"] / 2**20, rows["kept"] / 2**20
    kept += np.where(rows["method"] == "truncated", table.loc[table["part"] == "products", "kept"].sum() / 2**20, 0)
    right.bar(rows["method"], values, 0.6, color=colors)
    bars = right.bar(rows["method"], kept, 0.6, bottom=values, color="white", edgecolor=colors, hatch="///")
    right.bar_label(bars, [f"{total:.0f} MiB" for total in values + kept], size=9, padding=2)
    right.set(title="Its memory", ylabel="MiB (hatched: patterns, kept)")
    for ax in (middle, right):
        ax.margins(y=0.12)
        ax.grid(False, axis="x")
    return fig
