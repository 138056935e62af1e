"""Figure 6: LeNet-5 trained on images by back-propagation and by BPPSA from the same seed."""

from functools import partial

import numpy as np
from matplotlib import pyplot

from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves
from bppsa_nb.papers.bppsa.training_curves import LIMIT  # noqa: F401 - for words
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.images import fetched
from bppsa_nb.sparse import LeNet5, Network
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import SGD

METHODS = {"ordinary": "BP", "blelloch": "BPPSA"}
ITERATIONS, EPOCHS = 100, 5  # at quick scale, and at the paper's
BATCHES = {"quick": 8, "paper": 256}
RATES, MOMENTUM = {"quick": 3e-4, "paper": 1e-3}, 0.9
SAMPLE = 500  # images that losses are of
SPLITS = ("train", "test")


def measure(scale, rng, progress):
    """Train on the stand-in (paper scale: CIFAR-10, if it was fetched): one row per iteration."""
    training, held_out = (fetched("cifar10", split) if scale == "paper" else Images(split=split) for split in SPLITS)
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
    batch, rng = training_curves.batches(training, size, seed), np.random.default_rng(seed)
    fixed = {"training_loss": training, "test_loss": held_out}
    fixed = {name: data.batch(np.arange(min(SAMPLE, len(data)))) for name, data in fixed.items()}

    def watch(model):
        return {name: cross_entropy(model.forward(x, backend=backend).logits, y)[0] for name, (x, y) in fixed.items()}

    def new():
        return Network((3, 32, 32), LeNet5().operators, init="he", rng=seed), SGD(rate, MOMENTUM)

    rows = training_curves.side_by_side(new, METHODS, batch, iterations, backend, watch)
    losses = training_curves.control(new, "ordinary", batch, rows, backend, partial(perturb, rng))
    return [row | {"loss_disturbed": loss} for row, loss in zip(rows, losses, strict=True)]


def perturb(rng, row, grads):
    """Perturb gradients at random by as much as a row says that BPPSA's differ."""
    for name, grad in grads.items():
        most = row[f"difference_{name}"] * np.abs(grad).max()
        grad += rng.uniform(-most, most, grad.shape).astype(grad.dtype)


differences = partial(training_curves.differences, reference="ordinary", control="disturbed")


def values(table):
    """Work out what the words say."""
    drawn = table[table["test_loss_ordinary"].notna()]
    slower = table["seconds_blelloch"].median() / table["seconds_ordinary"].median()
    return {"drawn": drawn, "slower": slower}


def plot(table):
    """Draw training loss, test loss, and how far gradients and losses differ."""
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(9.6, 3.5), layout="constrained")
    labels = {}
    for method, name in METHODS.items():
        milliseconds = 1e3 * table[f"seconds_{method}"].median()
        labels[method] = f"{name}: {milliseconds:{'.2g' if milliseconds < 100 else '.0f'}} ms each"
    training_curves.draw_curves(left, table, "training_loss", labels)
    training_curves.draw_curves(middle, table, "test_loss", METHODS)
    left.set(title="Training loss", ylabel=f"loss, {table['images'].iloc[0]}, B = {table['B'].iloc[0]}")
    middle.set(title="Test loss")
    training_curves.share_losses(left, middle)
    both = differences(table)  # the last iteration only shows what came of the others
    worst = training_curves.worst_of_ten(both[both["iteration"] < both["iteration"].max()])
    training_curves.draw_differences(right, worst, "BP perturbed", COLORS["baseline"])
    right.set(title="BPPSA against BP", ylabel="relative difference, worst of 10")
    right.set(ylim=(None, max(2e-3, 100 * worst.max(axis=None))))
    right.legend(loc="upper right")
    for ax in (left, middle, right):
        ax.set_xlabel("iteration")
    return fig
