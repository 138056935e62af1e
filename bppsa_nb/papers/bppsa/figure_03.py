"""Figure 3: Algorithm 1 on the convolutional layers of VGG-11."""

import pandas as pd

from bppsa_nb.papers import timelines
from bppsa_nb.papers.bppsa.vgg import operators
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw

TITLE = "Figure 3: the scan over VGG-11's convolutional layers"
CAPTION = (
    "21 operators make 21 transposed Jacobians: eight convolutions, eight ReLUs, five max-poolings; the loss is to "
    "the left. The paper counts the rows from L0: its up-sweep, L0 to L4, are the inputs and the four levels below "
    "them here, its L5 is where I is put in, and L6 to L10 are the five levels of the down-sweep."
)
ALT = (
    "The array of one gradient and 21 transposed Jacobians of VGG-11, drawn from left to right, one row per level. "
    "Four up-sweep levels pair neighbors with matrix-matrix products, only the leftmost product of each level being a"
    " matrix-vector product; five down-sweep levels move gradients to the left and compute matrix-vector products. "
    "The last row holds the gradients at all 22 points of the chain."
)


def measure(scale, rng, progress):
    """Count what each level does: one row per level."""
    return pd.DataFrame(timelines.levels(trace(len(operators()), "blelloch")))


def plot(table):
    """Draw the tree, operators named above it."""
    names = operators()
    run = trace(len(names), "blelloch")
    above = [r"$\nabla x_{21}$", *reversed(names)]
    ax = draw.tree(run, names=(above, draw.chain_names(run.n)[1]))
    ax.child_axes[0].tick_params(axis="x", rotation=90)
    return ax.get_figure()
