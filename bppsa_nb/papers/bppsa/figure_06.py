"""Figure 6: LeNet-5 trained by BP and by BPPSA."""

import numpy as np

import bppsa_nb as bp
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves as curves
from bppsa_nb.papers.experiment import COLORS, Claim, Figure
from bppsa_nb.papers.images import fetched
from bppsa_nb.sparse import LeNet5, Network
from bppsa_nb.training.loss import cross_entropy

METHODS = {"ordinary": "BP", "blelloch": "BPPSA"}
ITERATIONS, EPOCHS = 100, 5  # at quick scale, and at the paper's
BATCHES = {"quick": 8, "paper": 256}
RATES = {"quick": 3e-4, "paper": 1e-3}
SAMPLE = 500  # images that losses are of


def measure(scale, rng, progress):
    """Train on the stand-in (paper scale: CIFAR-10, if it was fetched): one row per iteration."""
    training, held_out = (
        fetched("cifar10", split) if scale == "paper" else bp.Images(split=split) for split in ("train", "test")
    )
    seed = int(rng.integers(2**31))
    length = ITERATIONS if scale == "quick" else EPOCHS * -(-len(training) // BATCHES[scale])

    def train_on(point, _):
        iterations = progress.bar(range(length + 1), "training")  # the last row shows what came of the others
        return train(training, held_out, point["B"], point["rate"], seed, iterations, point["backend"])

    point = {"backend": backends.resolve("auto"), "B": BATCHES[scale], "rate": RATES[scale], "images": training.source}
    table = progress.collect([point], train_on, rng)
    table.attrs["data"] = training.data
    return table


def train(training, held_out, size, rate, seed, iterations, backend):
    """Train LeNet-5 by both methods, and by BP with perturbed gradients: rows of `training_curves.side_by_side`."""
    batch, rng = curves.batches(training, size, seed), np.random.default_rng(seed)
    fixed = {"training_loss": training, "test_loss": held_out}
    fixed = {name: data.batch(np.arange(min(SAMPLE, len(data)))) for name, data in fixed.items()}

    def watch(model):
        return {name: cross_entropy(model.forward(x, backend=backend).logits, y)[0] for name, (x, y) in fixed.items()}

    def new():
        return Network((3, 32, 32), LeNet5().operators, init="he", rng=seed), bp.SGD(rate, momentum=0.9)

    def disturbed(model, x, y, row):
        """Perturb BP's gradients at random by as much as BPPSA's differ."""
        loss, grads, _ = curves.differentiate(model, x, y, "ordinary", backend)
        return loss, {name: perturbed(grad, row[f"difference_{name}"], rng) for name, grad in grads.items()}, None

    return curves.side_by_side(new, METHODS, batch, iterations, backend, watch, disturbed=disturbed)


def perturbed(gradient, difference, rng):
    """Change a gradient at random by as much as a share of its largest entry."""
    most = difference * np.abs(gradient).max()
    return gradient + rng.uniform(-most, most, gradient.shape).astype(gradient.dtype)


def facts(table):
    """Compare gradients, losses and times."""
    compared = curves.differences(table)
    return compared[["gradient", "loss", "control", "B", "rate"]].max().to_dict() | {
        # In thousands of iterations, rounding decides, as it does between two runs of BP.
        "early": compared.loc[table["B"] == BATCHES["quick"], "loss"].max(),
        "iterations": table["iteration"].nunique(),
        "slower": table["seconds_blelloch"].median() / table["seconds_ordinary"].median(),
    }


def plot(table):
    fig, (left, middle, right) = curves.three_panels("BP")
    curves.draw_curves(left, table, "training_loss", METHODS)
    curves.draw_curves(middle, table, "test_loss", METHODS)
    left.set(title="Training loss", ylabel=f"loss, {table['images'].iloc[0]}, B = {table['B'].iloc[0]}")
    middle.set(title="Test loss")
    worst = curves.worst_of_ten(table[:-1])  # the last iteration only shows what came of the others
    lines = {"gradients": (worst["gradient"], "black", "-"), "losses": (worst["loss"], COLORS["blelloch"], "-")}
    lines["losses, BP perturbed"] = worst["control"], COLORS["baseline"], ":"
    curves.draw_differences(right, lines)
    right.set_ylim(top=max(1e-2, 100 * worst.max(axis=None)))
    left.legend(loc="upper right")
    right.legend(loc="upper right")
    return fig


FIGURE = Figure(
    origin="timed",
    caption="""BPPSA's gradients differ from BP's by at most {gradient:.1e}. An iteration by BPPSA takes {slower:.2g}
    times as long: it multiplies Jacobians that BP only applies. Losses are of 500 images each. Gradients are compared
    at the same parameters, max |difference| / max |BP's gradient|. The control is BP with gradients perturbed at random
    by as much. Where rounding turns a ReLU on or off, losses part, whatever the method. SGD with momentum 0.9, learning
    rate {rate:g}, mini-batches of {B:.0f} (the paper's: 1e-3, 256).""",
    alt="""Plots of LeNet-5 learning to classify images. Training and test loss over iterations: BPPSA's dots lie along
    BP's lines. Differences on a logarithmic axis, with a line at 1e-5: losses of both runs are at most {loss:.1e}
    apart, the control's {control:.1e}.""",
    claims=[
        Claim("§3.5, Figure 6", "LeNet-5: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)",
              "{gradient:.1e} at most, in {iterations} iterations of batches of {B:.0f}",
              lambda f: f["gradient"] <= curves.LIMIT, "rounding"),
        Claim("§3.5, Figure 6", "LeNet-5: per iteration, the loss curves of BPPSA and BP overlap.",
              "curves coincide (here: to 1e-5)",
              "{early:.1e} at most, in {iterations} iterations of batches of {B:.0f}",
              lambda f: f["early"] <= curves.LIMIT, "rounding"),
    ],
)
