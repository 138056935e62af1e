"""The four variants of the GRU: their relative time over hidden size, and what they compute at every step."""

import time
from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.graphs import variants
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.phrases import listed, span
from bppsa_nb.papers.timing import repeat

TITLE = "Four variants of the GRU: relative time, and what a step takes"
CAPTION = (
    "Above: time of a forward and a backward pass (float32, NumPy with as many BLAS threads as it chooses, input size "
    "= hidden size), divided by the original's in the same round; medians over rounds in which all took turns, bars "
    "from quartile to quartile. Below: counted while running, per time step, both passes together; products outside "
    "the time loop are left out. The third variant has fewer products, and computes one of them twice."
)
SIZES = {"quick": (128, 256, 512, 1024, 2048), "paper": (128, 256, 512, 768, 1024, 1536, 2048)}
STEPS = {"quick": 4, "paper": 32}
SECONDS = {"quick": 0.25, "paper": 20.0}  # for one point
BATCH = 128
COUNTED = {
    "products": "products",
    "serial": "in series",
    "launches": "launches",
    "multiply_adds": "multiply-adds/BH²",
    "kept": "numbers kept/BH",
}
_COLORS = {"original": "baseline", "concatenated": "vector", "moved": "identity", "saved": "matrix"}


def measure(scale, rng, progress):
    """Time and count all four: one row per hidden size and variant."""
    points = [{"T": STEPS[scale], "B": BATCH, "H": H} for H in SIZES[scale]]
    timed = progress.collect(points, partial(time_point, names=variants.NAMES, seconds=SECONDS[scale]), rng)
    counted = [{"variant": name} | count_step(name) for name in variants.NAMES]
    table = timed.merge(pd.DataFrame(counted), on="variant")
    table.attrs = {"backend": "numpy"}
    return table


def time_point(point, rng, names, seconds):
    """Time forward and backward passes of several variants, taking turns.

    Parameters
    ----------
    point : dict
        `T`, `B` and `H`; the input size is H, too.
    rng : np.random.Generator
    names : iterable of str
        Variants; the first is what the others are compared with.
    seconds : float
        As for `timing.repeat`.

    Returns
    -------
    list of dict
        A row per variant: `forward` and `backward`, medians in seconds; `seconds`, the median of both together, with
        quartiles `seconds_low` and `seconds_high`; `relative`, the median over rounds of its time divided by the
        first variant's, with quartiles `relative_low` and `relative_high`; and how many `rounds` there were.
    """
    T, B, H = point["T"], point["B"], point["H"]
    params = variants.parameters(H, H, rng)
    x, grad_hidden = (rng.standard_normal((T, B, H), dtype=np.float32) for _ in range(2))
    h0 = np.zeros((B, H), np.float32)

    def one_round():
        times = []
        for name in names:
            start = time.perf_counter()
            activations = variants.forward(name, params, x, h0)
            middle = time.perf_counter()
            variants.backward(params, x, activations, grad_hidden)
            times += [middle - start, time.perf_counter() - middle]
        return times

    keep_freed_memory()
    rounds = repeat(one_round, seconds).reshape(-1, len(names), 2)
    both = np.sum(rounds, axis=2)
    rows = []
    for i, name in enumerate(names):
        forward, backward = np.median(rounds, axis=0)[i]
        row = {"variant": name, "forward": forward, "backward": backward}
        for quantity, values in (("seconds", both[:, i]), ("relative", both[:, i] / both[:, 0])):
            low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
            row |= {quantity: middle, f"{quantity}_low": low, f"{quantity}_high": high}
        rows.append(row | {"rounds": len(rounds)})
    return rows


def count_step(variant):
    """Count what one more time step takes, in both passes together.

    Parameters
    ----------
    variant : str
        One of `variants.NAMES`.

    Returns
    -------
    dict
        `products`, `serial`, `launches`; `multiply_adds` in units of B H², `kept` in units of B H.
    """
    B, H = 2, 8
    one, two = (variants.count(variant, T, B, H, H) for T in (1, 2))
    step = {name: two[name] - one[name] for name in ("products", "serial", "launches", "multiply_adds", "kept")}
    return step | {"multiply_adds": step["multiply_adds"] / (B * H**2), "kept": step["kept"] / (B * H)}


def alt(table):
    """Say what there is to see, and the relative time of every variant."""
    told = [
        f"the {name} {span(table[table['variant'] == variant]['relative'], '{:.2f}')}"
        for variant, name in zip(list(variants.NAMES)[1:], ("second", "third", "fourth"), strict=True)
    ]
    return (
        "Above, relative time over hidden sizes from 128 to 2048 for four variants of the GRU at a mini-batch of 128, "
        f"the original at 1: {listed(told)}. Below, bars for every variant: products 9, 4, 3 and 2; products in series "
        "4, 4, 2 and 2; launches 44, 30, 30 and 31; multiply-adds 18, 18, 19 and 18 times B H squared; numbers kept 4, "
        "4, 4 and 5 times B H."
    )


def plot(table):
    """Draw relative times over hidden size, and the counts as bars."""
    from matplotlib import pyplot

    fig = pyplot.figure(figsize=(9, 5.6), layout="constrained")
    upper, lower = fig.subfigures(2, 1, height_ratios=(3, 1.5))
    ax = upper.subplots()
    names = list(variants.NAMES)
    for i, name in enumerate(names):
        rows = table[table["variant"] == name]
        H = rows["H"] * 2 ** (0.03 * (i - 1.5))  # side by side, not on top of each other
        spread = [rows["relative"] - rows["relative_low"], rows["relative_high"] - rows["relative"]]
        label = f"{i + 1} {variants.NAMES[name]}"
        ax.errorbar(H, rows["relative"], spread, fmt="o-", ms=5, color=COLORS[_COLORS[name]], label=label)
    ax.set_xscale("log", base=2)
    sizes = sorted(table["H"].unique())
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set(ylim=(0, 1.1 * table["relative_high"].max()), xlabel="hidden size, H", ylabel="time / original's")
    ax.set_title(f"Relative time of {table['T'].iloc[0]} steps, mini-batch {table['B'].iloc[0]}")
    ax.legend(loc="lower left", ncols=2)
    axes = lower.subplots(1, len(COUNTED), sharey=True)
    step = table.drop_duplicates("variant").set_index("variant").loc[names[::-1]]
    for ax, (quantity, title) in zip(axes, COUNTED.items(), strict=True):
        labels = [f"{variants.NAMES[name]} {names.index(name) + 1}" for name in step.index]
        bars = ax.barh(labels, step[quantity], color=[COLORS[_COLORS[name]] for name in step.index], height=0.7)
        ax.bar_label(bars, fmt="{:g}", padding=3, fontsize=9)
        ax.set_title(title, fontsize=9)
        ax.margins(x=0.25)
        ax.tick_params(axis="x", labelbottom=False)
        ax.grid(False)
    return fig
