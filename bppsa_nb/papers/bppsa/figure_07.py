"""Figure 7: the paper's RNN trained by BPTT and by BPPSA from the same seed, and their gradients compared."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves
from bppsa_nb.papers.bppsa.training_curves import BATCH, LIMIT, METHODS, differences  # noqa: F401 - LIMIT for words
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.training.datasets import Bitstream
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import Adam

# The paper trains for 80 epochs of 2000 iterations; in the first, the curves show how they relate.
SCALES = {"quick": {"T": 100, "iterations": 300}, "paper": {"T": 1000, "iterations": 2000}}
SAMPLES = 32000


def measure(scale, rng, progress):
    """Train by both methods on every backend (paper scale: the fastest): one row per backend and iteration."""
    fastest = backends.resolve("auto")
    chosen = dict.fromkeys([fastest, "cpu", "numpy"] if scale == "quick" else [fastest])
    seed = int(rng.integers(2**31))  # one for all backends: the same model, the same samples
    points = [{"backend": backend} | SCALES[scale] for backend in chosen]
    return progress.collect(points, lambda point, _: train(point, seed), rng)


def train(point, seed):
    """Train the paper's RNN by both methods: rows of `training_curves.side_by_side`, with losses of fixed samples."""
    backend, samples = point["backend"], Bitstream(point["T"], SAMPLES, rng=seed)
    x, y = samples.batch(np.arange(1000))

    def watch(model):
        return {"fixed_loss": cross_entropy(model.forward(x, backend=backend).logits, y)[0]}

    def new():
        return RNN(1, 20, 10, rng=seed), Adam(lr=1e-5)

    batch = training_curves.batches(samples, BATCH, seed)
    return training_curves.side_by_side(new, METHODS, batch, range(point["iterations"]), backend, watch)


def values(table):
    """Name what the words are taken from: the fastest backend's rows."""
    return {"first": table[table["backend"] == table["backend"].iloc[0]]}


def plot(table):
    """Draw the loss over iterations and over seconds, and how far gradients and losses differ."""
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(9.6, 3.5), layout="constrained")
    first = table["backend"].iloc[0]
    rows = table[table["backend"] == first]
    labels = {m: f"{name}: {1e3 * rows[f'seconds_{m}'].median():.2g} ms each" for m, name in METHODS.items()}
    left.set(title="Per iteration", xlabel="iteration", ylabel="training loss, 1000 fixed samples")
    middle.set(title=f"Per second (backend {first})", xlabel="seconds", xscale="log")
    training_curves.draw_curves(left, rows, "fixed_loss", METHODS)
    training_curves.draw_curves(middle, rows, "fixed_loss", labels, over_seconds=True)
    training_curves.share_losses(left, middle)
    for backend, part in differences(table).groupby("backend", sort=False):
        worst, line = training_curves.worst_of_ten(part), {"numpy": ":", "cpu": "-", "cuda": "--"}[backend]
        right.plot(worst.index, worst["gradient"], line, color="black", lw=1.4, label=f"gradients, {backend}")
        right.plot(worst.index, worst["loss"], line, color=COLORS["baseline"], lw=0.9, label=f"losses, {backend}")
    training_curves.draw_limit(right)
    right.set(title="BPPSA against BPTT", xlabel="iteration", ylabel="relative difference, worst of 10")
    right.set(ylim=(None, 2e-3))
    right.legend(loc="upper right")
    return fig
