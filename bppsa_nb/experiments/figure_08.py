"""Figure 8: what a backward pass by BPPSA takes as T and 1/B grow, against ordinary back-propagation."""

import time
from functools import partial

import numpy as np

from bppsa_nb import backends
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.datasets import Bitstream
from bppsa_nb.experiments.timing import repeat
from bppsa_nb.figures import COLORS
from bppsa_nb.trainer import cross_entropy

TITLE = "Figure 8: backward latency, speedup and breakdown over T and 1/B"
CAPTION = (
    "One iteration of the paper's RNN (H = 20, float32). BP is ordinary back-propagation through time on the same "
    "backend, in one fused loop; BPPSA's time holds the assembly of the Jacobians. Medians of rounds in which both "
    "took turns, warm; black bars: standard deviation. Speedups below 1 mean that BPPSA is slower: it multiplies "
    "matrices where BP multiplies vectors, and a CPU has too few workers to share them out to."
)
ALT = (
    "Six plots, three over sequence length T and three over the fraction 1/B of the machine per sample. Latency: "
    "BPPSA's and BP's backward times rise with T and fall with 1/B on every backend. Backward speedup of BPPSA over "
    "BP, with a line at 1; on a CPU all of it lies far below. Breakdown: bars of forward pass and backward pass, "
    "normalized by the baseline's total; on a CPU, BPPSA's backward pass dwarfs everything else."
)
LENGTHS = {"quick": (10, 30, 100, 300, 1000), "paper": (10, 30, 100, 300, 1000, 3000, 10000, 30000)}
BATCHES = (256, 128, 64, 32, 16, 8, 4, 2)
BATCH = 16  # while T varies
LENGTH = {"quick": 100, "paper": 1000}  # while B varies
SECONDS = {"quick": 0.4, "paper": 60.0}  # for one point
METHODS = ("linear", "blelloch")
MARKS = {"numpy": ("s", ":"), "cpu": ("o", "-"), "cuda": ("^", "-")}


def measure(scale, rng, progress):
    """Time both methods on every backend of this machine: one row per backend, T, B and method."""
    sizes = [(T, BATCH) for T in LENGTHS[scale]]
    sizes += [(LENGTH[scale], B) for B in BATCHES if (LENGTH[scale], B) not in sizes]
    chosen = dict.fromkeys(["numpy", "cpu", backends.resolve("auto")])
    points = [{"backend": backend, "T": T, "B": B} for backend in chosen for T, B in sizes]
    table = progress.collect(points, partial(time_iterations, seconds=SECONDS[scale]), rng)
    table.attrs["length_while_B_varies"] = LENGTH[scale]
    return table


def time_iterations(point, rng, seconds):
    """Time forward passes and both methods' backward passes, taking turns.

    Parameters
    ----------
    point : dict
        `backend`, `T` and `B`.
    rng : np.random.Generator
    seconds : float
        As for `timing.repeat`.

    Returns
    -------
    list of dict
        A row per method: `forward` and `backward`, medians in seconds per iteration, `backward_std`, and how many
        `rounds` there were. The forward pass holds the loss, the backward pass all parameter gradients and, for
        BPPSA, the assembly of the Jacobians.
    """
    backend, T, B = point["backend"], point["T"], point["B"]
    model = RNN(input_size=1, hidden_size=20, num_classes=10, rng=rng)
    x, y = Bitstream(T, B, rng=rng).batch(np.arange(B))

    def one_round():
        marks = [time.perf_counter()]
        activations = model.forward(x, backend=backend)
        _, grad_logits = cross_entropy(activations.logits, y)
        marks.append(time.perf_counter())
        for method in METHODS:
            model.backward(activations, grad_logits, method=method, backend=backend)
            marks.append(time.perf_counter())
        return np.diff(marks)

    rounds = repeat(one_round, seconds)
    forward, *backward = np.median(rounds, axis=0)
    spread = np.std(rounds, axis=0)[1:]
    return [
        {"method": method, "forward": forward, "backward": median, "backward_std": std, "rounds": len(rounds)}
        for method, median, std in zip(METHODS, backward, spread, strict=True)
    ]


