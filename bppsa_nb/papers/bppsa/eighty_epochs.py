"""Figure 7 to its end: the paper's RNN trained for all of its 80 epochs, by BPTT, by levels and by chunks."""

from matplotlib import pyplot

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.papers import panels, published
from bppsa_nb.papers.bppsa import whole_trainings
from bppsa_nb.papers.bppsa.training_curves import BATCH
from bppsa_nb.papers.bppsa.whole_trainings import METHODS, blocks, differences, ends  # noqa: F401 - for words
from bppsa_nb.papers.tables import where
from bppsa_nb.training.datasets import Bitstream

T, SAMPLES, EPOCHS, RATE = 1000, 32000, 80, 1e-5  # Section 4.1 and Figure 7
EVERY = 1000  # iterations of a row
SEEDS = 4  # of the samples, their order and the first parameters


def measure(scale, rng, progress):
    """Train by all methods (quick scale: collect what was recorded): a row per seed, method and `EVERY` iterations."""
    if scale == "quick":
        return whole_trainings.recording("eighty_epochs")
    points = [{"backend": backends.resolve("auto"), "seed": seed} for seed in range(SEEDS)]
    return progress.collect(points, lambda point, _: train(point["seed"], progress), rng)


def train(seed, progress):
    """Train from one seed, by one method after the other; a training that was stopped goes on where it was."""
    course = whole_trainings.Course(Bitstream(T, SAMPLES, rng=seed), EPOCHS, EPOCHS, seed, RATE)
    rows, bptt = [], None
    for method in METHODS:
        if method == "blelloch" and seed:  # takes longest by far: one seed has to do
            continue
        history, (accuracy,) = whole_trainings.train(
            lambda: RNN(1, 20, 10, rng=seed),
            method,
            course,
            lambda trainer: trainer.evaluate(course.samples, 256)[1],
            progress.keep(f"{method}.{seed}"),
            progress.show,
        )
        bptt = history.loss if method == "linear" else bptt
        rows += [{"method": method} | row | {"accuracy": None} for row in blocks(history, bptt, EVERY)]
        rows[-1]["accuracy"] = accuracy
    return rows


def values(table):
    """Work out what the words say: how trainings end, what an epoch takes here and on the paper's V100."""
    last = ends(table)
    return {
        "last": last.assign(epoch=last["seconds"] * SAMPLES / BATCH / EVERY),
        "printed": where(published.table("table_4"), T=T, B=BATCH),
    }


def plot(table):
    """Draw each seed's loss over iterations; below, the first one's over seconds, and how far losses are apart."""
    fig, seeds = pyplot.figure(figsize=(10.5, 6.4), layout="constrained"), list(table.groupby("seed"))
    above, below = fig.subfigures(2, 1)
    if "machine" in table:
        above.suptitle(table["machine"].iloc[0], size=10)
    axes, (left, right) = above.subplots(1, len(seeds), sharey=True, squeeze=False)[0], below.subplots(1, 2)
    for ax, (seed, rows) in zip(axes, seeds, strict=True):
        whole_trainings.draw(ax, rows, "iteration")
        ax.set(title=f"Seed {seed}", xlabel="iteration")
        ax.locator_params(axis="x", nbins=3)
    axes[0].set_ylabel(f"loss, mean of {EVERY} iterations")
    axes[0].legend(loc="upper right", fontsize=8)
    left.set(title="Seed 0 over time", xlabel="seconds", ylabel="loss", xscale="log")
    right.set(title="How far from BPTT's loss", xlabel="iteration", ylabel="relative difference")
    whole_trainings.draw(left, table, "seconds")
    left.legend(loc="lower left", fontsize=8)
    panels.name_ends(right, whole_trainings.draw_differences(right, table))
    right.locator_params(axis="x", nbins=4)
    return fig
