"""Whole trainings by BPTT and by BPPSA that can be stopped, and how far apart they are."""

from contextlib import nullcontext

import numpy as np

from bppsa_nb.machine import files
from bppsa_nb.papers.bppsa.training_curves import BATCH
from bppsa_nb.papers.figures import COLORS

NUDGED = "nudged"  # the control: what rounding does to training without any BPPSA
METHODS = {
    "linear": "BPTT",
    NUDGED: "BPTT, one bit changed",
    "chunked": "BPPSA, by chunks",
    "blelloch": "BPPSA, by levels",
}
LIMIT = 2  # times the control's difference from BPTT, for BPPSA's
LOOKS = {
    "linear": {"color": COLORS["linear"]},
    NUDGED: {"color": "black", "ls": "--"},
    "chunked": {"color": COLORS["vector"], "marker": "s", "ls": "", "ms": 4, "mfc": "none"},
    "blelloch": {"color": COLORS["blelloch"], "marker": "o", "ls": "", "ms": 4, "mfc": "none"},
}


def train(make, method, samples, epochs, seed, look, every, kept=None, show=False):
    """Train a network to its end by one method; a training that was stopped goes on where it was.

    Parameters
    ----------
    make : callable
        ``make(method)`` returns a new `Trainer` that goes back by "linear", "chunked" or "blelloch". Its forward pass
        should be the same for all of them, the loop: what differs is how gradients go back.
    method : str
        One of `METHODS`. `NUDGED` is "linear" with one bit of the first parameter changed.
    samples : Bitstream or other data set
    epochs, seed : int
        `seed` is that of the samples' order.
    look : callable
        ``look(trainer)`` returns a number, every `every` epochs.
    kept : pathlib.Path, optional
        A folder where model and history, and what was looked at, are kept after every epoch. Another process that
        trains there, such as one whose starter was killed, is waited for.
    show : bool
        Whether to show a bar.

    Returns
    -------
    history : History
    looks : list of float
    """
    warm, trainer = (make("linear" if method == NUDGED else method) for _ in range(2))
    if method == NUDGED:
        weight = next(iter(trainer.model.params.values()))
        weight.flat[0] = np.nextafter(weight.flat[0], np.inf, dtype=weight.dtype)
    warm.step(*samples.batch(np.arange(BATCH)))  # compiled before the clock starts
    looks, saving = [], {}
    with nullcontext() if kept is None else files.one_at_a_time(kept):
        if kept is not None:
            state, seen = kept / "trainer.npz", kept / "looks.json"
            saving = {"save_to": state, "save_every": -(-len(samples) // BATCH)}
            if state.exists():
                trainer.load(state)
            if seen.exists():
                looks = files.read_json(seen)
        while len(looks) * every < epochs:
            trainer.fit(samples, (len(looks) + 1) * every, BATCH, seed, show, **saving)
            looks.append(look(trainer))
            if kept is not None:
                files.write_json(seen, looks)
    return trainer.history, looks


def blocks(history, bptt, every):
    """Put `every` iterations of a `History` into one row, beside the losses of BPTT [shape=(iterations,)].

    Returns
    -------
    list of dict
        `iteration`, the first; `loss`, the mean of the batches' losses; `seconds`, the sum of the iterations' times;
        `apart`, the largest relative difference of a batch's loss from BPTT's.
    """
    loss, seconds = history.loss, history.seconds
    apart = abs(loss - bptt) / bptt
    parts = [(start, slice(start, start + every)) for start in range(0, len(loss), every)]
    return [
        {"iteration": start, "loss": loss[part].mean(), "seconds": seconds[part].sum(), "apart": apart[part].max()}
        for start, part in parts
    ]


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
    control = compared[compared["method"] == NUDGED]
    for method, rows in compared[compared["method"] != NUDGED].groupby("method"):
        seeds = set(rows["seed"]) & set(control["seed"])
        ratios[method] = tuple(each[each["seed"].isin(seeds)]["mean"].median() for each in (rows, control))
    return ratios


def draw_differences(ax, table):
    """Draw how far mean losses are from BPTT's over iterations: the seeds' median, and all of them (shaded)."""
    compared = differences(table)
    for method in reversed(LOOKS):
        looks = {"color": LOOKS[method]["color"], "zorder": 3 if method == NUDGED else 2}
        rows = compared[compared["method"] == method].pivot(index="iteration", columns="seed", values="mean")
        if rows.shape[1] > 1:
            ax.fill_between(rows.index, rows.min(axis=1), rows.max(axis=1), alpha=0.2, lw=0, **looks)
        if not rows.empty:
            line = "--" if method == NUDGED else "-"
            ax.semilogy(rows.index, rows.median(axis=1), line, label=METHODS[method], lw=1.5, **looks)
