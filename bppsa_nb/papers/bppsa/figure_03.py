"""Figure 3: Algorithm 1 on the convolutional layers of VGG-11."""

import pandas as pd

from bppsa_nb.papers import timelines
from bppsa_nb.papers.bppsa.vgg import operators
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw


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
