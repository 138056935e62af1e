"""Section IV-A of layer-parallel training: two cycles forward, two backward, held against back-propagation."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import sparse
from bppsa_nb.machine import backends
from bppsa_nb.multigrid import ResidualModel
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.images import fetched
from bppsa_nb.papers.multigrid import digits
from bppsa_nb.papers.multigrid.digits import TEST_DIGITS, Digits
from bppsa_nb.papers.phrases import listed, points
from bppsa_nb.papers.tables import where
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

TITLE = "Section IV-A of layer-parallel training: two cycles per pass, and serial back-propagation"
CAPTION = (
    "Residual networks of 64 layers learn handwritten digits, with states and gradients from two V-cycles each "
    "(coarsening 4, FCF-relaxation), or serially. Above: runs of one seed begin alike and see the same batches; marks "
    "are means over five seeds (two for T = 1 and 64), lines ranges. In words, by how many points the accuracy of two "
    "cycles differs in the end, mean and range over seeds; networks are evaluated serially; T = N h. Below: the "
    "relative error of the gradient, all parameters together. Bars lead from the geometric mean before training by two "
    "cycles to that after it, in whichever order; marks are between. Of first guesses, nested iteration takes longer; "
    "with skip_downcycle, the first of the two cycles is half a cycle."
)
# At the paper's scale, MNIST's images (their stand-in if they were not fetched) and convolutions.
TIMES = {1: 2, 4: 5, 16: 5, 64: 2}  # T = N h, and from how many seeds
EPOCHS = {"quick": 5, "paper": 3}
IMAGES = {"train": 6000, "test": 1500}  # at the paper's scale
DEPTH, CHANNELS = 64, 8
BATCH, RATE = 64, 1e-2
METHODS = {"serial": None, "multigrid": {"cycles": 2}}
# Whose gradients are held against serial ones, on the way of training by "multigrid".
SOLVERS = {
    "one cycle": {"cycles": 1},
    "two cycles": {"cycles": 2},
    "three cycles": {"cycles": 3},
    "skip_downcycle": {"cycles": 2, "skip_downcycle": True},
    "nested_iteration": {"cycles": 2, "nested_iteration": True},
}


def measure(scale, rng, progress):
    """Train by both methods for every time and seed: a row per epoch, the beginning included."""
    training, unseen = (images(split, scale) for split in ("train", "test"))
    backend = backends.resolve("auto")
    seeds = np.random.default_rng(rng).integers(2**31, size=max(TIMES.values())).tolist()
    runs = [
        {"T": T, "seed": seed, "method": method, "backend": backend}
        for T, count in TIMES.items()
        for seed in seeds[:count]
        for method in METHODS
    ]

    def measure_point(point, _):
        model = new(training, point["T"], point["seed"])
        return train(model, training, unseen, EPOCHS[scale], point["method"], point["seed"], backend)

    table = progress.collect(runs, measure_point, rng)
    table.attrs = {"data": training.data}
    return table


def images(split, scale):
    """Load the digits, or at the paper's scale some of MNIST's images, if it was fetched, or else of their stand-in."""
    return Digits(split) if scale == "quick" else fetched("mnist", split, IMAGES[split])


def new(training, T, seed):
    """Make a network for what it is trained on: dense layers for vectors, convolutions for images."""
    if isinstance(training, Digits):
        return digits.network(DEPTH, T, seed)
    opening = [sparse.AvgPool2d("half", 2), sparse.Conv2d("opening", 3, CHANNELS, 3, stride=2, padding=1)]
    opening.append(sparse.Tanh("tanh"))
    closing = [sparse.Flatten("flatten"), sparse.Linear("closing", 64 * CHANNELS, 10)]
    return ResidualModel((3, 32, 32), opening, DEPTH, closing, h=T / DEPTH, rng=seed)


def train(model, training, unseen, epochs, method, seed, backend):
    """Train a model by Adam.

    A row per epoch, from 0, before the first: `loss` and `accuracy` on the unseen images, by serial propagation; for
    "multigrid", before the first and after the last, the `error_<solver>` of `gradient_errors`.
    """
    trainer, rows = Trainer(model, Adam(RATE), backend=backend), []
    for epoch in range(epochs + 1):
        model.solver = METHODS[method]
        trainer.fit(training, epoch, BATCH, rng=seed, progress=False)
        model.solver = None
        loss, accuracy = trainer.evaluate(unseen, TEST_DIGITS)
        row = {"epoch": epoch, "loss": loss, "accuracy": accuracy} | {f"error_{name}": None for name in SOLVERS}
        if method == "multigrid" and epoch in (0, epochs):
            batch = training.batch(np.random.default_rng([seed, epoch]).integers(len(training), size=BATCH))
            row |= gradient_errors(model, *batch, backend)
        rows.append(row)
    return rows


def gradient_errors(model, x, y, backend):
    """Hold gradients by multigrid, at states by multigrid, against serial ones.

    For each of `SOLVERS`, as `error_<solver>`, the norm of the difference over that of the serial gradients, all
    parameters together.
    """
    serial, errors = _differentiate(model, x, y, backend), {}
    for name, solver in SOLVERS.items():
        model.solver = solver
        difference = _differentiate(model, x, y, backend) - serial
        errors[f"error_{name}"] = float(np.sqrt((difference**2).sum() / (serial**2).sum()))
    model.solver = None
    return errors


def _differentiate(model, x, y, backend):
    activations = model.forward(x, backend)
    grads = model.backward(activations, cross_entropy(activations.logits, y)[1], backend=backend)
    return np.concatenate([grad.ravel() for grad in grads.values()]).astype(np.float64)


def gaps(table):
    """Compare, after the last epoch, each run by two cycles with the serial one of the same seed.

    For each `T`: `serial` and `multigrid`, mean accuracies over seeds; `mean`, `least` and `most` of what two cycles
    gain; and `spread`, the standard deviation over seeds of the serial accuracy.
    """
    last, rows = table[table["epoch"] == table["epoch"].max()], []
    for T, part in last.groupby("T"):
        runs = part.pivot(index="seed", columns="method", values="accuracy")
        gained = runs["multigrid"] - runs["serial"]
        compared = {"serial": runs["serial"].mean(), "multigrid": runs["multigrid"].mean(), "mean": gained.mean()}
        compared |= {"least": gained.min(), "most": gained.max(), "spread": runs["serial"].std()}
        rows.append({"T": T} | compared)
    return pd.DataFrame(rows)


def alt(table):
    """Say what there is to see, how accurate runs end, and how large errors are."""
    ends = [f"{row.serial:.0%} and {row.multigrid:.0%} for T = {row.T:g}" for row in gaps(table).itertuples()]
    errors = np.log(table.set_index("T").filter(like="error_").dropna()).groupby("T").mean()
    texts = [
        f"{listed([f'{error:.1g}' for error in np.exp(errors[f'error_{name}'])])} with {name.replace('_', ' ')}"
        for name in SOLVERS
    ]
    times = listed([f"{T:g}" for T in errors.index])
    return (
        "Above, plots of accuracy on unseen digits over epochs, one for each T, by serial passes and by two cycles; in "
        f"the end it is {listed(ends)}. Below, the relative error of the gradient over T on logarithmic axes, after "
        "one, two and three cycles on the left, of two cycles from three first guesses on the right, with bars from "
        f"before training to after it. Geometric means for T = {times}: {'; '.join(texts)}."
    )


def plot(table):
    """Draw accuracy over epochs for every time, and the gradients' error over time."""
    fig = pyplot.figure(figsize=(9.6, 6.2), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=(1, 1.1))
    times, gap_of = sorted(table["T"].unique()), gaps(table).set_index("T")
    looks = {"serial": ("serial passes", COLORS["baseline"], "s"), "multigrid": ("two cycles", COLORS["matrix"], "o")}
    axes = above.subplots(1, len(times), sharey=True)
    for ax, T in zip(axes, times, strict=True):
        for i, (method, (label, color, mark)) in enumerate(looks.items()):
            rows = where(table, T=T, method=method)
            runs = rows.groupby("epoch")["accuracy"].agg(["mean", "min", "max"])
            look = {"color": color, "marker": mark, "ms": 5, "capsize": 3, "label": label}
            panels.errorbar(ax, runs.index + 0.1 * i, runs["min"], runs["mean"], runs["max"], **look)
        ax.set(title=f"T = {T:g}", xlabel="epoch", ylim=(0, 1.3), xticks=sorted(table["epoch"].unique()))
        ax.text(0.98, 0.97, _in_words(gap_of.loc[T]), transform=ax.transAxes, ha="right", va="top", size=9)
    axes[0].set(ylabel="accuracy, unseen digits", yticks=np.arange(0, 1.1, 0.2))
    axes[0].legend(loc="center right")
    left, right = below.subplots(1, 2, sharey=True)
    colors = [COLORS[role] for role in ("vector", "matrix", "identity", "linear", "truncated")]
    styles = dict(zip(SOLVERS, zip(colors, "^osvD", strict=True), strict=True))
    errors = table[table["error_two cycles"].notna()]
    cycles, guesses = list(SOLVERS)[:3], list(SOLVERS)[3:]
    for ax, title, names in (left, "cycles", cycles), (right, "first guesses", ["two cycles", *guesses]):
        for i, name in enumerate(names):
            label = "the first state on all layers" if name == "two cycles" and ax is right else name
            logs = np.log(errors[f"error_{name}"]).groupby([errors["T"], errors["epoch"]]).mean().unstack()
            low, mean, high = (np.exp(each(logs, axis=1)) for each in (np.min, np.mean, np.max))
            look = {"color": styles[name][0], "marker": styles[name][1], "ms": 5, "capsize": 3, "label": label}
            panels.errorbar(ax, 1.05**i * mean.index, low, mean, high, **look)
        panels.log_scale(ax, "x", ticks=times)
        ax.set(yscale="log", xlabel="T = N h", title=f"error of the gradient: {title}")
        ax.legend(loc="lower right")
    left.set_ylabel("relative error")
    return fig


def _in_words(gap):
    return f"in the end {points(gap['mean'])} points\n({points(gap['least'])} to {points(gap['most'])})"
