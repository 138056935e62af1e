"""Retraining: how well networks classify unseen images when trained, when pruned, and when retrained as long."""

from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.ticker import PercentFormatter

from bppsa_nb.machine import extras
from bppsa_nb.networks.pruning import SCHEMES
from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.bppsa import training_curves
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.images import fetched
from bppsa_nb.papers.tables import where
from bppsa_nb.sparse import VGG11, LeNet5, Network, masks_of, prune
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import SGD
from bppsa_nb.training.trainer import Trainer

PAPER = {"trained": 0.901, "retrained": 0.889}  # Section 4.3
THERE = "the paper, CIFAR-10, 100 epochs"
STAGES = ("trained", "pruned", "retrained")
CHANCE = 0.1
MOMENTUM = 0.9
# B, the first learning rates of training and retraining, and in how many steps a network is pruned and retrained.
# VGG-11 has no batch normalization: trained at 0.01 it waits long before it learns, and at 0.02 it diverges. Pruned to
# 97 % at once, its gradients are too small to learn from. Steps before the last take a share of the iterations,
# `GRADUAL`, with the first learning rate: most of what is lost comes back while it falls.
SETTINGS = {
    "LeNet5": {"B": 16, "lr": 0.01, "retraining_lr": 0.01, "steps": 1},
    "VGG11": {"B": 16, "lr": 0.005, "retraining_lr": 0.01, "steps": 5},
}
GRADUAL = 0.5
EPOCHS = {"quick": {"LeNet5": 1}, "paper": {"LeNet5": 2, "VGG11": 6}}
COPIES = {"LeNet5": {"quick": 1, "paper": 3}, "VGG11": {"paper": 3}}
RATES = {"quick": (0.8, 0.9, 0.97), "paper": (0.5, 0.8, 0.9, 0.95, 0.97)}
IMAGES = {"train": 3000, "test": 500}  # at quick scale; at the paper's, all
STYLES = {  # label, color, marker
    "class_blind": ("class-blind", COLORS["vector"], "o"),
    "class_uniform": ("class-uniform", COLORS["blelloch"], "s"),
    "class_distribution": ("class-distribution", COLORS["identity"], "^"),
}


def measure(scale, rng, progress):
    """Train, prune and retrain: a row per stage; at quick scale, VGG-11's are those recorded at the paper's."""
    training, unseen = (
        Images(split=split, num_samples=count) if scale == "quick" else fetched("cifar10", split)
        for split, count in IMAGES.items()
    )
    prunings = {"LeNet5": [(scheme, rate) for rate in RATES[scale] for scheme in SCHEMES]}
    prunings["VGG11"] = [("class_uniform", 0.97)]

    def measure_point(point, rng):
        seed, epochs = int(rng.integers(2**31)), EPOCHS[scale][point["network"]]
        return stages(point["network"], training, unseen, epochs, prunings[point["network"]], seed, progress.show)

    points = [
        {"network": network, "copy": copy, "images": training.source, "epochs": epochs} | SETTINGS[network]
        for network, epochs in EPOCHS[scale].items()
        for copy in range(COPIES[network][scale])
    ]
    table = progress.collect(points, measure_point, rng)
    if scale == "quick":
        recorded = experiments.table("retraining", "paper")
        table = pd.concat([table, recorded[recorded["network"] == "VGG11"]], ignore_index=True)
    table.attrs = {"data": training.data, "backend": "numpy"}
    return table


def new(network, seed):
    """Make a network, "LeNet5" or "VGG11", whose weights begin by He initialization: so both learn within an epoch."""
    if network == "VGG11":
        return VGG11(rng=seed)
    return Network((3, 32, 32), LeNet5().operators, init="he", rng=seed)


