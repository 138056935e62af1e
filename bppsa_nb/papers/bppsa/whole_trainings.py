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
STYLES = {  # what lies on BPTT's line is thinner
    "linear": {"color": COLORS["linear"], "lw": 3.5, "alpha": 0.6},
    CONTROL: {"color": "black", "ls": "--", "lw": 1.5},
    "chunked": {"color": COLORS["chunked"], "lw": 1.6},
    "blelloch": {"color": COLORS["blelloch"], "lw": 1.2, "ls": "--"},
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


def draw(ax, table, x, quantity="loss"):
    """Draw a quantity over `x`, or the first seed's over seconds, by all methods."""
    for method in ("linear", "chunked", "blelloch"):
        for seed, rows in table[table["method"] == method].groupby("seed"):
            if seed == 0 or x != "seconds":
                at = rows["seconds"].cumsum() if x == "seconds" else rows[x]
                ax.plot(at, rows[quantity], label=METHODS[method] if seed == 0 else None, **STYLES[method])


def draw_differences(ax, table):
    """Draw how far mean losses are from BPTT's over iterations: running medians of three of the seeds' median.

    The band has all seeds of the control. Returned are lines for `panels.name_ends`.
    """
    compared, lines = differences(table), {}
    for method in list(STYLES)[1:]:
        rows = compared[compared["method"] == method].pivot(index="iteration", columns="seed", values="mean")
        if method == CONTROL and rows.shape[1] > 1:
            ax.fill_between(rows.index, rows.min(axis=1), rows.max(axis=1), alpha=0.2, lw=0, color="black")
        if not rows.empty:
            middle, style = rows.median(axis=1).rolling(3, center=True, min_periods=1).median(), STYLES[method]
            ax.semilogy(rows.index, middle, label=METHODS[method], **style | {"zorder": 2 + (method == CONTROL)})
            lines[METHODS[method]] = rows.index, middle, style["color"]
    return lines
