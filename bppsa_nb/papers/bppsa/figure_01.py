"""Figure 1: back-propagation as a scan."""

import pandas as pd

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import Figure
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw


def measure(scale, rng, progress):
    """Count what each level of both scans does: one row per method and level."""
    runs = {method: timelines.levels(trace(7, method)) for method in ("linear", "blelloch")}
    return pd.DataFrame([{"method": method} | row for method, rows in runs.items() for row in rows])


def plot(table):
    fig, axes = panels.subplots(1, 2, figsize=(8.0, 4.7))
    titles = {"linear": "Ordinary back-propagation", "blelloch": "BPPSA"}
    for ax, (method, levels) in zip(axes, table.groupby("method", sort=False), strict=True):
        draw.tree(trace(int(levels["n"].iloc[0]), method), ax, legend=False)
        products = levels[["mm", "mv"]].sum().sum()
        mixed = f", {levels['mm'].sum()} of two matrices" if levels["mm"].any() else ""
        ax.set_title(f"{titles[method]}\n{len(levels)} levels, {products} products{mixed}", size=10)
        ax.set_ylim(axes[0].get_ylim())  # one scale for both
    axes[1].legend(handles=draw.legend_handles(), loc="lower center", ncols=2)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""Through seven layers, the Blelloch scan takes five levels where ordinary back-propagation takes seven.
    Products on one level do not wait for each other. Each row is the array after one level; numbers are inputs.""",
    alt="""Two drawings of an array of one gradient and seven transposed Jacobians. Left, a staircase of seven
    matrix-vector products. Right, a tree: two up-sweep levels of matrix-matrix products, and three down-sweep
    levels.""",
)
