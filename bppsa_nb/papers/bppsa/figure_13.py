"""Figure 13: the GRU trained on audio by BPTT and by BPPSA."""

import numpy as np
import pandas as pd

import bppsa_nb as bp
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves as curves
from bppsa_nb.papers.bppsa.epochs import CLIPS
from bppsa_nb.papers.experiment import COLORS, Claim, Figure
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import LABELS

ITERATIONS = {"S": 150, "M": 40, "L": 20}  # at quick scale
EPOCHS = 10  # at the paper's, on as many clips as IRMAS has; `eighty_epochs` goes on to the end
RATES = {"quick": 3e-3, "paper": curves.GRU_RATE}
EVERY = 10  # iterations per row at quick scale; an epoch at the paper's


def measure(scale, rng, progress):
    """Train on S, M and L by both methods on the fastest backend: a row per set and epoch, or `EVERY` iterations."""
    folder = instruments.clips(instruments.CLIPS if scale == "quick" else CLIPS, progress=progress.show)
    seed = int(rng.integers(2**31))

    def train_on(point, _):
        clips = bp.Instruments(folder, point["features"], progress=progress.show)
        training, held_out = clips.split(rng=seed)
        epoch = -(-len(training) // curves.BATCH)
        length, every = (ITERATIONS[point["features"]], EVERY) if scale == "quick" else (EPOCHS * epoch, epoch)
        # One more than `length`, so that the last row shows what came of it.
        iterations = progress.bar(range(length + 1), f"training on {point['features']}")
        rows = train(training, held_out, point["rate"], seed, iterations, every, point["backend"])
        return [{"T": clips.features.frames, "data": clips.data} | row for row in condense(rows, every)]

    fixed = {"backend": backends.resolve("auto"), "rate": RATES[scale]}
    table = progress.collect([{"features": features} | fixed for features in ITERATIONS], train_on, rng)
    table.attrs["data"] = table["data"].iloc[0]
    return table


def train(training, held_out, rate, seed, iterations, every, backend):
    """Train the GRU by both methods, and by BPTT on reversed batches: rows of `training_curves.side_by_side`."""
    batch, coefficients = curves.batches(training, curves.BATCH, seed), training.x.shape[2]

    def new():
        return bp.GRU(coefficients, 20, len(LABELS), rng=seed), bp.Adam(lr=rate)

    def watch(model):
        trainer = bp.Trainer(model, bp.Adam(lr=rate), backend=backend)
        loss, _ = trainer.evaluate(training, 256)
        return {"training_loss": loss, "accuracy": trainer.evaluate(held_out, 256)[1]}

    def reverse(model, x, y, row):
        return curves.differentiate(model, x[:, ::-1], y[::-1], "linear", backend)

    return curves.side_by_side(new, curves.METHODS, batch, iterations, backend, watch, every, reversed=reverse)


def condense(rows, every):
    """Put `every` iterations into one row: what was watched before them, seconds in sum, the largest differences."""
    table = curves.differences(pd.DataFrame(rows))
    table = table.rename(columns={"loss": "drift", "control": "drift_reversed"})
    watched = [f"{name}_{method}" for name in ("training_loss", "accuracy") for method in curves.METHODS]
    how = dict.fromkeys(["iteration", *watched], "first") | {f"seconds_{method}": "sum" for method in curves.METHODS}
    how |= dict.fromkeys(["gradient", "drift", "drift_reversed"], "max")
    return table.groupby(table["iteration"] // every).agg(how).to_dict("records")


def facts(table):
    """Say of every set how it ends, and for how many iterations losses stay together, those of the control, too."""
    sets = table.groupby("features", sort=False).last()
    for name in ("drift", "drift_reversed"):
        parted = table[table[name] > curves.LIMIT].groupby("features")["iteration"].first()
        sets[f"{name}_until"] = parted.reindex(sets.index).fillna(np.inf)
    together = table[table["iteration"] < table["features"].map(sets["drift_until"])]
    return table[["gradient", "drift", "drift_reversed", "rate"]].max().to_dict() | {
        "iterations": sets["iteration"],
        "accuracy": sets["accuracy_linear"],
        "sets": sets.assign(
            drift=together.groupby("features")["drift"].max().reindex(sets.index, fill_value=0),
            together=sets[["drift_until", "iteration"]].min(axis=1),
            itself=sets[["drift_reversed_until", "iteration"]].min(axis=1),
        ),
    }


def plot(table):
    titles = ("Loss per iteration", "Loss per second", "Held-out accuracy", "Differences")
    labels = ("iteration", "seconds", "iteration", "iteration")
    return curves.draw_sets(table, titles, labels, _draw)


def _draw(axes, rows):
    curves.draw_curves(axes[0], rows, "training_loss", curves.METHODS)
    curves.draw_curves(axes[1], rows, "training_loss", curves.METHODS, over_seconds=True)
    curves.draw_curves(axes[2], rows, "accuracy", curves.METHODS)
    worst = rows.set_index("iteration")
    lines = {"gradients": (worst["gradient"], "black", "-"), "losses": (worst["drift"], COLORS["blelloch"], "-")}
    lines["losses, BPTT in reverse"] = worst["drift_reversed"], COLORS["linear"], ":"
    curves.draw_differences(axes[3], lines)


FIGURE = Figure(
    origin="timed",
    caption="""Gradients differ by at most {gradient:.1e}, and losses by at most {drift:.1e}; the control's losses
    differ by {drift_reversed:.1e}. The control is BPTT with each batch's samples in reverse, which changes only the
    order of sums. The learning rate is {rate:g}. At the paper's scale: 3e-4, ten epochs of as many clips as IRMAS
    has.""",
    alt="""Rows of plots, one per set of audio features: S, M and L. BPPSA's dots beside BPTT's line, in training loss
    over iterations and over seconds, and in accuracy. It ends at {accuracy:.0% on _} by BPTT, beside a dashed line at
    guessing. Right, differences on a logarithmic axis, with a line at 1e-5.""",
    phrases={
        "set": """{_}: to {drift:.1e} for {together:.0f} of {iteration} iterations, BPTT with its samples in reverse for
        {itself:.0f} (held-out clips right: {accuracy_linear:.0%} by BPTT, {accuracy_blelloch:.0%} by BPPSA)""",
    },
    claims=[
        Claim("§3.5, Appendix E", "From the GRU's analytic Jacobians, BPPSA computes the same gradients as BP.",
              "“the exact same outputs” (here: to 1e-5)", "{gradient:.1e} at most, in {iterations: iterations on _}",
              lambda f: f["gradient"] <= curves.LIMIT, "rounding"),
        # Where rounding has grown into chaos, losses need be equal for as long as BPTT is equal to itself.
        Claim("Appendix F, Figure 13", "The GRU's loss curves by BPPSA and by BP have the same shape.",
              "same per iteration (here: to 1e-5)", "{sets:each set;}",
              lambda f: (f["sets"]["drift_until"] >= 0.8 * f["sets"]["drift_reversed_until"]).all(), "rounding"),
    ],
)
