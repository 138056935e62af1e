"""Figure 12 (Appendix C): what stale weights do to Adam."""

import numpy as np
import pandas as pd

import bppsa_nb as bp
from bppsa_nb import schedule
from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, grid, where
from bppsa_nb.papers.ooo import execution
from bppsa_nb.sparse import AvgPool2d, Conv2d, Flatten, Linear, Network, ReLU

SCALES = {
    "quick": {"train": 1000, "test": 500, "epochs": 5, "seeds": 5, "rates": (1e-3, 3e-3), "devices": (1, 4)},
    "paper": {"train": 6000, "test": 1500, "epochs": 10, "seeds": 5, "rates": (3e-4, 1e-3, 3e-3), "devices": (1, 4, 8)},
}
BATCH = 20  # one micro-batch, and one update
STYLES = {
    1: {"label": "no staleness", "color": COLORS["baseline"], "marker": "s"},
    4: {"label": "PipeDream, 4 devices", "color": COLORS["linear"], "marker": "o"},
    8: {"label": "PipeDream, 8 devices", "color": COLORS["vector"], "marker": "^"},
}


def measure(scale, rng, progress):
    """Train with every learning rate, number of devices and seed; at quick scale, recorded runs are added."""
    how = SCALES[scale]
    training, unseen = (bp.Images(split=split, num_samples=how[split]) for split in ("train", "test"))
    seeds = np.random.default_rng(rng).integers(2**31, size=how["seeds"]).tolist()
    runs = grid(images=[len(training)], lr=how["rates"], seed=seeds, devices=how["devices"])
    table = progress.collect(runs, lambda point, _: train(training, unseen, how["epochs"], point), rng)
    if scale == "quick":
        recorded = experiments.table("staleness", "paper")
        shown = recorded["lr"].isin(how["rates"]) & recorded["devices"].isin(how["devices"])
        table = pd.concat([table, recorded[shown]], ignore_index=True)
    table.attrs = {"data": training.data}
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


def train(training, unseen, epochs, point):
    """Train by PipeDream with weight stashing, an update after every `BATCH` images: a row per epoch.

    With one device, every update comes before the next forward pass.
    """
    model, order = network(point["seed"]), np.random.default_rng(point["seed"])
    count = len(training) // BATCH
    timeline = schedule.pipeline(schedule.Network.uniform(8), point["devices"], count, "1f1b", flush=False)
    optimizers, staleness, rows = [bp.Adam(point["lr"]) for _ in range(8)], int(timeline.staleness().max()), []
    for epoch in range(1, epochs + 1):
        batch = training.batch(order.permutation(len(training))[: count * BATCH])
        losses = execution.run(timeline, model, *batch, optimizers).losses
        loss, accuracy = bp.Trainer(model, bp.SGD(0)).evaluate(unseen, 100)
        row = {"epoch": epoch, "staleness": staleness, "training_loss": float(losses.mean())}
        rows.append(row | {"loss": loss, "accuracy": accuracy})
    return rows


def gaps(table):
    """Compare, after the last epoch, runs on several devices with those of the same seeds on one: what they lack."""
    epochs = table.groupby("images")["epoch"].max()
    last = table[table["epoch"] == table["images"].map(epochs)]
    runs = last.pivot(index=["images", "lr", "seed"], columns="devices", values="accuracy")
    lacks = -runs.drop(columns=1).sub(runs[1], axis=0).stack()
    found = lacks.groupby(["images", "lr", "devices"]).agg(["mean", "min", "max", "count"]).reset_index()
    return found.assign(updates=found["images"] // BATCH * found["images"].map(epochs))


def facts(table):
    """Say what runs with stale weights lack: of each, and on four devices in the longest training."""
    found = gaps(table)
    four = where(found, devices=4)
    longest = where(four, images=four["images"].max())["mean"]
    four = four.assign(ends=list(zip(four["min"], four["max"], strict=True)))
    return {"mean": found["mean"], "seeds": found["count"], "gaps": four, "longest": longest}


def plot(table):
    rows, columns, found = table["images"].nunique(), table["lr"].nunique(), gaps(table)
    size = (9.6, 0.8 + 2.6 * rows)
    fig, axes = panels.subplots(rows, columns, sharex="row", sharey=True, squeeze=False, figsize=size)
    for ax, ((images, lr), part) in zip(axes.flat, table.groupby(["images", "lr"]), strict=True):
        for i, (devices, runs) in enumerate(part.groupby("devices")):
            means = runs.groupby("epoch")["accuracy"].agg(accuracy_low="min", accuracy="mean", accuracy_high="max")
            panels.with_quartiles(ax, means.index + 0.06 * i, means, "accuracy", ms=5, capsize=3, **STYLES[devices])
        words = []
        for gap in where(found, images=images, lr=lr).itertuples():
            mean, least, most = (f"{-100 * lack:+.1f}".replace("-", "−") for lack in (gap.mean, gap.min, gap.max))
            words.append(f"{gap.devices} devices, in the end: {mean} points ({most} to {least})")
        ax.text(0.98, 0.04, "\n".join(words), transform=ax.transAxes, ha="right", size=9)
        ax.set_title(f"{images // BATCH} updates per epoch, learning rate {lr:g}", size=10)
        ax.set_xticks(sorted(part["epoch"].unique()))
    for ax in axes[:, 0]:
        ax.set_ylabel("accuracy, unseen images")
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    axes[0, 0].legend(loc="upper left")
    return fig


FIGURE = Figure(
    origin="trained", backend="numpy", needs=("staleness.paper",),
    caption="""Stale weights cost Adam {mean:.1f points} of accuracy in the end, in the mean over {seeds} seeds. With
    PipeDream on four devices, the first device's gradients are for weights three updates old. Drawn: means and ranges.
    Numbers: differences between runs of one seed. The paper reports a loss of 2.6 points, of VGG-16 on ImageNet; ours
    is a small network.""",
    alt="""Plots of accuracy over epochs, with and without PipeDream's staleness, a row per number of updates in an
    epoch, a column per learning rate. In the end, {mean:.1f points} are missing with staleness, in the mean over
    seeds.""",
    phrases={"gap": "{mean:.1f points} lower ({ends:.1f points}) after {updates} updates with learning rate {lr:g}"},
    claims=[
        # Whether accuracy is lower in the end, of the longest training, at every learning rate.
        Claim("Appendix C, Figure 12", "PipeDream's stale weights cost accuracy with Adam.",
              "2.6 points top-1 (VGG-16, ImageNet, 4 devices)", "{gaps:each gap;}", lambda f: f["longest"].min() > 0),
    ],
)
