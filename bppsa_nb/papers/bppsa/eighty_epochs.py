"""Figure 7 to its end: the paper's RNN trained for all of its 80 epochs, by BPTT, by levels and by chunks."""

from matplotlib import pyplot

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import whole_trainings
from bppsa_nb.papers.bppsa.training_curves import BATCH
from bppsa_nb.papers.bppsa.whole_trainings import METHODS, blocks, differences, draw_differences, ends
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import listed, span
from bppsa_nb.training.datasets import Bitstream

TITLE = "Figure 7 to its end: eighty epochs"
T, SAMPLES, EPOCHS, RATE = 1000, 32000, 80, 1e-5  # Section 4.1 and Figure 7
EVERY = 1000  # iterations of a row
SEEDS = 4  # of the samples, their order and the first parameters
FIRST_SEED_ONLY = "blelloch"


def measure(scale, rng, progress):
    """Train by all methods (quick scale: collect what was recorded): a row per seed, method and `EVERY` iterations.

    `loss` is the mean of the batches' losses, `seconds` the sum of the iterations' times, `apart` the largest relative
    difference of a batch's loss from BPTT's, and `accuracy` that of all samples, once all epochs are done.
    """
    if scale == "quick":
        return whole_trainings.recording("eighty_epochs")
    points = [{"backend": backends.resolve("auto"), "seed": seed} for seed in range(SEEDS)]
    return progress.collect(points, lambda point, _: train(point["seed"], progress), rng)


def train(seed, progress):
    """Train from one seed, by one method after the other; a training that was stopped goes on where it was."""
    course = whole_trainings.Course(Bitstream(T, SAMPLES, rng=seed), EPOCHS, EPOCHS, seed, RATE)
    rows, bptt = [], None
    for method in METHODS:
        if method == FIRST_SEED_ONLY and seed:
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


def caption(table):
    """Say what to look at, and how long an epoch takes here and took on the paper's V100."""
    last, epoch = ends(table), SAMPLES / BATCH / EVERY
    here = [
        f"{last[last['method'] == method]['seconds'].median() * epoch:.3g} s by {METHODS[method]}"
        for method in ("linear", "chunked", "blelloch")
    ]
    there = where(published.table("table_4"), T=T, B=BATCH).iloc[0]
    return (
        f"The RNN of Section 4.1, T = {T}, {SAMPLES} bitstreams, B = {BATCH}, Adam at {RATE:g}, all {EPOCHS} epochs, "
        f"in single precision; means of {EVERY} iterations. From {SEEDS} seeds, by levels from the first one. Left, "
        "over iterations; middle, from the first seed over the seconds that they took. Right, how far losses are from "
        "BPTT's, relative to them: the median of the seeds, and all of them (shaded). BPPSA rounds differently, and "
        "training amplifies the difference, just as it amplifies changing one bit of one weight (dashed): by the time "
        f"the loss has fallen, no two ways of rounding have the same curve. An epoch took {listed(here)} here; on the "
        f"paper's V100, {there['baseline']:g} s by BPTT (cuDNN) and {there['bppsa']:g} s by BPPSA (Table 4)."
    )


def alt(table):
    """Say what there is to see, where the losses end, and how far they are apart."""
    last, first, compared = ends(table), table[table["iteration"] == 0]["loss"], differences(table)
    means = [f"{span(last[last['method'] == method]['loss'])} by {name}" for method, name in METHODS.items()]
    apart = [
        f"{compared[compared['method'] == method]['mean'].median():.1e} by {name}"
        for method, name in METHODS.items()
        if method != "linear"
    ]
    return (
        "Three plots of the RNN learning to tell bitstreams apart for 80 epochs. Left, loss over iterations, from "
        f"{span(first)}: lines by BPTT, with marks by BPPSA on them or, late, beside them; the last row's is "
        f"{listed(means)}. Middle, the same over seconds, where every method has a curve of its own. Right, on a "
        "logarithmic axis over iterations, how far losses are from BPTT's: all rise together over many powers of ten "
        f"while the loss first falls, and stay there, with medians of {listed(apart)}; means are at most "
        f"{compared['mean'].max():.1e} apart, single batches {compared['apart'].max():.1e}."
    )


def plot(table):
    """Draw the loss over iterations and over seconds, and how far it is from BPTT's."""
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(10.5, 3.9), layout="constrained")
    if "machine" in table:
        fig.suptitle(table["machine"].iloc[0], size=10)
    whole_trainings.draw_losses((left, middle), table, "iteration", 4, 24)
    draw_differences(right, table)
    right.legend(loc="lower right")
    left.set(title="Per iteration", xlabel="iteration", ylabel=f"loss, mean of {EVERY} iterations")
    middle.set(title="Per second", xlabel="seconds", xscale="log")
    right.set(title="Against BPTT", xlabel="iteration", ylabel="relative difference of losses")
    left.legend(loc="best")
    for ax in (left, right):
        ax.locator_params(axis="x", nbins=4)
    return fig
