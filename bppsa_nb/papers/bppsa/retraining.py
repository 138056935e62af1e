"""Pruned networks, retrained."""

import copy
import itertools

import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter

import bppsa_nb as bp
from bppsa_nb.networks.weights import SCHEMES
from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.bppsa import training_curves as curves
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.images import fetched
from bppsa_nb.sparse import VGG11, LeNet5, Network, masks_of, prune
from bppsa_nb.training.loss import cross_entropy

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
STYLES = {  # color, marker
    "class_blind": (COLORS["vector"], "o"),
    "class_uniform": (COLORS["blelloch"], "s"),
    "class_distribution": (COLORS["identity"], "^"),
}


def measure(scale, rng, progress):
    """Train, prune and retrain: a row per stage; at quick scale, VGG-11's are those recorded at the paper's."""
    training, unseen = (
        bp.Images(split=split, num_samples=count) if scale == "quick" else fetched("cifar10", split)
        for split, count in IMAGES.items()
    )
    prunings = {"LeNet5": [(scheme, rate) for rate in RATES[scale] for scheme in SCHEMES]}
    prunings["VGG11"] = [("class_uniform", 0.97)]

    def measure_point(point, rng):
        name, seed = point["network"], int(rng.integers(2**31))
        return stages(name, training, unseen, point["epochs"], prunings[name], seed, progress.bar)

    points = [
        {"network": network, "copy": copy, "images": training.source, "epochs": epochs} | SETTINGS[network]
        for network, epochs in EPOCHS[scale].items()
        for copy in range(COPIES[network][scale])
    ]
    table = progress.collect(points, measure_point, rng)
    if scale == "quick":
        recorded = experiments.table("retraining", "paper")
        table = pd.concat([table, recorded[recorded["network"] == "VGG11"]], ignore_index=True)
    table.attrs = {"data": training.data}
    return table


def new(network, seed):
    """Make a network, "LeNet5" or "VGG11", whose weights begin by He initialization: so both learn within an epoch."""
    if network == "VGG11":
        return VGG11(rng=seed)
    return Network((3, 32, 32), LeNet5().operators, init="he", rng=seed)


