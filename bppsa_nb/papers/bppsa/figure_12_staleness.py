"""Figure 12: a network trained with Adam by PipeDream, whose weights are stale, and without."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.progress import grid
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import points
from bppsa_nb.sparse import AvgPool2d, Conv2d, Flatten, Linear, Network, ReLU
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.optimizers import SGD, Adam
from bppsa_nb.training.trainer import Trainer

SCALES = {
    "quick": {"train": 1000, "test": 500, "epochs": 5, "seeds": 5, "rates": (1e-3, 3e-3), "devices": (1, 4)},
    "paper": {"train": 6000, "test": 1500, "epochs": 10, "seeds": 5, "rates": (3e-4, 1e-3, 3e-3), "devices": (1, 4, 8)},
}
BATCH = 20  # one micro-batch, and one update
LAYERS = 8
STYLES = {1: ("no staleness", COLORS["baseline"], "s"), 4: ("PipeDream, 4 devices", COLORS["linear"], "o")}
STYLES[8] = ("PipeDream, 8 devices", COLORS["vector"], "^")


def measure(scale, rng, progress):
    """Train with every learning rate, number of devices and seed; at quick scale, recorded runs are added."""
    how = SCALES[scale]
    training, unseen = (Images(split=split, num_samples=how[split]) for split in ("train", "test"))
    seeds = np.random.default_rng(rng).integers(2**31, size=how["seeds"]).tolist()
    runs = grid(images=[len(training)], lr=how["rates"], seed=seeds, devices=how["devices"])

    def measure_point(point, rng):
        return train(training, unseen, how["epochs"], point["lr"], point["seed"], point["devices"])

    table = progress.collect(runs, measure_point, rng)
    if scale == "quick":
        recorded = experiments.table("staleness", "paper")
        shown = recorded["lr"].isin(how["rates"]) & recorded["devices"].isin(how["devices"])
        table = pd.concat([table, recorded[shown]], ignore_index=True)
    table.attrs = {"data": training.data, "backend": "numpy"}
    return table


def network(seed):
    """Make a small convolutional network of eight layers; its weights begin by He initialization."""
    operators, channels = [AvgPool2d("half", 2)], 3
    for i, outputs in enumerate((8, 12, 16), 1):
        operators += [Conv2d(f"conv{i}", channels, outputs, 4, stride=2, padding=1), ReLU(f"relu{i}")]
        channels = outputs
    operators += [Flatten("flatten"), Linear("fc1", 64, 48)]
    for i in range(2, 5):
        operators += [ReLU(f"relu{i + 2}"), Linear(f"fc{i}", 48, 48)]
    operators += [ReLU("relu7"), Linear("fc5", 48, 10)]
    return Network((3, 32, 32), operators, init="he", rng=seed)


def train(training, unseen, epochs, lr, seed, devices):
    """Train by PipeDream with weight stashing, an update after every `BATCH` images: a row per epoch.

    With one device, every update comes before the next forward pass; with more, the first one's weights are `staleness`
    updates old.
    """
    model, order = network(seed), np.random.default_rng(seed)
    count = len(training) // BATCH
    timeline = schedule.pipeline(schedule.Network.uniform(LAYERS), devices, count, "1f1b", flush=False)
    staleness, rows = int(timeline.staleness().max()), []
    with schedule.Executor(timeline, model, count * BATCH, optimizer=Adam(lr), processes=False) as run:
        for epoch in range(1, epochs + 1):
            result = run(*training.batch(order.permutation(len(training))[: count * BATCH]))
            loss, accuracy = Trainer(model, SGD(0)).evaluate(unseen, 100)
            row = {"epoch": epoch, "staleness": staleness, "training_loss": result.loss}
            rows.append(row | {"loss": loss, "accuracy": accuracy})
    return rows


def gaps(table):
    """Compare, after the last epoch, runs on several devices with those of the same seeds on one: what they lack."""
    rows = []
    for (images, lr), part in table.groupby(["images", "lr"]):
        runs = part[part["epoch"] == part["epoch"].max()].pivot(index="seed", columns="devices", values="accuracy")
        for devices in runs.columns.drop(1):
            lacks = runs[1] - runs[devices]
            row = {"images": images, "updates": images // BATCH, "lr": lr, "devices": devices}
            lack = {"mean": lacks.mean(), "least": lacks.min(), "most": lacks.max()}
            rows.append(row | lack | {"accuracy": runs[devices].mean()})
    return pd.DataFrame(rows)


def plot(table):
    """Draw accuracy over epochs, for every number of images and learning rate: means, with ranges over seeds."""
    counts, rates = (sorted(table[name].unique()) for name in ("images", "lr"))
    found_gaps, shape = gaps(table), {"figsize": (9.6, 0.8 + 2.6 * len(counts)), "layout": "constrained"}
    fig, axes = pyplot.subplots(len(counts), len(rates), sharex="row", sharey=True, squeeze=False, **shape)
    for line, images in zip(axes, counts, strict=True):
        for ax, lr in zip(line, rates, strict=True):
            part = where(table, images=images, lr=lr)
            for i, (devices, rows) in enumerate(part.groupby("devices")):
                label, color, marker = STYLES[devices]
                runs = rows.groupby("epoch")["accuracy"].agg(["mean", "min", "max"])
                style = {"color": color, "marker": marker, "ms": 5, "capsize": 3, "label": label}
                panels.errorbar(ax, runs.index + 0.06 * i, runs["min"], runs["mean"], runs["max"], **style)
            ax.set_title(f"{images // BATCH} updates per epoch, learning rate {lr:g}", size=10)
            ax.set_xticks(sorted(part["epoch"].unique()))
            words = []
            for gap in where(found_gaps, images=images, lr=lr).itertuples():
                mean, most, least = (points(-lack) for lack in (gap.mean, gap.most, gap.least))
                words.append(f"{gap.devices} devices, in the end: {mean} points ({most} to {least})")
            ax.text(0.98, 0.04, "\n".join(words), transform=ax.transAxes, ha="right", size=9)
        line[0].set_ylabel("accuracy, unseen images")
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    axes[0, 0].legend(loc="upper left")
    return fig
