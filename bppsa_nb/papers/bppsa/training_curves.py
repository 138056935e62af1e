"""A model trained side by side by two methods, one of them BPPSA, and a control: losses and gradients compared."""

import time

import numpy as np
from matplotlib import pyplot

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


def side_by_side(new, methods, batch, iterations, backend, watch, every=10):
    """Train a copy of a model by each of two methods, and compare them: a row per iteration.

    ``new()`` makes model and optimizer, ``batch(iteration)`` x and y. What ``watch(model)`` returns before every
    `every`-th iteration becomes `<name>_<method>`. `difference_<name>` is the largest difference of a parameter's
    gradients, both at the second method's parameters, relative to the first's; the clock runs for forward pass, loss,
    backward pass and update.
    """
    copies, (reference, compared) = {method: new() for method in methods}, methods
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


def control(new, method, batch, rows, backend, perturb=lambda row, grads: None):
    """Train one more copy by one method, on perturbed batches or by gradients that `perturb` changes: its losses."""
    (model, optimizer), losses = new(), []
    for row in rows:
        loss, grads, _ = _differentiate(model, *batch(row["iteration"]), method, backend)
        perturb(row, grads)
        optimizer.step(model.params, grads)
        losses.append(loss)
    return losses


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


def differences(table, reference="linear", control=None):
    """Add to rows of `side_by_side` the relative differences of gradients, losses and a control's losses."""
    losses, table = table[f"loss_{reference}"], table.assign(gradient=table.filter(like="difference_").max(axis=1))
    for name, method in [("loss", "blelloch"), *([("control", control)] if control else [])]:
        table[name] = (table[f"loss_{method}"] - losses).abs() / losses
    return table


def worst_of_ten(compared):
    """Take the largest differences of every ten iterations."""
    found = compared.filter(items=["gradient", "loss", "control"])
    return found.groupby(compared["iteration"] // 10 * 10).max()


def draw_curves(ax, rows, quantity, labels, over_seconds=False):
    """Draw a quantity by both methods over iterations, a line and dots for BPPSA, or over seconds, two lines."""
    for method, label in labels.items():
        values, seconds = rows[f"{quantity}_{method}"].dropna(), rows[f"seconds_{method}"]
        style = {"color": COLORS.get(method, COLORS["baseline"]), "lw": 2, "label": label}
        if method == "blelloch":  # few enough for the line to be seen
            style |= {"marker": "o", "ms": 3.5, "markevery": 0.03, "ls": "-" if over_seconds else ""}
        x = (seconds.cumsum() - seconds if over_seconds else rows["iteration"])[values.index]
        if ax.get_xscale() == "log":
            x, values = x.iloc[1:], values.iloc[1:]
        ax.plot(x, values, **style)


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


def draw_differences(ax, worst, control, color):
    """Draw differences over iterations, by `worst_of_ten`'s columns; the `control` is called so, and has the color."""
    styles = {"gradient": ("gradients", "black", "-"), "loss": ("losses", COLORS["blelloch"], "-")}
    for name, (label, shade, line) in (styles | {"control": (f"losses, {control}", color, ":")}).items():
        ax.plot(worst.index, worst[name], lw=1.6, label=label, color=shade, ls=line)
    draw_limit(ax)


def draw_limit(ax):
    """Draw the limit of differences, whose axis becomes logarithmic."""
    ax.axhline(LIMIT, color="black", lw=1.1, ls="--")
    ax.text(0, 1.2 * LIMIT, "limit", va="bottom", size=9)
    ax.set_yscale("log")


def draw_sets(table, titles, labels, draw):
    """Draw a row of four panels, the third of accuracy, for each set of features, by ``draw(axes, rows)``."""
    sets = list(table.groupby("features", sort=False))
    shape = {"figsize": (11, 1 + 2.3 * len(sets)), "layout": "constrained", "squeeze": False}
    fig, axes = pyplot.subplots(len(sets), 4, **shape)
    for row, (features, rows) in zip(axes, sets, strict=True):
        draw(row, rows)
        row[0].set_ylabel(f"{features}: T = {rows['T'].iloc[0]}", weight="bold")
        end = row[2].lines[0].get_xdata()[-1]
        row[2].axhline(CHANCE, color="black", lw=1.1, ls="--")
        row[2].text(end, CHANCE, "guessing", ha="right", va="bottom", size=8)
        row[2].set_ylim(0)
        for ax in row:
            ax.locator_params(axis="x", nbins=5)
    for above, below, title, label in zip(axes[0], axes[-1], titles, labels, strict=True):
        above.set_title(title)
        below.set_xlabel(label)
    for ax, place in ((axes[0, 0], "outside upper left"), (axes[0, 3], "outside upper right")):
        fig.legend(*ax.get_legend_handles_labels(), loc=place, ncols=3)
    return fig
