"""Figure 8: what a backward pass by BPPSA takes as T and 1/B grow, against ordinary back-propagation."""

from functools import partial

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import epochs, iterations
from bppsa_nb.papers.bppsa.iterations import speedups
from bppsa_nb.papers.figures import COLORS

BATCH = iterations.RNN_BATCH
LABELS = {"bp": ("BP", "linear"), "bppsa": ("levels", "blelloch"), "chunked": ("chunks", "chunked")}
PANELS = {"Backward pass": "ms per iteration", "Backward speedup": "BP's time / BPPSA's time"}
PANELS["Both passes"] = "time / BP's; gray: forward"
GAINS = {"backward": LABELS["bppsa"], "backward_chunked": LABELS["chunked"]}


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
    """Draw latency, speedup and breakdown over T in the first row, over 1/B in the second; a block for each backend."""
    both, length = speedups(table), table.attrs["length_while_B_varies"]
    fig, parts = panels.machines(both.assign(machine="backend " + both["backend"]), 11.4, 5.8)
    for part, here in parts:
        axes = part.subplots(2, 3)
        over_T, over_B = here[here["B"] == BATCH], here[here["T"] == length].sort_values("B", ascending=False)
        lengths = over_T["T"].map(lambda T: f"{T // 1000}k" if T >= 10_000 else str(T))
        shares = over_B["B"].map("1/{}".format)
        _row(axes[0], "abc", over_T, lengths, f"B = {BATCH}", "sequence length, T")
        _row(axes[1], "def", over_B, shares, f"T = {length}", "share of the machine a sample has, 1/B")
    return fig


def _row(axes, letters, rows, names, fixed, label):
    """Draw three panels, with names for the places of their rows."""
    latency, speedup, breakdown = axes
    _lines(latency, rows, LABELS, 1e3)
    _lines(speedup, rows, GAINS)
    speedup.axhline(1, color="black", lw=1.1)
    bars = [("forward", name) for name in LABELS]
    colors = {"forward": COLORS["baseline"]} | {name: COLORS[role] for name, (_, role) in LABELS.items()}
    list(epochs.draw_bars(breakdown, rows, np.arange(len(rows)), bars, colors))  # which draws as it yields
    for ax, letter, (title, words) in zip(axes, letters, PANELS.items(), strict=True):
        ax.set_xticks(range(len(rows)), names, size=7.5)
        ax.set_title(f"({letter}) {title}, {fixed}", size=10)
        ax.set(xlim=(-0.5, len(rows) - (0.5 if ax is breakdown else 0.9)), xlabel=label, ylabel=words)
        ax.grid(axis="x", visible=False)


def _lines(ax, rows, columns, scale=1):
    """Draw columns in the colors of their methods, with their standard deviations if known, and name them."""
    places, lines = np.arange(len(rows)), {}
    for column, (name, role) in columns.items():
        spread = scale * rows[f"{column}_std"] if f"{column}_std" in rows else None
        ax.errorbar(places, scale * rows[column], spread, color=COLORS[role], marker="o", ms=4)
        lines[name] = places, scale * rows[column], COLORS[role]
    panels.log_scale(ax, "y")
    ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
    panels.name_ends(ax, lines)
