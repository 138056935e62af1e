"""Where which method wins."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle

import bppsa_nb as bp
from bppsa_nb.machine import backends
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import iterations
from bppsa_nb.papers.experiment import COLORS, Figure, grid, where
from bppsa_nb.papers.timing import take_turns

GRID = {  # T, B, H
    "quick": ((10, 200, 4000), (1, 8, 64), (20, 64)),
    "paper": ((10, 30, 100, 300, 1000, 3000, 10000, 30000), (1, 4, 16, 64, 256), (20, 32, 64)),
}
SECONDS = {"quick": 0.05, "paper": 1.0}  # for one point
STORED = {"quick": 2**25, "paper": 2**29}  # bytes of Jacobians beyond which levels do not compete
CLEAR = 1.1  # a lead
LABELS = {"linear": "the loop (linear)", "chunked": "chunks", "blelloch": "levels (Blelloch)"}
METHODS = tuple(LABELS)


def measure(scale, rng, progress):
    """Time all methods on all backends: one row per backend, T, B, H and method."""
    lengths, batches, sizes = GRID[scale]
    chosen = dict.fromkeys(["numpy", "cpu", backends.resolve("auto")])
    points = grid(backend=chosen, H=sizes, T=lengths, B=batches)
    return progress.collect(points, partial(time_methods, seconds=SECONDS[scale], stored=STORED[scale]), rng)


def time_methods(point, rng, seconds, stored):
    """Time the methods on one chain, in turns: a row per method, and whether it is `taken` by ``"auto"``."""
    backend, H, T, B = point["backend"], point["H"], point["T"], point["B"]
    chain, grad_output = iterations.rnn_chain(T, B, H, rng), rng.standard_normal((B, H), np.float32)
    calls = {
        method: partial(bp.backprop, chain, grad_output, method=method, backend=backend)
        for method in METHODS[: 3 if 4 * T * B * H * H <= stored else 2]
    }
    # The loop and chunks may be a hundred times as quick as levels, and have many more rounds of their own.
    times = dict(zip(METHODS, take_turns(list(calls.values())[:2], seconds, rounds=(3, 100)).T, strict=False))
    if "blelloch" in calls:
        times["blelloch"] = take_turns(list(calls.values()), seconds / 2, rounds=(2, 10))[:, 2]
    taken = bp.explain(T, B, H, backend=backend, weights=1).method
    return [
        {"method": method, "seconds": np.median(rounds), "rounds": len(rounds), "taken": method == taken}
        for method, rounds in times.items()
    ]


def winners(table):
    """Find every point's `winner`, its `lead` over the runner-up, and by how much "auto" is slower, its `regret`."""
    keys = ["backend", "H", "T", "B"]
    ranked = table.sort_values("seconds").groupby(keys)
    won = ranked[["method", "seconds"]].first()
    won["lead"] = ranked.nth(1).set_index(keys)["seconds"] / won["seconds"]
    won["regret"] = table[table["taken"]].set_index(keys)["seconds"] / won["seconds"]
    # Nothing is taken where it would be levels that do not fit.
    return won.fillna({"regret": np.inf}).rename(columns={"method": "winner"}).reset_index()


def facts(table):
    """Count on every backend the cells in which a method wins clearly."""
    won, chosen = winners(table), table["backend"].unique()
    clear = won[won["lead"] >= CLEAR]
    counts = pd.crosstab(clear["backend"], clear["winner"]).reindex(index=chosen, columns=METHODS, fill_value=0)
    return {"won": counts.assign(cells=won["backend"].value_counts())}


def plot(table):
    won, chosen = winners(table), table["backend"].unique()
    sizes, lengths, batches = (sorted(won[name].unique()) for name in "HTB")
    height = 0.9 + len(chosen) * (0.75 + 0.28 * len(batches))
    shape = {"figsize": (9, height), "sharex": True, "sharey": True, "squeeze": False}
    fig, axes = panels.subplots(len(chosen), len(sizes), **shape)
    for ax, maps in zip(axes.flat, grid(backend=chosen, H=sizes), strict=True):
        _draw_map(ax, where(won, **maps), lengths, batches)
        ax.set(xlabel="sequence length, T", ylabel="batch size, B")
        ax.set_title("{backend}, H = {H}".format(**maps), size=10)
        ax.label_outer()
    handles = panels.patches({LABELS[method]: COLORS[method] for method in METHODS})
    panels.legend(fig, [*handles, Patch(facecolor="none", edgecolor="black", lw=1.6, label="auto loses over 20 %")])
    return fig


def _draw_map(ax, won, lengths, batches):
    for cell in won.to_dict("records"):
        x, y = lengths.index(cell["T"]), batches.index(cell["B"])
        alpha = 0.75 if cell["lead"] >= CLEAR else 0.25
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=COLORS[cell["winner"]], alpha=alpha, lw=0))
        if cell["regret"] > 1.2:
            ax.add_patch(Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, facecolor="none", edgecolor="black", lw=1.6))
        ax.text(x, y, f"{cell['lead']:.3g}" if cell["lead"] < 100 else "≥100", ha="center", va="center", size=8.5)
    ax.set(xlim=(-0.5, len(lengths) - 0.5), ylim=(-0.5, len(batches) - 0.5))
    ax.set_xticks(range(len(lengths)), [f"{T // 1000}k" if T >= 1000 else T for T in lengths])
    ax.set_yticks(range(len(batches)), batches)
    ax.grid(visible=False)


FIGURE = Figure(
    origin="timed",
    caption="""The fastest by 10 % or more is {won:each count;}. A cell has the color of its fastest method, pale where
    the lead is below 10 %. Its number says how many times as long the second-best takes. A frame marks where
    method="auto" takes a method that is over 20 % slower. Times are medians of warm rounds. Levels (Blelloch) include
    writing out the Jacobians; they compete where these take at most 32 MiB (512 MiB at the paper's scale).""",
    alt="""Heat maps over sequence length T and batch size B, one for each backend and state size H. A cell has the
    color of its fastest method, and the number of its lead.""",
    phrases={"count": "the loop in {linear}, chunks in {chunked} and levels in {blelloch} of {cells} cells on {_}"},
)
