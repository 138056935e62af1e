"""The GRU as a differentiable graph."""

import pandas as pd

from bppsa_nb.graphs import drawing, library
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import Claim, Figure
from bppsa_nb.papers.gru.operations import count_operations

GRAPHS = {"original": library.gru, "moved": library.gru_moved_reset}


def measure(scale, rng, progress):
    """Count what is drawn: a row per graph, direction and operation."""
    return pd.concat([count_operations(make(), name) for name, make in GRAPHS.items()], ignore_index=True)


def facts(table):
    """Name what the recurrent products read, weights aside."""
    products = table[(table["direction"] == "forward") & (table["op"] == "matmul")]
    return {"reads": products["reads"].str.split(", ").str[0].groupby(products["graph"]).agg(", ".join)}


def plot(table):
    fig, axes = panels.subplots(4, 1, figsize=(8.8, 13.2))
    titles = {"original": "Original GRU", "moved": "Reset gate moved behind the product"}
    drawn = [(name, direction) for name in table["graph"].unique() for direction in drawing.INKS]
    for ax, (name, direction) in zip(axes, drawn, strict=True):
        drawing.draw(GRAPHS[name](), ax, direction)
        ax.set_title(f"{titles[name]}, {direction}", size=10)
    fig.legend(handles=drawing.legend_handles(), loc="outside upper center", ncols=5)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""With its reset gate moved behind the product, all three products of the GRU have the same input. Before
    it, two multiplications follow each other, and the second reads an activation of its own, r ⊙ h. Each graph is drawn
    forward, and backward with every arrow turned around: a copy becomes a sum, a sum a copy. What has an orange border
    reads the activations written below it.""",
    alt="""Four circuit diagrams of a step of the GRU: the original one and the one with its reset gate moved, each
    forward and backward. Backward, all arrows are reversed, and dots and sums have changed places. Nine operations of
    each have thick orange borders, with the activations they read below them.""",
    claims=[
        Claim("variants", "A product behind the reset gate needs an activation of its own; one before, none.",
              "all products share h", "before: {reads[original]}; after: {reads[moved]}",
              lambda f: [len({*reads.split(", ")}) for reads in f["reads"][["original", "moved"]]] == [2, 1]),
    ],
)
