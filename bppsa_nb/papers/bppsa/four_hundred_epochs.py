"""Figure 13 to its end: the GRU trained on audio for all of its 400 epochs, by BPTT and by BPPSA."""

import os
from functools import partial

import pandas as pd

from bppsa_nb.cells.gru import GRU
from bppsa_nb.machine import backends
from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import training_curves, whole_trainings
from bppsa_nb.papers.bppsa.epochs import CLIPS
from bppsa_nb.papers.bppsa.training_curves import BATCH, GRU_RATE
from bppsa_nb.papers.bppsa.whole_trainings import METHODS, blocks, ends
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import listed, span
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import FEATURES, LABELS, Instruments

EPOCHS = 400  # Appendix F
EVERY = 10  # epochs of a row
SEEDS = 3  # of what is held out, the order of clips and the first parameters
AT_ONCE = os.cpu_count()  # trainings


def measure(scale, rng, progress):
    """Train on all sets by all methods (quick scale: collect what was recorded): a row per training and `EVERY` epochs.

    Trainings run side by side, a thread each: a batch of 16 leaves little to do for a second one.
    """
    if scale == "quick":
        return whole_trainings.recording("four_hundred_epochs")
    from joblib import Parallel, delayed, parallel_config

    folder = instruments.clips(CLIPS, progress=progress.show)
    data = {Instruments(folder, features, progress=progress.show).data for features in FEATURES}  # computed once, here
    points = [
        (features, seed, method)
        for features in FEATURES
        for seed in range(SEEDS)
        for method in METHODS
        if seed == 0 or method in ("linear", "chunked")
        if features == "S" or method != "blelloch"
    ]
    queue = points[::-1]  # most long ones first
    jobs = [
        delayed(train)(folder, point, EPOCHS, EVERY, progress.keep(".".join(map(str, point))), os.getpid())
        for point in queue
    ]
    with parallel_config("loky", n_jobs=AT_ONCE, inner_max_num_threads=1):
        done = progress.bar(Parallel(return_as="generator")(jobs), "trainings", len(jobs))
        trained = dict(zip(queue, done, strict=True))
    rows = []
    for features, seed, method in points:
        history, accuracies, epoch = trained[features, seed, method]
        same = {"features": features, "T": FEATURES[features].frames, "seed": seed, "method": method}
        parts = blocks(history, trained[features, seed, "linear"][0].loss, EVERY * epoch)
        for place, (row, accuracy) in enumerate(zip(parts, accuracies, strict=True), 1):
            rows.append(same | row | {"epoch": place * EVERY, "accuracy": accuracy})
    table = pd.DataFrame(rows)
    table.attrs |= {"data": data.pop(), "backend": backends.resolve("auto")}
    return table


def train(folder, point, epochs, every, kept, starter):
    """Train while the process `starter` lives: history, accuracy every `every` epochs, iterations an epoch."""
    _end_with(starter)
    features, seed, method = point
    training, held_out = Instruments(folder, features, progress=False).split(rng=seed)

    def watch(trainer):
        _end_with(starter)
        return trainer.evaluate(held_out, 256)[1]

    course = whole_trainings.Course(training, epochs, every, seed, GRU_RATE)
    new = partial(GRU, training.x.shape[2], 20, len(LABELS), rng=seed)
    return *whole_trainings.train(new, method, course, watch, kept), -(-len(training) // BATCH)


def _end_with(starter):
    if starter not in (os.getpid(), os.getppid()):
        raise RuntimeError("whoever started this training was killed; its successor needs the core")


def accuracies(rows):
    """Say how many held-out clips are told right at the end, on one set: the seeds' mean, and all of them."""
    last, said = ends(rows), []
    for method in ("linear", "chunked"):
        shares = last[last["method"] == method]["accuracy"]
        said.append(f"{shares.mean():.1%} ({span(shares, '{:.1%}')}) by {METHODS[method]}")
    return listed(said)


def values(table):
    """Work out what the words say."""
    last, sets = ends(table), list(table.groupby("features", sort=False))
    controlled = [
        {"features": features, "method": method, "ours": ours, "control": control}
        for features, rows in sets
        for method, (ours, control) in whole_trainings.against_the_control(rows).items()
    ]
    return {
        "last": last.assign(epoch=last["seconds"] / EVERY),
        "printed": where(published.table("table_6"), B=BATCH),
        "told": "; ".join(f"{features}, {accuracies(rows)}" for features, rows in sets),
        "controlled": pd.DataFrame(controlled),
    }


def plot(table):
    """Draw a row of plots per set: loss over epochs and seconds, held-out accuracy, differences."""
    titles = ("Loss per epoch", "Loss per second", "Held-out accuracy", "Losses against BPTT")
    fig = training_curves.draw_sets(table, titles, ("epoch", "seconds", "epoch", "iteration"), _draw)
    if "machine" in table:
        fig.supxlabel(table["machine"].iloc[0], size=10)
    return fig


def _draw(axes, rows):
    for ax, x, quantity in zip(axes, ("epoch", "seconds", "epoch"), ("loss", "loss", "accuracy"), strict=False):
        whole_trainings.draw(ax, rows, x, quantity)
    whole_trainings.draw_differences(axes[3], rows)
