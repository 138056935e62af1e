"""Figure 8: what a backward pass by BPPSA takes as T and 1/B grow, against ordinary back-propagation."""

from functools import partial

import numpy as np
from matplotlib import pyplot
from matplotlib.ticker import LogLocator

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import epochs, iterations
from bppsa_nb.papers.bppsa.iterations import speedups
from bppsa_nb.papers.figures import COLORS

BATCH = iterations.RNN_BATCH
TITLES = "Backward latency", "Backward speedup", "Breakdown"
LABELS = {"linear": "BP", "blelloch": "BPPSA, levels", "chunked": "BPPSA, chunks"}
MARKS = {"numpy": ("s", ":"), "cpu": ("o", "-"), "cuda": ("^", "-")}


def measure(scale, rng, progress):
    """Time all methods on this machine's GPU, or on every backend of its CPU: a row per backend, T, B and method."""
    length, sizes = iterations.RNN_LENGTH[scale], [(T, BATCH) for T in iterations.RNN_LENGTHS[scale]]
    sizes += [(length, B) for B in iterations.RNN_BATCHES if (length, B) not in sizes]
    chosen = ["cuda"] if backends.resolve("auto") == "cuda" else ["numpy", "cpu"]  # a GPU may be lent, for minutes
    points = [{"backend": backend, "T": T, "B": B} for backend in chosen for T, B in sizes]
    table = progress.collect(points, partial(iterations.time_rnn, seconds=iterations.RNN_SECONDS[scale]), rng)
    table.attrs["length_while_B_varies"] = length
    return table


def plot(table):
    """Draw latency, speedup and breakdown over T in the first row, over 1/B in the second."""
    fig, axes = pyplot.subplots(2, 3, figsize=(10.4, 5.8), layout="constrained")
    both = speedups(table)
    length = table.attrs["length_while_B_varies"]
    over_T = both[both["B"] == BATCH].assign(place=lambda rows: rows["T"].map(str))
    over_B = both[both["T"] == length].sort_values("B", ascending=False, kind="stable")
    over_B = over_B.assign(place=over_B["B"].map("1/{}".format))
    for rows, letters, label, fixed, row in (
        (over_T, "abc", "sequence length, T", f"B = {BATCH}", axes[0]),
        (over_B, "def", "fraction of the machine per sample, 1/B", f"T = {length}", axes[1]),
    ):
        latency, speedup, breakdown = row
        _lines(latency, rows, {"bp": "linear", "bppsa": "blelloch", "chunked": "chunked"}, 1e3)
        latency.set(yscale="log", ylabel="ms per iteration")
        _lines(speedup, rows, {"backward": "blelloch", "backward_chunked": "chunked"})
        speedup.axhline(1, color="black", lw=1.1)
        panels.log_scale(speedup, "y")
        speedup.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        speedup.set_ylabel("BP's time / BPPSA's time")
        _breakdown(breakdown, rows)
        for ax, letter, title in zip(row, letters, TITLES, strict=True):
            ax.set_title(f"({letter}) {title}, {fixed}", size=10)
            ax.set_xlabel(label)
            ax.tick_params(axis="x", labelsize=7)
            ax.grid(axis="x", visible=False)
    handles = panels.patches({"FP": COLORS["baseline"]} | {name: COLORS[method] for method, name in LABELS.items()})
    for backend in both["backend"].unique():
        marker, style = MARKS[backend]
        handles += panels.lines({f"on {backend}": "black"}, marker=marker, ls=style, ms=4.5)
    panels.legend(fig, handles)
    return fig


def _lines(ax, rows, columns, scale=1):
    """Draw columns in the colors of their methods, a line per backend, with their standard deviations if known."""
    for backend, part in rows.groupby("backend", sort=False):
        marker, line = MARKS[backend]
        for column, method in columns.items():
            if f"{column}_std" in part:
                bars = {"fmt": "none", "ecolor": "black", "capsize": 3, "elinewidth": 1.2}
                ax.errorbar(part["place"], scale * part[column], scale * part[f"{column}_std"], **bars)
            ax.plot(part["place"], scale * part[column], color=COLORS[method], marker=marker, ls=line, ms=4.5)


def _breakdown(ax, rows):
    rows = rows[rows["backend"] == rows["backend"].iloc[-1]]  # the fastest; two would be hard to read
    colors = {"forward": "baseline", "bp": "linear", "bppsa": "blelloch", "chunked": "chunked"}
    bars, places, top = [("forward", name) for name in ("bp", "bppsa", "chunked")], np.arange(len(rows)), 2.2
    drawn = epochs.draw_bars(ax, rows, places, bars, {name: COLORS[role] for name, role in colors.items()})
    for ink, tops in zip(("white", "white", "black"), drawn, strict=True):
        for place, height in tops:
            if height > top:  # a bar that leaves the panel has its height written on it
                style = {"rotation": 90, "ha": "center", "va": "top", "size": 7, "color": ink}
                ax.text(place, 0.98 * top, f"{height:.2g}×", **style)
    ax.set_xticks(places, rows["place"])
    ax.set(ylim=(0, top), ylabel="time / baseline's time")