def speedups(table):
    """Compare both methods at every point.

    Parameters
    ----------
    table : pandas.DataFrame
        From this experiment.

    Returns
    -------
    pandas.DataFrame
        Per backend, T and B: the times in seconds per iteration `forward`, `bp`, `bppsa` and `bppsa_std`, and the
        speedups `backward` (bp / bppsa) and `overall` (both with the forward pass).
    """
    keys = ["backend", "T", "B"]
    methods = {method: table[table["method"] == method].set_index(keys) for method in METHODS}
    bp, bppsa = methods["linear"], methods["blelloch"]
    both = bppsa[["forward"]].assign(bp=bp["backward"], bppsa=bppsa["backward"], bppsa_std=bppsa["backward_std"])
    both["backward"] = both["bp"] / both["bppsa"]
    both["overall"] = (both["forward"] + both["bp"]) / (both["forward"] + both["bppsa"])
    return both.reset_index()


def plot(table):
    """Draw latency, speedup and breakdown over T in the first row, over 1/B in the second."""
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(2, 3, figsize=(10.4, 5.8), layout="constrained")
    both = speedups(table)
    length = table.attrs["length_while_B_varies"]
    over_T = both[both["B"] == BATCH].assign(place=lambda rows: rows["T"].map(str))
    over_B = both[both["T"] == length].sort_values("B", ascending=False, kind="stable")
    over_B = over_B.assign(place=over_B["B"].map("1/{}".format))
    columns = {"Backward latency": _latency, "Backward speedup": _speedup, "Breakdown": _breakdown}
    for rows, letters, label, fixed, row in (
        (over_T, "abc", "sequence length, T", f"B = {BATCH}", axes[0]),
        (over_B, "def", "fraction of the machine per sample, 1/B", f"T = {length}", axes[1]),
    ):
        for ax, letter, (title, draw) in zip(row, letters, columns.items(), strict=True):
            draw(ax, rows)
            ax.set_title(f"({letter}) {title}, {fixed}", size=10)
            ax.set_xlabel(label)
            ax.tick_params(axis="x", labelsize=7)
            ax.grid(axis="x", visible=False)
    for ax, place in ((axes[0, 0], "outside upper left"), (axes[0, 2], "outside upper right")):
        fig.legend(*ax.get_legend_handles_labels(), loc=place, ncols=4)
    return fig


def _latency(ax, rows):
    for backend, part in rows.groupby("backend", sort=False):
        look = {"marker": MARKS[backend][0], "ls": MARKS[backend][1], "ms": 4.5}
        ms = 1e3 * part[["bp", "bppsa", "bppsa_std"]]
        ax.plot(part["place"], ms["bp"], color=COLORS["linear"], label=f"BP, {backend}", **look)
        ax.errorbar(part["place"], ms["bppsa"], ms["bppsa_std"], fmt="none", ecolor="black", capsize=3, elinewidth=1.2)
        ax.plot(part["place"], ms["bppsa"], color=COLORS["blelloch"], label=f"BPPSA, {backend}", **look)
    ax.set(yscale="log", ylabel="ms per iteration")


def _speedup(ax, rows):
    from matplotlib.ticker import LogLocator

    for backend, part in rows.groupby("backend", sort=False):
        marker, style = MARKS[backend]
        ax.plot(part["place"], part["backward"], marker=marker, ms=4.5, ls=style, color=COLORS["blelloch"])
    ax.axhline(1, color="black", lw=1.1)
    ax.set(yscale="log", ylabel="BP's time / BPPSA's time")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")


def _breakdown(ax, rows):
    rows = rows[rows["backend"] == rows["backend"].iloc[-1]]  # the fastest; two would be hard to read
    total = rows["forward"] + rows["bp"]
    forward, places, width, top = rows["forward"] / total, np.arange(len(rows)), 0.38, 2.2
    for shift, name, role in ((-width, "bp", "linear"), (0, "bppsa", "blelloch")):
        style = {"width": width, "align": "edge", "lw": 0}
        ax.bar(places + shift, forward, color=COLORS["baseline"], **style)
        ax.bar(places + shift, rows[name] / total, bottom=forward, color=COLORS[role], label=name.upper(), **style)
    # A bar that leaves the panel has its height written on it.
    for place, height in zip(places, forward + rows["bppsa"] / total, strict=True):
        if height > top:
            look = {"rotation": 90, "ha": "center", "va": "top", "size": 8, "color": "white"}
            ax.text(place + width / 2, 0.98 * top, f"{height:.2g}×", **look)
    ax.set_xticks(places, rows["place"])
    ax.set(ylim=(0, top), ylabel="time / baseline's time")
    ax.bar(0, 0, color=COLORS["baseline"], label="FP")
