"""Two copies of a model trained side by side, one by BPPSA: their losses, and how far their gradients are apart."""

import time

import numpy as np

from bppsa_nb.papers.figures import COLORS
from bppsa_nb.training.datasets.audio import LABELS
from bppsa_nb.training.loss import cross_entropy

LIMIT = 1e-5  # of relative differences, where only float32's rounding should be left
METHODS = {"linear": "BPTT", "blelloch": "BPPSA"}  # of recurrent networks
BATCH = 16  # of recurrent networks
GRU_RATE = 3e-4  # Section 4.2
CHANCE = 1 / len(LABELS)  # of naming an instrument


def batches(data, size, seed):
    """Return ``batch(iteration)``: `data` in batches of `size`, in another order every epoch."""
    epoch = -(-len(data) // size)

    def batch(iteration):
        order = np.random.default_rng([seed, iteration // epoch]).permutation(len(data))
        start = iteration % epoch * size
        return data.batch(order[start : start + size])

    return batch


def side_by_side(copies, batch, iterations, backend, watch, every=10):
    """Train two copies of a model side by side, one by each method, and compare them: a row per iteration.

    Parameters
    ----------
    copies : dict of str to (model, optimizer)
        For each of two methods, both with the same parameters; the first is the one that the other is held against.
    batch : callable
        ``batch(iteration) -> (x, y)``, for `iterations` from 0 on.
    watch : callable
        ``watch(model) -> dict of numbers``, to be noted before every `every`-th iteration as `<name>_<method>`.

    Returns
    -------
    list of dict
        `loss_<method>` of the batch; `seconds_<method>` for forward pass, loss, backward pass and update; what `watch`
        returned; and for every parameter `difference_<name>`, the largest difference between the two methods' gradients
        at the second one's parameters, relative to the first one's.
    """
    reference, compared = copies
    for method, (model, _) in copies.items():  # compiled, and memory touched, before the clock starts
        _differentiate(model, *batch(0), method, backend)
    rows = []
    for iteration in iterations:
        x, y = batch(iteration)
        row = {"iteration": iteration}
        for method, (model, optimizer) in copies.items():
            if iteration % every == 0:
                row |= {f"{name}_{method}": value for name, value in watch(model).items()}
            start = time.perf_counter()
            loss, grads, backward = _differentiate(model, x, y, method, backend)
            seconds = time.perf_counter() - start
            if method == compared:  # the check is not on the clock
                others = backward(reference)
                row |= {f"difference_{name}": difference(grads[name], others[name]) for name in grads}
            start = time.perf_counter()
            optimizer.step(model.params, grads)
            row |= {f"loss_{method}": loss, f"seconds_{method}": seconds + time.perf_counter() - start}
        rows.append(row)
    return rows


def _differentiate(model, x, y, method, backend):
    """Compute the loss and its gradients; return a function for other methods' gradients with them."""
    activations = model.forward(x, backend=backend)
    loss, grad_logits = cross_entropy(activations.logits, y)

    def backward(method):
        return model.backward(activations, grad_logits, method=method, backend=backend)

    return loss, backward(method), backward


def difference(gradient, reference):
    """Return the largest absolute difference over the largest entry of the reference."""
    return float(np.abs(gradient - reference).max() / np.abs(reference).max())


def differences(table, reference="linear"):
    """Compare "blelloch" with another method at every iteration, given rows of `side_by_side` and their backend.

    `gradient` is the largest relative difference over all parameters, `loss` that of the two runs' batch losses.
    """
    gradient = table.filter(like="difference_").max(axis=1)
    loss = (table["loss_blelloch"] - table[f"loss_{reference}"]).abs() / table[f"loss_{reference}"]
    return table[["backend", "iteration"]].assign(gradient=gradient, loss=loss)


def look(method):
    """Return how the loss by a method is drawn: a line for the one that "blelloch" is held against, dots for that."""
    if method == "blelloch":  # few enough for the line to be seen
        return {"color": COLORS[method], "marker": "o", "ms": 3.5, "markevery": 0.03, "ls": ""}
    return {"color": COLORS[method], "lw": 2}


def share_losses(left, right):
    """Give two panels of losses one axis, with room for their legends."""
    limits = np.array([left.get_ylim(), right.get_ylim()])
    low, high = limits[:, 0].min(), limits[:, 1].max()
    for ax in (left, right):
        ax.set_ylim(low, high + 0.2 * (high - low))
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.locator_params(axis="y", nbins=5)
        ax.legend(loc="upper right")
    right.tick_params(labelleft=False)  # as on the left


def draw_limit(ax):
    """Draw the limit of differences, whose axis becomes logarithmic."""
    ax.axhline(LIMIT, color="black", lw=1.1, ls="--")
    ax.text(0, 1.2 * LIMIT, "limit", va="bottom", size=9)
    ax.set_yscale("log")
