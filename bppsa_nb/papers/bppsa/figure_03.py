"""Figure 3: the scan over VGG-11's convolutional layers."""

import pandas as pd

from bppsa_nb.papers import timelines
from bppsa_nb.papers.bppsa.vgg import operators
from bppsa_nb.papers.experiment import Figure
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw


def measure(scale, rng, progress):
    """Count what each level does: one row per level."""
    return pd.DataFrame(timelines.levels(trace(len(operators()), "blelloch")))


def plot(table):
    names = operators()
    run = trace(len(names), "blelloch")
    ax = draw.tree(run, names=([r"$\nabla x_{21}$", *reversed(names)], draw.chain_names(run.n)[1]))
    ax.child_axes[0].tick_params(axis="x", rotation=90)
    return ax.get_figure()


FIGURE = Figure(
    origin="counted",
    caption="""Algorithm 1 takes nine levels for VGG-11's 21 operators. The loss is on the left; each row is the array
    after one level. The paper's L0 to L4 are inputs and up-sweep, L5 puts I in, L6 to L10 are the down-sweep.""",
    alt="""The array of one gradient and 21 transposed Jacobians, one row per level. Four up-sweep levels pair
    neighbors, with a matrix-vector product leftmost and matrix-matrix products elsewhere; five down-sweep levels
    follow.""",
)
