"""Figure 13: the GRU trained on audio by BPTT and by BPPSA from the same seed."""

import pandas as pd

from bppsa_nb.cells.gru import GRU
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves
from bppsa_nb.papers.bppsa.epochs import CLIPS
from bppsa_nb.papers.bppsa.training_curves import BATCH, CHANCE, GRU_RATE, LIMIT, METHODS  # noqa: F401
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import LABELS, Instruments
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

ITERATIONS = {"S": 300, "M": 80, "L": 40}  # at quick scale
EPOCHS = 10  # at the paper's, on as many clips as IRMAS has; `four_hundred_epochs` goes on to the end
RATES = {"quick": 3e-3, "paper": GRU_RATE}
EVERY = 20  # iterations per row at quick scale; an epoch at the paper's


def measure(scale, rng, progress):
    """Train on S, M and L by both methods on the fastest backend: a row per set and epoch, or `EVERY` iterations."""
    folder = instruments.clips(instruments.CLIPS if scale == "quick" else CLIPS, progress=progress.show)
    seed = int(rng.integers(2**31))

    def train_on(point, _):
        clips = Instruments(folder, point["features"], progress=progress.show)
        training, held_out = clips.split(rng=seed)
        epoch = -(-len(training) // BATCH)
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
    batch, coefficients = training_curves.batches(training, BATCH, seed), training.x.shape[2]

    def new():
        return GRU(coefficients, 20, len(LABELS), rng=seed), Adam(lr=rate)

    def watch(model):
        trainer = Trainer(model, Adam(lr=rate), backend=backend)
        loss, _ = trainer.evaluate(training, 256)
        return {"training_loss": loss, "accuracy": trainer.evaluate(held_out, 256)[1]}

    def reversed_batch(iteration):
        x, y = batch(iteration)
        return x[:, ::-1], y[::-1]

    rows = training_curves.side_by_side(new, METHODS, batch, iterations, backend, watch, every)
    losses = training_curves.control(new, "linear", reversed_batch, rows, backend)
    return [row | {"loss_reversed": loss} for row, loss in zip(rows, losses, strict=True)]


def condense(rows, every):
    """Put `every` iterations into one row: what was watched before them, seconds in sum, the largest differences."""
    table = training_curves.differences(pd.DataFrame(rows), control="reversed")
    table = table.rename(columns={"loss": "drift", "control": "drift_reversed"})
    watched = [f"{name}_{method}" for name in ("training_loss", "accuracy") for method in METHODS]
    how = dict.fromkeys(["iteration", *watched], "first") | {f"seconds_{method}": "sum" for method in METHODS}
    how |= dict.fromkeys(["gradient", "drift", "drift_reversed"], "max")
    return table.groupby(table["iteration"] // every).agg(how).to_dict("records")


def values(table):
    """Name what the words are taken from."""
    return {"last": table.groupby("features", sort=False).last()}


def plot(table):
    """Draw a row of plots per set: loss over iterations and seconds, accuracy, differences."""
    titles = ("Loss per iteration", "Loss per second", "Held-out accuracy", "Differences")
    labels = ("iteration", "seconds", "iteration", "iteration")
    return training_curves.draw_sets(table, titles, labels, _draw)


def _draw(axes, rows):
    training_curves.draw_curves(axes[0], rows, "training_loss", METHODS)
    training_curves.draw_curves(axes[1], rows, "training_loss", METHODS, over_seconds=True)
    training_curves.draw_curves(axes[2], rows, "accuracy", METHODS)
    worst = rows.set_index("iteration").rename(columns={"drift": "loss", "drift_reversed": "control"})
    training_curves.draw_differences(axes[3], worst, "BPTT in reverse", COLORS["linear"])
