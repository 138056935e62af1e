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
from bppsa_nb.papers.progress import grid
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import points
from bppsa_nb.schedule.cycles import record
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

# At the paper's scale, MNIST's images (their stand-in if they were not fetched) and convolutions.
TIMES = {1: 2, 4: 5, 16: 5, 64: 5}  # T = N h, and from how many seeds
EPOCHS = {"quick": 5, "paper": 3}
IMAGES = {"train": 6000, "test": 1500}  # at the paper's scale
DEPTH, CHANNELS = 64, 8
BATCH, RATE = 64, 1e-2
ADAPTIVE = {"error": 0.1}
METHODS = {"serial": None, "multigrid": {"cycles": 2}, "adaptive": ADAPTIVE}
# Whose gradients are held against serial ones, on the way of training by "multigrid".
SOLVERS = {
    "one cycle": {"cycles": 1},
    "two cycles": {"cycles": 2},
    "three cycles": {"cycles": 3},
    "as many as it takes": ADAPTIVE,
    "skip_downcycle": {"cycles": 2, "skip_downcycle": True},
    "nested_iteration": {"cycles": 2, "nested_iteration": True},
}


def measure(scale, rng, progress):
    """Train by both methods for every time and seed: a row per epoch, the beginning included."""
    training, unseen = (images(split, scale) for split in ("train", "test"))
    backend = backends.resolve("auto")
    seeds = np.random.default_rng(rng).integers(2**31, size=max(TIMES.values())).tolist()
    runs = [grid(T=[T], seed=seeds[:count], method=METHODS, backend=[backend]) for T, count in TIMES.items()]

    def measure_point(point, _):
        model = new(training, point["T"], point["seed"])
        return train(model, training, unseen, EPOCHS[scale], point["method"], point["seed"], backend)

    table = progress.collect(sum(runs, []), measure_point, rng)
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
    "multigrid", before the first and after the last, the `error_<solver>` of `gradient_errors`; for "adaptive", how
    many cycles a batch takes, `forward` and `backward`.
    """
    trainer, rows = Trainer(model, Adam(RATE), backend=backend), []
    for epoch in range(epochs + 1):
        model.solver = METHODS[method]
        trainer.fit(training, epoch, BATCH, rng=seed, progress=False)
        model.solver = None
        loss, accuracy = trainer.evaluate(unseen, TEST_DIGITS)
        row = {"epoch": epoch, "loss": loss, "accuracy": accuracy, "forward": None, "backward": None}
        row |= {f"error_{name}": None for name in SOLVERS}
        batch = training.batch(np.random.default_rng([seed, epoch]).integers(len(training), size=BATCH))
        if method == "multigrid" and epoch in (0, epochs):
            row |= gradient_errors(model, *batch, backend)
        if method == "adaptive":
            model.solver = ADAPTIVE
            _differentiate(model, *batch, backend)
            row |= model.cycles
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


def gaps(table, method="multigrid"):
    """Compare, after the last epoch, each run by two cycles, or as many as it takes, with the serial one of its seed.

    For each `T`: `serial` and `parallel`, mean accuracies over seeds; `mean`, `least` and `most` of what the method
    gains; and `spread`, the standard deviation over seeds of the serial accuracy.
    """
    last, rows = table[table["epoch"] == table["epoch"].max()], []
    for T, part in last.groupby("T"):
        runs = part.pivot(index="seed", columns="method", values="accuracy")
        gained = runs[method] - runs["serial"]
        compared = {"serial": runs["serial"].mean(), "parallel": runs[method].mean(), "mean": gained.mean()}
        compared |= {"least": gained.min(), "most": gained.max(), "spread": runs["serial"].std()}
        rows.append({"T": T} | compared)
    return pd.DataFrame(rows)


def counts(table):
    """Return how many cycles adaptive runs took, the mean of forward and backward and of seeds, by T and epoch."""
    rows = where(table, method="adaptive")
    return rows[["forward", "backward"]].mean(axis=1).groupby([rows["T"], rows["epoch"]]).mean().unstack()


def values(table):
    """Return what words need beside the table: how runs end, and cycles at first and last."""
    taken = counts(table)
    return {
        "ends": gaps(table).assign(adaptive=gaps(table, "adaptive")["parallel"]),
        "taken": pd.DataFrame({"first": taken.iloc[:, 0], "last": taken.iloc[:, -1]}).reset_index(),
    }


def plot(table):
    """Draw accuracy over epochs for every time, and the gradients' error over time."""
    fig = pyplot.figure(figsize=(10.6, 6.4), layout="constrained")
    above, below = fig.subfigures(2, 1, height_ratios=(1, 1.1))
    times = sorted(table["T"].unique())
    styles = {
        "serial": ("serial passes", COLORS["linear"], "s"),
        "multigrid": ("two cycles", COLORS["multigrid"], "o"),
        "adaptive": ("as many as it takes", COLORS["truncated"], "D"),
    }
    axes = above.subplots(1, len(times), sharey=True)
    for ax, T in zip(axes, times, strict=True):
        for i, (method, (label, color, mark)) in enumerate(styles.items()):
            rows = where(table, T=T, method=method)
            runs = rows.groupby("epoch")["accuracy"].agg(["mean", "min", "max"])
            style = {"color": color, "marker": mark, "ms": 5, "capsize": 3, "label": label}
            panels.errorbar(ax, runs.index + 0.1 * i, runs["min"], runs["mean"], runs["max"], **style)
        ax.set(title=f"T = {T:g}", xlabel="epoch", ylim=(0, 1.45), xticks=sorted(table["epoch"].unique()))
        for place, method in (0.97, "multigrid"), (0.86, "adaptive"):
            words = _in_words(where(gaps(table, method), T=T).iloc[0])
            ax.text(0.98, place, words, transform=ax.transAxes, ha="right", va="top", size=9, color=styles[method][1])
    axes[0].set(ylabel="accuracy, unseen digits", yticks=np.arange(0, 1.1, 0.2))
    axes[0].legend(loc="lower right")
    left, middle, right = below.subplots(1, 3)
    middle.sharey(left)
    colors = [COLORS[role] for role in ("vector", "multigrid", "matrix", "truncated", "baseline", "chunked")]
    solvers = dict(zip(SOLVERS, zip(colors, "^osDvP", strict=True), strict=True))
    errors = table[table["error_two cycles"].notna()]
    cycles, guesses = list(SOLVERS)[:4], list(SOLVERS)[4:]
    for ax, title, names in (left, "cycles", cycles), (middle, "first guesses", ["two cycles", *guesses]):
        for i, name in enumerate(names):
            label = "first state on all layers" if name == "two cycles" and ax is middle else name
            logs = np.log(errors[f"error_{name}"]).groupby([errors["T"], errors["epoch"]]).mean().unstack()
            low, mean, high = (np.exp(each(logs, axis=1)) for each in (np.min, np.mean, np.max))
            style = {"color": solvers[name][0], "marker": solvers[name][1], "ms": 5, "capsize": 3, "label": label}
            panels.errorbar(ax, 1.05**i * mean.index, low, mean, high, **style)
        panels.log_scale(ax, "x", ticks=times)
        ax.set(yscale="log", xlabel="T = N h", title=f"gradient: {title}")
        ax.legend(loc="lower right", fontsize=8)
    left.set_ylabel("relative error")
    taken = counts(table)
    for mark, (T, row) in zip("osD^", taken.iterrows(), strict=False):
        right.plot(row.index, row, marker=mark, ms=5, color=styles["adaptive"][1], alpha=0.4 + 0.6 * times.index(T) / 3)
        end = row.index[-1], row.iloc[-1]
        right.annotate(f"T = {T:g}", end, (6, 0), textcoords="offset points", size=9, va="center")
    right.plot(taken.columns, [2] * taken.shape[1], color=styles["multigrid"][1], lw=1.1, ls="--")
    right.set(title="cycles, as many as it takes", xlabel="epoch", xticks=taken.columns, ylim=(0, 9))
    right.set_xlim(right=1.3 * taken.columns[-1])
    right.secondary_yaxis("right", functions=_steps_of_cycles()).set(ylabel="steps in a row")
    return fig


def _steps_of_cycles():
    """Return the layer steps in a row of a training step as a function of cycles, which is linear, and its inverse."""
    first, second = (record(DEPTH, cycles=count).span() for count in (1, 2))
    none, each = 2 * first - second, second - first
    return lambda cycles: none + each * cycles, lambda steps: (steps - none) / each


def _in_words(gap):
    return f"{points(gap['mean'])} ({points(gap['least'])} to {points(gap['most'])})"
