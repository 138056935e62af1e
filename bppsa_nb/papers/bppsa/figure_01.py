"""Figure 1: back-propagation through seven layers as a scan, one step after the other and as a tree."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import timelines
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw

LAYERS = 7


def measure(scale, rng, progress):
    """Count what each level of both scans does: one row per method and level."""
    rows = []
    for method in ("linear", "blelloch"):
        rows += [{"n": LAYERS, "method": method} | row for row in timelines.levels(trace(LAYERS, method))]
    return pd.DataFrame(rows)


def plot(table):
    """Draw both scans beside each other."""
    fig, axes = pyplot.subplots(1, 2, figsize=(8.0, 4.7), layout="constrained")
    titles = {"linear": "Ordinary back-propagation", "blelloch": "BPPSA"}
    for ax, (method, levels) in zip(axes, table.groupby("method", sort=False), strict=True):
        draw.tree(trace(int(levels["n"].iloc[0]), method), ax, legend=False)
        products = levels[["mm", "mv"]].sum().sum()
        mixed = f", {levels['mm'].sum()} of two matrices" if levels["mm"].any() else ""
        counts = f"{len(levels)} levels, {products} products{mixed}"
        ax.set_title(f"{titles[method]}\n{counts}", size=10)
        ax.set_ylim(axes[0].get_ylim())  # one scale for both
    axes[1].legend(handles=draw.legend_handles(), loc="lower center", ncols=2)
    return fig
