"""Figure 7 to its end: the paper's RNN trained for all of its 80 epochs, by BPTT, by levels and by chunks."""

from matplotlib import pyplot

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.papers import published
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
    """Draw the loss over iterations and over seconds, and how far it is from BPTT's."""
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(10.5, 3.9), layout="constrained")
    if "machine" in table:
        fig.suptitle(table["machine"].iloc[0], size=10)
    whole_trainings.draw_losses((left, middle), table, "iteration", 4, 24)
    whole_trainings.draw_differences(right, table)
    right.legend(loc="lower right")
    left.set(title="Per iteration", xlabel="iteration", ylabel=f"loss, mean of {EVERY} iterations")
    middle.set(title="Per second", xlabel="seconds", xscale="log")
    right.set(title="Against BPTT", xlabel="iteration", ylabel="relative difference of losses")
    left.legend(loc="best")
    for ax in (left, right):
        ax.locator_params(axis="x", nbins=4)
    return fig
