"""Whole training steps beside the best peer, over the size of a layer: draws what `benchmarks/run.py` recorded."""

import numpy as np
import pandas
from matplotlib.colors import TwoSlopeNorm

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

PEERS = {"PyTorch": "torch", "JAX": "jax"}


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("whole")


def beside(table):
    """Divide peers' best times by ours: a row per machine, part, cell, T, B, H, I and `peer`.

    `ratio` is that of the medians, `low` and `high` those of the peer's quartiles to our median.
    """
    keys = ["machine", "part", "cell", "T", "B", "H", "I"]
    ours = table[table["name"] == "ours"].set_index(keys)["seconds"]
    rows = []
    for peer, prefix in PEERS.items():
        part = table[table["name"].str.startswith(prefix)]
        best = part.loc[part.groupby(keys, sort=False)["seconds"].idxmin()].set_index(keys)
        ratios = best[["seconds", "seconds_low", "seconds_high"]].div(ours.reindex(best.index), axis=0)
        names = {"seconds": "ratio", "seconds_low": "low", "seconds_high": "high"}
        rows.append(ratios.rename(columns=names).assign(peer=peer).reset_index())
    return pandas.concat(rows, ignore_index=True)


def best(table):
    """Return of `beside` the row of the peer that is ahead, for every size."""
    ratios = beside(table)
    return ratios.loc[ratios.groupby(["machine", "part", "cell", "T", "B", "H", "I"], sort=False)["ratio"].idxmin()]


def values(table):
    """Name what the words are taken from: the peer that is ahead of the other, and whether it is behind us."""
    ahead = best(table)
    return {"ahead": ahead.assign(leads=ahead["ratio"] > 1, cells=1)}


def plot(table):
    """Draw the named layers as dots, and the grid as two maps; a block for each machine."""
    ratios, ahead = beside(table), best(table)
    fig, parts = panels.machines(ratios, 9.5, 7.6)
    for part, rows in parts:
        axes = part.subplot_mosaic([["named", "named"], ["RNN", "GRU"]], height_ratios=[1, 1.05])
        _draw_named(axes["named"], rows[rows["part"] == "named"])
        here = ahead[(ahead["machine"] == rows["machine"].iloc[0]) & (ahead["part"] == "grid")]
        norm = _norm(here["ratio"])
        for cell in ("RNN", "GRU"):
            _draw_grid(axes[cell], here[here["cell"] == cell], norm)
            axes[cell].set_title(f"{cell}, T = 100, I = H: best peer's time / ours")
    return fig


def _draw_named(ax, rows):
    keys = ["cell", "T", "B", "H", "I"]
    sizes = list(rows.drop_duplicates(keys)[keys].itertuples(index=False))
    colors = {"PyTorch": COLORS["identity"], "JAX": COLORS["vector"]}
    for peer, part in rows.groupby("peer", sort=False):
        part = part.set_index(keys).loc[[tuple(size) for size in sizes]]
        places = np.arange(len(sizes))
        ax.errorbar(
            part["ratio"],
            places,
            xerr=[part["ratio"] - part["low"], part["high"] - part["ratio"]],
            fmt="o",
            color=colors[peer],
            label=peer,
        )
        for place, ratio in zip(places, part["ratio"], strict=True):
            up = 6 if peer == "PyTorch" else -12  # the two may be close to each other
            ax.annotate(f"{ratio:.3g}", (ratio, place), (0, up), textcoords="offset points", ha="center", size=8)
    for ratio in (1, 2):
        ax.axvline(ratio, color="black", lw=1, ls="-" if ratio == 1 else ":")
    labels = [f"{size.cell}, T={size.T}, B={size.B}, I={size.I}, H={size.H}" for size in sizes]
    ax.set_yticks(range(len(sizes)), labels, size=8)
    ax.set_ylim(len(sizes) - 0.5, -0.7)
    panels.log_scale(ax, "x", "{x:g}×", ticks=(1, 2, 5, 10, 20, 50))
    ax.set_xlabel("a peer's time / ours")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right", frameon=True)


def _norm(ratios):
    most = max(np.log(ratios.max()), -np.log(ratios.min()))
    return TwoSlopeNorm(0, -most, most)


def _draw_grid(ax, rows, norm):
    sizes, batches = sorted(rows["H"].unique()), sorted(rows["B"].unique())
    cells = rows.set_index(["B", "H"])
    shown = [[np.log(cells.loc[(B, H), "ratio"]) for H in sizes] for B in batches]
    ax.imshow(shown, cmap="RdBu", norm=norm, aspect="auto", origin="lower", alpha=0.85)
    for y, B in enumerate(batches):
        for x, H in enumerate(sizes):
            row = cells.loc[(B, H)]
            color = "white" if abs(norm(np.log(row["ratio"])) - 0.5) > 0.35 else "black"
            ax.text(x, y, f"{row['ratio']:.2g} {row['peer'][0]}", ha="center", va="center", size=8, color=color)
    ax.set_xticks(range(len(sizes)), sizes)
    ax.set_yticks(range(len(batches)), batches)
    ax.set(xlabel="hidden size, H", ylabel="batch size, B")
    ax.grid(visible=False)
