"""A model trained by two methods, one of them BPPSA, and a control: data, losses and gradients, compared and drawn."""

import time

import numpy as np

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS
from bppsa_nb.training.datasets.audio import LABELS
from bppsa_nb.training.loss import cross_entropy

LIMIT = 1e-5  # of relative differences, where only float32's rounding should be left
METHODS = {"linear": "BPTT", "blelloch": "BPPSA"}  # of recurrent networks
BATCH = 16  # of recurrent networks
GRU_RATE = 3e-4  # Section 4.2
CHANCE = 1 / len(LABELS)  # of naming an instrument


def batches(data, size, seed):
    """Return ``batch(iteration)``: `data` in batches of `size`, in another order every epoch; of a seed, or several."""
    epoch = -(-len(data) // size)

    def batch(iteration):
        order = np.random.default_rng([*np.ravel(seed).tolist(), iteration // epoch]).permutation(len(data))
        start = iteration % epoch * size
        return data.batch(order[start : start + size])

    return batch


def side_by_side(new, methods, batch, iterations, backend, watch, every=10, **controls):
    """Train a copy of a model by each of two methods, and compare them: a row per iteration.

    ``new()`` makes model and optimizer, ``batch(iteration)`` x and y. What ``watch(model)`` returns before every
    `every`-th iteration becomes `<name>_<method>`. Gradients are compared at the second method's parameters. `controls`
    are more copies, trained by what ``control(model, x, y, row)`` returns in the place of `differentiate`.
    """
    copies, (reference, compared) = {name: new() for name in (*methods, *controls)}, methods
    for method in methods:  # compiled, and memory touched, before the clock starts
        differentiate(copies[method][0], *batch(0), method, backend)
    rows = []
    for iteration in iterations:
        x, y = batch(iteration)
        row = {"iteration": iteration}
        for method in methods:
            model, optimizer = copies[method]
            if iteration % every == 0:
                row |= {f"{name}_{method}": value for name, value in watch(model).items()}
            start = time.perf_counter()
            loss, grads, backward = differentiate(model, x, y, method, backend)
            seconds = time.perf_counter() - start
            if method == compared:  # the check is not on the clock
                others = backward(reference)
                row |= {f"difference_{name}": difference(grads[name], others[name]) for name in grads}
            start = time.perf_counter()
            optimizer.step(model.params, grads)
            row |= {f"loss_{method}": loss, f"seconds_{method}": seconds + time.perf_counter() - start}
        for name, control in controls.items():
            model, optimizer = copies[name]
            row[f"loss_{name}"], grads, _ = control(model, x, y, row)
            optimizer.step(model.params, grads)
        rows.append(row)
    return rows


def differentiate(model, x, y, method, backend):
    """Compute the loss and its gradients; return a function for other methods' gradients with them."""
    activations = model.forward(x, backend=backend)
    loss, grad_logits = cross_entropy(activations.logits, y)

    def backward(method):
        return model.backward(activations, grad_logits, method=method, backend=backend)

    return loss, backward(method), backward


def difference(gradient, reference):
    """Return the largest absolute difference over the largest entry of the reference."""
    return float(np.abs(gradient - reference).max() / np.abs(reference).max())


def differences(table):
    """Add the relative differences of gradients, of losses by BPPSA from those before, and of a control's losses."""
    reference, *others = (table[name] for name in table if name.startswith("loss_"))
    compared = table.assign(gradient=table.filter(like="difference_").max(axis=1))
    for name, losses in zip(("loss", "control"), others, strict=False):
        compared[name] = (losses - reference).abs() / reference
    return compared


def worst_of_ten(table):
    """Take the largest differences of every ten iterations."""
    found = differences(table)
    return found.filter(items=["gradient", "loss", "control"]).groupby(found["iteration"] // 10 * 10).max()


def three_panels(reference):
    """Make a figure with two panels for losses, which share an axis, and one for differences from the reference."""
    fig, axes = panels.subplots(1, 3, figsize=(9.6, 3.5))
    axes[1].sharey(axes[0])
    axes[1].tick_params(labelleft=False)
    axes[0].ticklabel_format(axis="y", useOffset=False)
    axes[2].set(title=f"BPPSA against {reference}", ylabel="relative difference, worst of 10")
    for ax in axes:
        ax.set(xlabel="iteration", ymargin=0.2)  # for the legend
    return fig, axes


def draw_curves(ax, rows, quantity, methods, over_seconds=False):
    """Draw a quantity by both methods over iterations, a line and dots for BPPSA, or over seconds, two lines."""
    for method, label in methods.items():
        values, seconds = rows[f"{quantity}_{method}"].dropna(), rows[f"seconds_{method}"]
        style = {"color": COLORS.get(method, COLORS["baseline"]), "lw": 2, "label": label}
        if method == "blelloch":  # few enough for the line to be seen
            style |= {"marker": "o", "ms": 3.5, "markevery": 0.03, "ls": "-" if over_seconds else ""}
        ax.plot((seconds.cumsum() - seconds if over_seconds else rows["iteration"])[values.index], values, **style)


def draw_differences(ax, lines):
    """Draw differences over iterations, {label: (values, color, line style)}, and their limit, logarithmically."""
    for label, (values, color, style) in lines.items():
        ax.plot(values.index, values, style, color=color, lw=1.4, label=label)
    ax.axhline(LIMIT, color="black", lw=1.1, ls="--")
    ax.text(0, 1.2 * LIMIT, "limit", va="bottom", size=9)
    ax.set_yscale("log")


def draw_sets(table, titles, labels, draw):
    """Draw a row of four panels, the third of accuracy, for each set of features, by ``draw(axes, rows)``."""
    sets = list(table.groupby("features", sort=False))
    fig, axes = panels.subplots(len(sets), 4, figsize=(10, 1 + 2 * len(sets)), squeeze=False)
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