def stages(network, training, unseen, epochs, prunings, seed, bar=lambda steps, name: steps):
    """Train a network once; from there, prune it by each scheme and rate, and retrain it: a row per stage."""
    settings, model = SETTINGS[network], new(network, seed)
    first, second = (curves.batches(training, settings["B"], [seed, part]) for part in (0, 1))
    count = epochs * -(-len(training) // settings["B"])  # iterations

    def train(batch, rates, name, start=0):
        trainer = bp.Trainer(model, bp.SGD(rates[0], 0.9), method="ordinary")  # one from before moves pruned weights
        for iteration, rate in enumerate(bar(rates, f"{network}, {name}"), start):
            trainer.optimizer.lr = rate
            trainer.step(*batch(iteration))

    def row(scheme, rate, stage, iterations, difference=None):
        loss, accuracy = bp.Trainer(model, bp.SGD(0)).evaluate(unseen, 100)
        kept = masks_of(model.params).values()
        layers = [1 - mask.mean() for mask in kept]
        whole = 1 - sum(mask.sum() for mask in kept) / sum(mask.size for mask in kept)
        about = {"scheme": scheme, "rate": rate, "stage": stage, "iterations": iterations, "accuracy": accuracy}
        about |= {"loss": loss, "pruned": whole, "pruned_least": min(layers), "pruned_most": max(layers)}
        return about | {"difference": difference}

    train(first, falling(settings["lr"], count), "training")
    rows, trained = [row("none", 0.0, "trained", count)], copy.deepcopy(model.params)
    steps, lr = settings["steps"], settings["retraining_lr"]
    before = int(GRADUAL * count) if steps > 1 else 0  # iterations before the last step
    rates = [lr] * before + falling(lr, count - before)
    ends = [before * step // (steps - 1) for step in range(1, steps)] + [count]
    for (scheme, rate), stage in itertools.product(prunings, ("pruned", "retrained")):
        for name, param in trained.items():
            np.copyto(model.params[name], param)
        if stage == "pruned":
            model.masks = prune(model.params, rate, scheme)
            rows.append(row(scheme, rate, stage, 0))
            continue
        model.masks = None
        for step, (start, end) in enumerate(itertools.pairwise([0, *ends]), 1):
            # The share of weights that is kept shrinks by the same factor in every step.
            model.masks = prune(model.params, 1 - (1 - rate) ** (step / steps), scheme)
            train(second, rates[start:end], f"{scheme} {rate:.0%}", start)
        x, y = training.batch(np.arange(settings["B"]))
        activations = model.forward(x)
        grad_logits = cross_entropy(activations.logits, y)[1]
        scanned, ordinary = (model.backward(activations, grad_logits, method) for method in ("linear", "ordinary"))
        worst = max(curves.difference(scanned[name], ordinary[name]) for name in ordinary)
        rows.append(row(scheme, rate, stage, count, worst))
    return rows


def falling(lr, count):
    """Return the learning rate of every iteration: half a cosine, from `lr` down to zero."""
    return (lr * (1 + np.cos(np.pi * np.arange(count) / count)) / 2).tolist()


def facts(table):
    """Name accuracies: VGG-11's by stage, and LeNet-5's where the least and where the most was pruned."""
    lenet, vgg = (where(table, network=name) for name in ("LeNet5", "VGG11"))
    lenet = lenet[lenet["rate"] > 0]
    found = {"rate": vgg["rate"].max(), "mean": vgg.groupby("stage", sort=False)["accuracy"].mean()}
    found["runs"] = dict(iter(vgg.groupby("stage")["accuracy"]))
    for end, rate in (("least", lenet["rate"].min()), ("most", lenet["rate"].max())):
        found[end] = {"rate": rate} | dict(iter(where(lenet, rate=rate).groupby("stage")["accuracy"]))
    return found


def plot(table):
    fig, (left, right) = panels.subplots(1, 2, figsize=(9.6, 4.4), width_ratios=[1.35, 1], sharey=True)
    _draw_rates(left, where(table, network="LeNet5"))
    _draw_stages(right, where(table, network="VGG11"))
    left.set(ylabel="accuracy on unseen images", ylim=(0, 1.04))
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for ax, place in ((left, "outside upper left"), (right, "outside upper right")):
        ax.axhline(0.1, color="black", lw=1.1, ls=":", zorder=1)
        fig.legend(*ax.get_legend_handles_labels(), loc=place, ncols=2)
    left.text(left.get_xlim()[0], 0.1, " guessing", va="bottom", size=8.5)
    return fig


def _draw_rates(ax, rows):
    first, ways = rows.iloc[0], rows[rows["stage"] != "trained"].groupby(["scheme", "stage", "rate"])["accuracy"]
    ways = ways.agg(accuracy_low="min", accuracy="mean", accuracy_high="max")
    rates = ways.index.unique("rate")
    for shift, (scheme, (color, marker)) in zip((-0.09, 0, 0.09), STYLES.items(), strict=True):
        for stage, style in (("retrained", {"ls": "-"}), ("pruned", {"ls": "--", "mfc": "white", "lw": 1.2})):
            style |= {"color": color, "marker": marker, "ms": 6, "capsize": 2.5}
            style["label"] = f"{scheme.replace('_', '-')}, {stage}"
            panels.with_quartiles(ax, np.arange(len(rates)) + shift, ways.loc[scheme, stage], "accuracy", **style)
    trained = where(rows, stage="trained")["accuracy"].mean()
    ax.axhline(trained, color="black", lw=1.1, ls="--", zorder=1)
    ax.set(xlim=(-0.35, len(rates) - 0.65), xlabel="weights pruned at once")
    ax.set(xticks=range(len(rates)), xticklabels=[f"{rate:.0%}" for rate in rates])
    ax.text(ax.get_xlim()[1], trained, "trained ", ha="right", va="bottom", size=8.5)
    ax.set_title(f"LeNet-5: {first['iterations']} iterations of {first['B']}, and again", size=10.5)


def _draw_stages(ax, rows):
    first, ours = rows.iloc[0], rows.groupby("stage", sort=False)["accuracy"].agg(["mean", "min", "max"])
    here = f"here, {first['images']}, {first['epochs']} epochs"
    theirs = pd.Series({"trained": 0.901, "retrained": 0.889})  # Section 4.3
    series = (here, ours["mean"], -0.2, "blelloch"), ("the paper, CIFAR-10, 100 epochs", theirs, 0.2, "baseline")
    for label, accuracy, shift, role in series:
        drawn = ax.bar(ours.index.get_indexer(accuracy.index) + shift, accuracy, 0.38, color=COLORS[role], label=label)
        ax.bar_label(drawn, [f"{value:.1%}" for value in accuracy], size=8.5, padding=4)
    ax.vlines(np.arange(len(ours)) - 0.2, ours["min"], ours["max"], color="black", lw=1.5)
    ax.set_xticks(range(len(ours)), ["trained", "pruned to 97 %", "retrained"])
    ax.set_xlim(-0.6, len(ours) - 0.4)
    ax.set_title(f"VGG-11: {first['iterations']} iterations of {first['B']}, and again", size=10.5)
    ax.grid(axis="x", visible=False)


FIGURE = Figure(
    origin="trained", backend="numpy", needs=("retraining.paper",),
    caption="""Pruned to 97 % and retrained, VGG-11 classifies {mean[retrained]:.0%} of unseen images; before it was
    pruned, {mean[trained]:.0%}. Left, LeNet-5, pruned at once by magnitude, and retrained for as many iterations as it
    was trained: means and ranges over seeds. Right, VGG-11, pruned at once, and in five steps that each keep half of
    every layer's weights. The paper's data set is another.""",
    alt="""Left, accuracy of LeNet-5 over the share of weights pruned, by three rules. At {least[rate]:.0%} it is
    {least[pruned]:.0%} right after pruning and {least[retrained]:.0%} after retraining; at {most[rate]:.0%},
    {most[pruned]:.0%} and {most[retrained]:.0%}. Right, bars for VGG-11 beside the paper's 90.1 % and 88.9 %:
    {mean:.0% _}.""",
    claims=[
        Claim("§4.3", "VGG-11 is about as accurate when 97 % is pruned and it is retrained as long as trained.",
              "90.1 %, 88.9 % (here: within 2 points)",
              "{mean[trained]:.1%} ({runs[trained]:.1%} over seeds), {mean[retrained]:.1%} ({runs[retrained]:.1%} over "
              "seeds) after pruning {rate:.0%} and as many iterations again",
              lambda f: f["mean"]["retrained"] >= f["mean"]["trained"] - 0.02,
              recorded_by="bppsa-nb measure retraining --scale paper"),
    ],
)
