"""Steps of a whole training step that wait for each other, over workers: four ways to share them out."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.tables import where

SIZES = {"quick": {"T": 3000, "iterations": 300}, "paper": {"T": 10000, "iterations": 1000}}
WORKERS = tuple(4**i for i in range(6))
MOST = 60
KINDS = {"fresh": "a fresh network", "trained": "trained at rate 1e-3"}
ROADS = {  # name, role of the color
    "serial": ("loop, loop", "linear"),
    "backward": ("loop, then the scan backward", "blelloch"),
    "newton": ("Newton, then the scan backward", "newton"),
    "repair": ("repaired chunks, then the scan backward", "chunked"),
}


def measure(scale, rng, progress):
    """Count what both methods take on two networks, one sample; work the rest out: a row per road and workers."""
    points = [{"network": name} for name in KINDS]
    return progress.collect(points, lambda point, rng: _rows(point["network"], rng, **SIZES[scale]), rng)


def _rows(network, rng, T, iterations):
    model = networks.fresh(rng, np.float32)
    if network == "trained":
        model = networks.trained(rng, iterations, T // 10, dtype=np.float32)
    x, rows = networks.inputs(T, 1, rng, np.float32), []
    double = networks.like(model, np.float64)  # where Newton's method is at its best
    deer = double.forward(x.astype(np.float64), backend="cpu", method="newton", length=1, tol=1e-5, most=MOST).solved[0]
    met = deer.finished == "converged"
    ways = {"serial": {1: 2 * T}, "backward": {}, "newton": {}, "repair": {}}
    for chunks in WORKERS:  # of a length that suits so many workers
        ways["backward"][chunks] = _backward(T, chunks)
        if met:
            ways["newton"][chunks] = _newton(T, chunks, deer.corrections)
        how = {"method": "chunked", "length": -(-T // chunks), "most": 1e9} if chunks > 1 else {"method": "linear"}
        solved = model.forward(x, backend="cpu", **how).solved
        ways["repair"][chunks] = T if solved is None else solved[0].steps
    for workers in WORKERS:  # as many as pay
        best = {road: min((found[n] for n in found if n <= workers), default=None) for road, found in ways.items()}
        forward = {"serial": best["serial"], "backward": T, "newton": best["newton"], "repair": best["repair"]}
        for road, steps in forward.items():
            if steps is not None:
                total = steps + (best["backward"] if road != "serial" else 0)
                same = {"T": T, "workers": workers, "corrections": deer.corrections, "met": met}
                rows.append(same | {"road": road, "steps": total})
    return rows


def _backward(T, chunks):
    """Count steps of the chunked scan, each as much as a cell's: products of H columns, the tree, a replay."""
    return T if chunks == 1 else T / chunks * (networks.H + 1) + _tree(chunks)


def _newton(T, workers, corrections):
    """Count steps of Newton's method, each worker linearizing, multiplying and replaying its share."""
    each = T / workers * (networks.H + 3) + _tree(workers)
    return (corrections + 1) * each


def _tree(chunks):
    """Count steps of the tree over chunks' products: one after the other, or level by level, whatever is less."""
    return min(chunks, 2 * np.log2(max(chunks, 1)) * networks.H)


def gains(table, network):
    """Return by how much each road is faster than the loops, on as many workers as there are at the most."""
    rows = where(table, network=network, workers=max(WORKERS)).set_index("road")["steps"]
    return rows["serial"] / rows


def values(table):
    """Return what words need beside the table: gains over loops."""
    found = pd.concat({network: gains(table, network) for network in KINDS}, names=["network"])
    return {"gains": found.rename("gain").reset_index()}


def plot(table):
    """Draw dependent steps over workers, a panel per network."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9.4, 4.4), sharey=True, layout="constrained")
    for ax, (kind, name) in zip(axes, KINDS.items(), strict=True):
        for road, (_, role) in ROADS.items():
            rows = where(table, network=kind, road=road)
            ax.plot(rows["workers"], rows["steps"], "o-", ms=4, color=COLORS[role], lw=1.5)
        ax.set_title(name)
        if not len(where(table, network=kind, road="newton")):
            said = f"Newton: not within {MOST} corrections"
            ax.text(0.02, 0.97, said, transform=ax.transAxes, va="top", size=8, color=COLORS[ROADS["newton"][1]])
        panels.log_scale(ax, "y", "{x:,.0f}")
        panels.sizes_axis(ax, WORKERS)
        ax.set_xlabel("workers")
    axes[0].set_ylabel("dependent steps")
    panels.legend(fig, panels.lines({words: COLORS[role] for words, role in ROADS.values()}), ncols=2)
    return fig
