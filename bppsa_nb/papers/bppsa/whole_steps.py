"""Whole training steps, and the best of PyTorch and JAX."""

import numpy as np
from matplotlib.colors import TwoSlopeNorm

from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.experiment import COLORS, Figure, where

KEYS = ["machine", "part", "cell", "T", "B", "H", "I"]


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return experiments.collect("whole")


def beside(table):
    """Divide peers' best times by ours, per size and `peer`: `ratio` of medians, `low` and `high` of quartiles."""
    ours = where(table, name="ours").set_index(KEYS)["seconds"]
    names = table["name"].str.split(".").str[0]
    peers = table.assign(peer=names.map({"torch": "PyTorch", "jax": "JAX"})).dropna(subset="peer")
    fastest = peers.loc[peers.groupby([*KEYS, "peer"], sort=False)["seconds"].idxmin()].set_index(KEYS)
    ratios = fastest[["seconds", "seconds_low", "seconds_high"]].div(ours.reindex(fastest.index), axis=0)
    return ratios.set_axis(["ratio", "low", "high"], axis=1).assign(peer=fastest["peer"]).reset_index()


def best(table):
    """Return of `beside` the row of the peer that is ahead, for every size."""
    ratios = beside(table)
    return ratios.loc[ratios.groupby(KEYS, sort=False)["ratio"].idxmin()]


def facts(table):
    """Return the lead over the better peer: on named layers, and on the grid, where cells are counted, too."""
    ahead = best(table)
    grid = where(ahead, part="grid")["ratio"]
    return {"named": where(ahead, part="named")["ratio"], "grid": grid, "above": (grid > 1).sum(), "cells": len(grid)}


def plot(table):
    import seaborn

    ratios, ahead = beside(table), best(table)
    fig, parts = panels.machines(ratios, 9.5, 7.6)
    for part, rows in parts:
        axes = part.subplot_mosaic([["named", "named"], ["RNN", "GRU"]], height_ratios=[1, 1.05])
        _draw_named(axes["named"], where(rows, part="named"))
        here = where(ahead, machine=rows["machine"].iloc[0], part="grid")
        most = max(np.log(here["ratio"].max()), -np.log(here["ratio"].min()))
        for cell in ("RNN", "GRU"):
            cells = where(here, cell=cell).pivot(index="B", columns="H")
            texts = cells["ratio"].map("{:.2g} ".format) + cells["peer"].map(lambda peer: peer[0])
            style = {"cmap": "RdBu", "norm": TwoSlopeNorm(0, -most, most), "alpha": 0.85, "cbar": False}
            style |= {"annot": texts, "fmt": "", "annot_kws": {"size": 8}}
            seaborn.heatmap(np.log(cells["ratio"]), ax=axes[cell], **style)
            axes[cell].invert_yaxis()
            axes[cell].set(title=f"{cell}, T = 100, I = H", xlabel="hidden size, H", ylabel="batch size, B")
    return fig


def _draw_named(ax, rows):
    sizes = list(rows[KEYS[2:]].drop_duplicates().itertuples(index=False))
    places = np.arange(len(sizes))
    for peer, part in rows.groupby("peer", sort=False):
        part = part.set_index(KEYS[2:]).loc[[tuple(size) for size in sizes]]
        bars = [part["ratio"] - part["low"], part["high"] - part["ratio"]]
        ax.errorbar(part["ratio"], places, xerr=bars, fmt="o", color=COLORS[peer], label=peer)
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


FIGURE = Figure(
    origin="collected", needs=["whole.paper"],
    caption="""On the named layers, the better of PyTorch and JAX takes {named:.3g} times as long as we do (bars:
    quartiles). Below, T = 100, I = H: how many times as long the better peer, P or J, takes. A step is forward pass,
    loss, backward pass and Adam, method “auto”, float32. PyTorch is the best of one thread and all, with and without
    subnormal numbers. JAX is the better of two unrolls. Medians of one run by benchmarks/run.py, warm and in turns.""",
    alt="""For each machine, above, dots for PyTorch's and JAX's times over ours on a logarithmic axis, a row per layer.
    Below, heat maps over hidden size and batch size of the better one's time over ours: from {grid:.2g}, above 1 in
    {above} of {cells} cells.""",
)