def stages(network, training, unseen, epochs, prunings, seed, show=False):
    """Train a network once; from there, prune it by each scheme and rate, and retrain it: a row per stage.

    `difference` is between gradients by the linear scan and by ordinary backward, as `compare` has it.
    """
    settings, model = SETTINGS[network], new(network, seed)
    shown = f"{network}, training" if show else None

    def row(scheme, rate, stage, iterations, difference=None):
        loss, accuracy = Trainer(model, SGD(0)).evaluate(unseen, 100)
        kept = masks_of(model.params).values()
        layers = [1 - mask.mean() for mask in kept]
        whole = 1 - sum(mask.sum() for mask in kept) / sum(mask.size for mask in kept)
        about = {"scheme": scheme, "rate": rate, "stage": stage, "iterations": iterations, "accuracy": accuracy}
        pruned = {"pruned": whole, "pruned_least": min(layers), "pruned_most": max(layers)}
        return about | {"loss": loss} | pruned | {"difference": difference}

    first, second = (batches(len(training), settings["B"], epochs, [seed, part]) for part in (0, 1))
    train(model, training, first, falling(settings["lr"], len(first)), shown)
    rows = [row("none", 0.0, "trained", len(first))]
    trained = {name: param.copy() for name, param in model.params.items()}
    for scheme, rate in prunings:
        restore(model, trained)
        model.masks = prune(model.params, rate, scheme)
        rows.append(row(scheme, rate, "pruned", 0))
        restore(model, trained)
        steps, lr = settings["steps"], settings["retraining_lr"]
        before = int(GRADUAL * len(second)) if steps > 1 else 0  # iterations before the last step
        rates = [lr] * before + falling(lr, len(second) - before)
        ends = [before * step // (steps - 1) for step in range(1, steps)] + [len(second)]
        shown = f"{network}, {scheme} {rate:.0%}" if show else None
        for step, (start, end) in enumerate(pairwise([0, *ends]), 1):
            # The share of weights that is kept shrinks by the same factor in every step.
            model.masks = prune(model.params, 1 - (1 - rate) ** (step / steps), scheme)
            train(model, training, second[start:end], rates[start:end], shown)
        difference = compare(model, *training.batch(np.arange(settings["B"])))
        rows.append(row(scheme, rate, "retrained", len(second), difference))
    return rows


def batches(count, size, epochs, seed):
    """List the numbers of the images of every iteration: all of them once an epoch, in an order of its own."""
    orders = [np.random.default_rng([*seed, epoch]).permutation(count) for epoch in range(epochs)]
    return [order[start : start + size] for order in orders for start in range(0, count, size)]


def falling(lr, count):
    """Return the learning rate of every iteration: half a cosine, from `lr` down to zero."""
    return (lr * (1 + np.cos(np.pi * np.arange(count) / count)) / 2).tolist()


def train(model, training, numbers, rates, shown):
    """Take a step on each batch of images, with an optimizer of its own: one from before moves pruned weights."""
    trainer = Trainer(model, SGD(rates[0], MOMENTUM), method="ordinary")
    bar = extras.bar(numbers, desc=shown, leave=False, disable=None if shown else True)
    for batch, rate in zip(bar, rates, strict=True):
        trainer.optimizer.lr = rate
        trainer.step(*training.batch(batch))


def restore(model, params):
    """Give a network earlier parameters, of before it was pruned."""
    for name, param in params.items():
        np.copyto(model.params[name], param)
    model.masks = None


def compare(model, x, y):
    """Differentiate by the linear scan over sparse Jacobians and by ordinary backward: the relative difference."""
    activations = model.forward(x)
    _, grad_logits = cross_entropy(activations.logits, y)
    scanned, ordinary = (model.backward(activations, grad_logits, method) for method in ("linear", "ordinary"))
    return max(training_curves.difference(scanned[name], ordinary[name]) for name in ordinary)


def values(table):
    """Name what the words are taken from."""
    return {"lenet": table[(table["network"] == "LeNet5") & (table["rate"] > 0)], "vgg": where(table, network="VGG11")}


def plot(table):
    """Draw LeNet-5's accuracy over the share pruned, and VGG-11's three stages beside the paper's numbers."""
    shape = {"figsize": (9.6, 4.4), "width_ratios": [1.35, 1], "sharey": True, "layout": "constrained"}
    fig, (left, right) = pyplot.subplots(1, 2, **shape)
    _draw_rates(left, table[table["network"] == "LeNet5"])
    _draw_stages(right, table[table["network"] == "VGG11"])
    left.set(ylabel="accuracy on unseen images", ylim=(0, 1.04))
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for ax, place in ((left, "outside upper left"), (right, "outside upper right")):
        ax.axhline(CHANCE, color="black", lw=1.1, ls=":", zorder=1)
        fig.legend(*ax.get_legend_handles_labels(), loc=place, ncols=2)
    left.text(left.get_xlim()[0], CHANCE, " guessing", va="bottom", size=8.5)
    return fig


def _draw_rates(ax, rows):
    ways = rows[rows["stage"] != "trained"].groupby(["scheme", "rate", "stage"])["accuracy"].agg(["mean", "min", "max"])
    rates = sorted(rows.loc[rows["stage"] != "trained", "rate"].unique())
    for shift, (scheme, (label, color, marker)) in zip((-0.09, 0, 0.09), STYLES.items(), strict=True):
        for stage in ("retrained", "pruned"):
            runs_of = ways.xs((scheme, stage), level=("scheme", "stage")).loc[rates]
            style = {"color": color, "marker": marker, "ms": 6, "capsize": 2.5}
            style |= {"ls": "-"} if stage == "retrained" else {"ls": "--", "mfc": "white", "lw": 1.2}
            runs = (runs_of[end] for end in ("min", "mean", "max"))
            panels.errorbar(ax, np.arange(len(rates)) + shift, *runs, label=f"{label}, {stage}", **style)
    trained = rows.loc[rows["stage"] == "trained", "accuracy"].mean()
    ax.axhline(trained, color="black", lw=1.1, ls="--", zorder=1)
    iterations, size = rows["iterations"].iloc[0], rows["B"].iloc[0]
    ax.set(xlim=(-0.35, len(rates) - 0.65), xlabel="weights pruned at once")
    ax.set(xticks=range(len(rates)), xticklabels=[f"{rate:.0%}" for rate in rates])
    ax.text(ax.get_xlim()[1], trained, "trained ", ha="right", va="bottom", size=8.5)
    ax.set_title(f"LeNet-5: {iterations} iterations of {size}, and again", size=10.5)


def _draw_stages(ax, rows):
    ours = rows.groupby("stage")["accuracy"].agg(["mean", "min", "max"]).reindex(STAGES)
    here = f"here, {rows['images'].iloc[0]}, {rows['epochs'].iloc[0]} epochs"
    series = (here, ours["mean"], -0.2, COLORS["blelloch"]), (THERE, pd.Series(PAPER), 0.2, COLORS["baseline"])
    for label, accuracy, shift, color in series:
        accuracy = accuracy.reindex(STAGES).dropna()
        places = [STAGES.index(stage) + shift for stage in accuracy.index]
        drawn = ax.bar(places, accuracy, 0.38, color=color, label=label)
        ax.bar_label(drawn, [f"{value:.1%}" for value in accuracy], size=8.5, padding=4)
    ax.vlines(np.arange(len(STAGES)) - 0.2, ours["min"], ours["max"], color="black", lw=1.5)
    ax.set_xticks(range(len(STAGES)), ["trained", "pruned to 97 %", "retrained"])
    ax.set_xlim(-0.6, len(STAGES) - 0.4)
    ax.set_title(f"VGG-11: {rows['iterations'].iloc[0]} iterations of {rows['B'].iloc[0]}, and again", size=10.5)
    ax.grid(axis="x", visible=False)
