"""The GRU as a differentiable graph, forward and backward, before and after its reset gate is moved."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.graphs import drawing, library
from bppsa_nb.papers.gru.operations import count_operations

GRAPHS = {"original": library.gru, "moved": library.gru_moved_reset}


def measure(scale, rng, progress):
    """Count what is drawn: a row per graph, direction and operation."""
    return pd.concat([count_operations(make(), name) for name, make in GRAPHS.items()], ignore_index=True)


def plot(table):
    """Draw both graphs in both directions."""
    fig, axes = pyplot.subplots(4, 1, figsize=(8.8, 13.2), layout="constrained")
    titles = {"original": "Original GRU", "moved": "Reset gate moved behind the product"}
    panels = [(name, direction) for name in table["graph"].unique() for direction in drawing.INKS]
    for ax, (name, direction) in zip(axes, panels, strict=True):
        drawing.draw(GRAPHS[name](), ax, direction)
        ax.set_title(f"{titles[name]}, {direction}", size=10)
    fig.legend(handles=drawing.legend_handles(), loc="outside upper center", ncols=5)
    return fig
