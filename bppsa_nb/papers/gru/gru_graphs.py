"""The GRU as a differentiable graph, forward and backward, before and after its reset gate is moved."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.graphs import drawing, library
from bppsa_nb.papers.gru.operations import count_operations

TITLE = "The GRU as a differentiable graph"
CAPTION = (
    "Drawn from the description that also derives the gradients. Backward, every arrow is turned around: a copy turns "
    "into a sum, a sum into a copy, and what carries an orange border reads the activations written below it. With "
    "the reset gate before the product, two multiplications follow each other, and the second one reads an activation "
    "of its own, r ⊙ h. Moved behind the product, the reset gate leaves all three products with the same input."
)
ALT = (
    "Four circuit diagrams of a step of the GRU, the original one forward and backward, and the one with its reset "
    "gate moved, forward and backward. Forward, wires run up and to the right from the hidden state and the input "
    "products through matrix products, sums, sigmoids, tanh and elementwise products to the next hidden state. "
    "Backward, the same places with all arrows reversed and error terms on the wires; dots and sums have changed "
    "places. Nine operations of each have thick orange borders, with the activations they read below them."
)
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
