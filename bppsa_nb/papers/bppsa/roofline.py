"""How close the kernels come to what the machine can do: draws what `benchmarks/run.py` recorded."""

import numpy as np

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

MARKS = {"forward": "D", "sweep": "o", "chunked": "s", "linear": "o", "Blelloch": "^"}
ROLES = {"forward": "vector", "sweep": "linear", "chunked": "chunked", "linear": "linear", "Blelloch": "blelloch"}


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("roofline")


def plot(table):
    """Draw a roofline for each machine."""
    fig, parts = panels.machines(table, 10.5, 4.9)
    for part, rows in parts:
        _draw_roof(part.subplots(), rows)
    return fig


def _draw_roof(ax, rows):
    bandwidth, peak = rows[["bandwidth", "peak"]].iloc[0]
    shown = rows.assign(x=rows["operations"] / rows["bytes"], y=rows["operations"] / rows["seconds"] / 1e9)
    shown = shown.sort_values(["x", "y"])
    ends = np.array([shown["x"].min() / 2, peak / bandwidth, 4 * max(shown["x"].max(), peak / bandwidth)])
    ax.plot(ends, np.minimum(ends * bandwidth, peak) / 1e9, color="black", lw=2)
    left = {"xytext": (-8, 0), "textcoords": "offset points", "ha": "right", "va": "bottom", "size": 9}
    ax.annotate(f"copy, {bandwidth / 1e9:.3g} GB/s", (0.4 * ends[1], 0.4e-9 * peak), **left)
    ax.text(ends[-1], 1.06e-9 * peak, f"matrix product, {peak / 1e9:.3g} GFLOP/s", ha="right", va="bottom", size=9)
    for place, row in enumerate(shown.to_dict("records")):
        letter, kind = "abcdefghijklmnopqrstuvwxyz"[place], row["kernel"].split(" ", 1)[1]
        color, large = COLORS[ROLES[kind]], row["B"] > 16
        style = {"color": color, "mfc": "none" if large else color, "ms": 11 if large else 8, "mew": 1.8, "ls": ""}
        size = f"T = {row['T']}, B = {row['B']}, H = {row['H']}"
        label = f"{letter}  {row['kernel']}, {size}: {row['of_peak']:.0%} of the peak, {row['of_copy']:.0%} of a copy"
        ax.plot(row["x"], row["y"], MARKS[kind], label=label, **style)
        beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "size": 9}
        ax.annotate(letter, (row["x"], row["y"]), **beside)
    panels.log_scale(ax)
    ax.set(xlim=(ends[0], ends[-1]), ylim=(0.4 * shown["y"].min(), 2e-9 * peak))
    ax.set(xlabel="operations per byte, counted", ylabel="GFLOP/s, attained")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7.5)
