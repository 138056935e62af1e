"""What the machine code of the kernels lets one expect of whole training steps in chunks on a GPU: nothing has run."""

import itertools

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.chains import costs, plan
from bppsa_nb.chains.counts import CHECK_EVERY, KINDS, price
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward.networks import H
from bppsa_nb.papers.tables import where

LENGTHS = (300, 1000, 3000, 10000, 30000, 100000)
BATCHES, CELLS = (1, 16), {"RNN": 1, "GRU": 3}  # and their weights
ROADS = {"backward": ("chunks backward, a loop forward", "blelloch"), "both": ("chunks both ways", "chunked")}
OFF = 1.5  # how far steps, and products, may be from what is predicted
STEPS, PRODUCTS = ("steps", "terms", "matvec"), ("matmul", "merges", "crossings")


def measure(scale, rng, progress):
    """Work out what is predicted: a row per cell, batch, length and road, with a range of its gain."""
    rows = []
    for (cell, weights), batch, T in itertools.product(CELLS.items(), BATCHES, LENGTHS):
        for road in ROADS:
            factors = [(1, 1), *itertools.product((1 / OFF, OFF), repeat=2)]
            found = [seconds(T, batch, weights, road, *each) for each in factors]
            gains = [loops / chunks for loops, chunks in found]
            loops, chunks = found[0]
            row = {"cell": cell, "B": batch, "T": T, "road": road, "loops": loops, "seconds": chunks}
            rows.append(row | {"gain": gains[0], "gain_low": min(gains), "gain_high": max(gains)})
    table = pd.DataFrame(rows)
    table.attrs["collected"] = True  # nothing runs here
    return table


def seconds(T, B, weights, road, steps=1.0, products=1.0):
    """Predict the seconds of forward and backward pass, in loops and by a road.

    Prices measured on a GPU here, if there are any, do not enter. `steps` and `products` say how many times as long as
    predicted these take. In chunks, fresh weights are repaired once.
    """
    priced = costs.prices()
    kinds = {"forward": "linear" if road == "backward" else "chunked", "structured": "chunked"}
    factors = dict.fromkeys(STEPS, steps) | dict.fromkeys(PRODUCTS, products)

    def best(kind, method):
        known = {name: value * factors.get(name, 1) for name, value in priced[kind][method].items()}
        least = CHECK_EVERY if kind == "forward" else 1
        lengths = [n for n in plan.candidate_lengths(T, 1) if n >= least] if method == "chunked" else [None]
        count = KINDS[kind][method]
        return min(price(count(T, B, H, weights, "cuda", *([n] if n else [])), known) for n in lengths)

    loops = best("forward", "linear") + best("structured", "linear")
    return loops, sum(min(best(kind, method), best(kind, "linear")) for kind, method in kinds.items())


def values(table):
    """Return what words need beside the table: what a launch takes."""
    return {"launch": costs.LAUNCH}


def plot(table):
    """Draw gains over length, a panel per cell."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9.4, 4.2), sharey=True, layout="constrained")
    for ax, cell in zip(axes, CELLS, strict=True):
        for (road, (words, role)), batch in itertools.product(ROADS.items(), BATCHES):
            rows = where(table, cell=cell, road=road, B=batch)
            style = {"color": COLORS[role], "ls": "-" if batch == 1 else "--", "marker": "D", "fillstyle": "none"}
            ax.plot(rows["T"], rows["gain"], label=f"{words}, B = {batch}", **style)
            ax.fill_between(rows["T"], rows["gain_low"], rows["gain_high"], color=COLORS[role], alpha=0.15, lw=0)
        ax.axhline(1, color=COLORS["baseline"], lw=1)
        ax.set_title(cell)
        ax.set_xlabel("length of the sequence, T")
        panels.log_scale(ax, "x", "{x:,g}", LENGTHS)
        panels.log_scale(ax, "y")
    axes[0].set_ylabel("times the loops' speed, predicted")
    panels.legend(fig, ncols=2)
    return fig
