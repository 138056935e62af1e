"""Whole trainings by BPTT and by BPPSA that can be stopped, and how far apart they are."""

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from bppsa_nb.machine import files
from bppsa_nb.papers import recorded
from bppsa_nb.papers.bppsa.training_curves import BATCH
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

CONTROL = "nudged"  # BPTT with one bit perturbed: what rounding does to training without any BPPSA
METHODS = {
    "linear": "BPTT",
    CONTROL: "BPTT, one bit changed",
    "chunked": "BPPSA, by chunks",
    "blelloch": "BPPSA, by levels",
}
LIMIT = 2  # times the control's difference from BPTT, for BPPSA's
STYLES = {
    "linear": {"color": COLORS["linear"]},
    CONTROL: {"color": "black", "ls": "--"},
    "chunked": {"color": COLORS["vector"], "marker": "s", "ls": "", "ms": 4, "mfc": "none"},
    "blelloch": {"color": COLORS["blelloch"], "marker": "o", "ls": "", "ms": 4, "mfc": "none"},
}


class Course(NamedTuple):
    """How a training goes: on what, how long, how often it is watched, in which order."""

    samples: object  # a data set
    epochs: int
    every: int  # epochs, a divisor of `epochs`
    seed: int  # of the samples' order
    lr: float


def train(new, method, course, watch, kept=None, show=False):
    """Train a model to its end by one of `METHODS`: the history, and what ``watch(trainer)`` returned.

    Going forward it takes the loop, whatever the method. A training that was stopped goes on from what is in the folder
    `kept`; another process that trains there, such as one whose starter was killed, is waited for.
    """
    back = "linear" if method == CONTROL else method
    warm, trainer = (Trainer(new(), Adam(lr=course.lr), method=back, forward="linear") for _ in range(2))
    if method == CONTROL:
        weight = next(iter(trainer.model.params.values()))
        weight.flat[0] = np.nextafter(weight.flat[0], np.inf, dtype=weight.dtype)
    warm.step(*course.samples.batch(np.arange(BATCH)))  # compiled before the clock starts
    watched, saving = [], {}
    with nullcontext() if kept is None else files.folder_lock(kept):
        if kept is not None:
            state, numbers = kept / "trainer.npz", kept / "watched.json"
            saving = {"save_to": state, "save_every": -(-len(course.samples) // BATCH)}
            if state.exists():
                trainer.load(state)
            if numbers.exists():
                watched = files.read_json(numbers)
        while len(watched) * course.every < course.epochs:
            trainer.fit(course.samples, (len(watched) + 1) * course.every, BATCH, course.seed, show, **saving)
            watched.append(watch(trainer))
            if kept is not None:
                files.write_json(numbers, watched)
    return trainer.history, watched


def blocks(history, bptt, every):
    """Put `every` iterations into a row; `apart` is the largest relative difference of a loss from BPTT's."""
    loss, seconds = history.loss, history.seconds
    apart = abs(loss - bptt) / bptt
    parts = [(start, slice(start, start + every)) for start in range(0, len(loss), every)]
    return [
        {"iteration": start, "loss": loss[part].mean(), "seconds": seconds[part].sum(), "apart": apart[part].max()}
        for start, part in parts
    ]


def recording(name):
    """Return the first machine's recording of such an experiment at the paper's scale."""
    table = recorded.collect(name, f"bppsa-nb figures --only {name} --scale paper")
    return table[table["machine"] == table["machine"].iloc[0]]


def ends(table):
    """Return for every training the last row, but its median of `seconds`."""
    trainings = table.groupby([key for key in ("features", "seed", "method") if key in table], sort=False)
    return trainings.last().assign(seconds=trainings["seconds"].median()).reset_index()


def differences(table):
    """Return the rows that are not BPTT's, with `mean`: how far the mean loss is from that of BPTT, relative to it."""
    keys = [key for key in ("features", "seed", "iteration") if key in table]
    bptt = table[table["method"] == "linear"].set_index(keys)["loss"]
    rest = table[table["method"] != "linear"]
    theirs = bptt.loc[list(zip(*(rest[key] for key in keys), strict=True))].to_numpy()
    return rest.assign(mean=abs(rest["loss"] - theirs) / theirs)


def against_the_control(table):
    """Return for every method of BPPSA its median difference from BPTT, and the control's, on seeds that have both."""
    compared, ratios = differences(table), {}
    control = compared[compared["method"] == CONTROL]
    for method, rows in compared[compared["method"] != CONTROL].groupby("method"):
        seeds = set(rows["seed"]) & set(control["seed"])
        ratios[method] = tuple(each[each["seed"].isin(seeds)]["mean"].median() for each in (rows, control))
    return ratios


def draw_losses(axes, table, x, first, every):
    """Draw losses over `x`, the first seed's over seconds, and on a third panel, accuracy; BPPSA by few marks."""
    over, over_seconds, *accuracy = axes
    for place, (method, style) in enumerate(STYLES.items()):
        for seed, rows in table[(table["method"] == method) & (method != CONTROL)].groupby("seed"):
            few = rows if method == "linear" else rows.iloc[first * place :: every]
            over.plot(few[x], few["loss"], label=METHODS[method] if seed == 0 else None, **style)
            if seed == 0:
                over_seconds.plot(rows["seconds"].cumsum(), rows["loss"], color=style["color"], lw=2)
            for ax in accuracy:
                ax.plot(few[x], few["accuracy"], **style)


def draw_differences(ax, table):
    """Draw how far mean losses are from BPTT's over iterations: the seeds' median, and all of them (shaded)."""
    compared = differences(table)
    for method in reversed(STYLES):
        style = {"color": STYLES[method]["color"], "zorder": 3 if method == CONTROL else 2}
        rows = compared[compared["method"] == method].pivot(index="iteration", columns="seed", values="mean")
        if rows.shape[1] > 1:
            ax.fill_between(rows.index, rows.min(axis=1), rows.max(axis=1), alpha=0.2, lw=0, **style)
        if not rows.empty:
            line = "--" if method == CONTROL else "-"
            ax.semilogy(rows.index, rows.median(axis=1), line, label=METHODS[method], lw=1.5, **style)
