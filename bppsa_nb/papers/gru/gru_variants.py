"""The four variants of the GRU: their relative time over hidden size, and what they compute at every step."""

from functools import partial

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.graphs import variants
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.gru.passes import SIZES, STEPS, time_point

SECONDS = {"quick": 0.12, "paper": 20.0}  # for one point
BATCH = 128
COUNTED = {
    "products": "products",
    "serial": "in series",
    "launches": "launches",
    "multiply_adds": "multiply-adds/BH²",
    "kept": "numbers kept/BH",
}
_COLORS = {"original": "baseline", "concatenated": "vector", "moved": "identity", "saved": "matrix"}


def measure(scale, rng, progress):
    """Time and count all four: one row per hidden size and variant."""
    points = [{"T": STEPS[scale], "B": BATCH, "H": H} for H in SIZES[scale]]
    timed = progress.collect(points, partial(time_point, names=variants.NAMES, seconds=SECONDS[scale]), rng)
    counted = [{"variant": name} | count_step(name) for name in variants.NAMES]
    table = timed.merge(pd.DataFrame(counted), on="variant")
    table.attrs = {"backend": "numpy"}
    return table


def count_step(variant):
    """Count what one more time step of a variant takes, in both passes together.

    `products`, `serial`, `launches`; `multiply_adds` in units of B H², `kept` in units of B H.
    """
    B, H = 2, 8
    one, two = (variants.count(variant, T, B, H, H) for T in (1, 2))
    step = {name: two[name] - one[name] for name in ("products", "serial", "launches", "multiply_adds", "kept")}
    return step | {"multiply_adds": step["multiply_adds"] / (B * H**2), "kept": step["kept"] / (B * H)}


def plot(table):
    """Draw relative times over hidden size, and the counts as bars."""
    fig = pyplot.figure(figsize=(9, 5.6), layout="constrained")
    upper, lower = fig.subfigures(2, 1, height_ratios=(3, 1.5))
    ax = upper.subplots()
    names = list(variants.NAMES)
    for i, name in enumerate(names):
        rows = table[table["variant"] == name]
        H = rows["H"] * 2 ** (0.03 * (i - 1.5))  # side by side, not on top of each other
        style = {"fmt": "o-", "ms": 5, "color": COLORS[_COLORS[name]], "label": f"{i + 1} {variants.NAMES[name]}"}
        panels.with_quartiles(ax, H, rows, "relative", **style)
    panels.sizes_axis(ax, sorted(table["H"].unique()))
    ax.set(ylim=(0, 1.1 * table["relative_high"].max()), xlabel="hidden size, H", ylabel="time / original's")
    ax.set_title(f"Relative time of {table['T'].iloc[0]} steps, mini-batch {table['B'].iloc[0]}")
    ax.legend(loc="lower left", ncols=2)
    axes = lower.subplots(1, len(COUNTED), sharey=True)
    step = table.drop_duplicates("variant").set_index("variant").loc[names[::-1]]
    for ax, (quantity, title) in zip(axes, COUNTED.items(), strict=True):
        labels = [f"{variants.NAMES[name]} {names.index(name) + 1}" for name in step.index]
        bars = ax.barh(labels, step[quantity], color=[COLORS[_COLORS[name]] for name in step.index], height=0.7)
        ax.bar_label(bars, fmt="{:g}", padding=3, fontsize=9)
        ax.set_title(title, fontsize=9)
        ax.margins(x=0.25)
        ax.tick_params(axis="x", labelbottom=False)
        ax.grid(False)
    return fig
