"""Figures 2 and 3 of layer-parallel training: layers in blocks, F- and C-relaxation."""

import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle

from bppsa_nb import multigrid
from bppsa_nb.multigrid.cycles import GridLevel
from bppsa_nb.multigrid.grids import hierarchy
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Figure, where

DEPTH, COARSENING, LEVELS = 32, 4, 3


def measure(scale, rng, progress):
    """List the points of all levels, and the layers that values went through: a row per point and per arrow."""
    grids, points, arrows = hierarchy(DEPTH, COARSENING, LEVELS), [], []
    for level, grid in enumerate(grids):
        every = np.arange(len(grid) + 1)
        kind, block = np.where(np.isin(every, grid.bounds), "C", "F"), np.searchsorted(grid.bounds, every, "right") - 1
        points.append(pd.DataFrame({"level": level, "point": grid.points, "kind": kind, "block": block}))
    before, relaxed, passed_on = relax(grids[0])
    for name, then, now in (("F", before, relaxed), ("C", relaxed, passed_on)):
        for point in np.flatnonzero(now != then).tolist():
            start, layers = decode(now[point])
            row = {"relaxation": name, "level": 0, "point": point, "start": start}
            arrows.append(row | {"layers": len(layers), "last_layer": layers[-1]})
    parts = pd.concat(points).assign(part="point"), pd.DataFrame(arrows).assign(part="arrow")
    return pd.concat(parts, ignore_index=True)


def relax(grid):
    """Run F-relaxation and then C-relaxation on a network whose layer n adds 2^n.

    Returns the values at all points [shape=(n + 1,)] before, between and after; see `decode`.
    """
    depth = len(grid)
    net = multigrid.ResidualNetwork(np.zeros((depth, 1, 1)), 2.0 ** np.arange(depth)[:, None], 1, "relu")

    def sweep(points, source, bounds, layers, sizes):
        return steps.forward_sweep(points, source, bounds, layers, sizes, net.weights, net.biases, net.activation)

    begin = 2.0**depth * np.arange(depth + 1).reshape(-1, 1, 1)
    level = GridLevel(grid, net.h, begin, steps, sweep)
    states = [begin.ravel()]
    for relaxation in (level.f_relax, level.c_relax):
        relaxation()
        states.append(level.points.flatten())
    return states


def decode(value):
    """Return at which point a value began, and which layers it went through."""
    start, bits = divmod(int(value), 2**DEPTH)
    return start, [n for n in range(DEPTH) if bits >> n & 1]


def plot(table):
    fig, (above, below) = panels.subplots(2, figsize=(9.4, 5.2), height_ratios=(3, 2))
    points = table[table["part"] == "point"]
    for level, rows in points.groupby("level"):
        _draw_points(above, rows, -level, COARSENING**level)
        if level:
            above.vlines(rows["point"], -level, 1 - level, color="#bbbbbb", lw=0.8, zorder=1)
    names = ["level 0, steps of h", *[f"level {i}, steps of {COARSENING**i} h" for i in range(1, LEVELS)]]
    above.set_yticks([-i for i in range(LEVELS)], names)
    for y, (name, color) in enumerate((("F", COLORS["matrix"]), ("C", COLORS["vector"]))):
        _draw_points(below, where(points, level=0), -y, 1)
        style = {"arrowstyle": "-|>", "color": color, "lw": 1.4, "connectionstyle": "arc3,rad=-0.6"}
        style |= {"shrinkA": 2, "shrinkB": 2}
        for layer in where(table, part="arrow", relaxation=name)["last_layer"]:
            below.annotate("", (layer + 1, 0.08 - y), (layer, 0.08 - y), arrowprops=style)
    below.set_yticks([0, -1], ["F-relaxation", "C-relaxation"])
    below.set_xlabel("state $u^n$; layer n leads from n to n + 1")
    for ax, foot in ((above, 0.4 - LEVELS), (below, -1.4)):
        ax.set(xlim=(-0.8, DEPTH + 0.8), ylim=(foot, 0.6), xticks=range(0, DEPTH + 1, COARSENING))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.grid(False)
    handles = panels.lines({"C-point": COLORS["linear"]}, marker="s", ls="", ms=8)
    handles += panels.lines({"F-point": COLORS["chunked"]}, marker="o", ls="", ms=6)
    handles += panels.patches({"F-points of a block": "#e9eef4"})
    handles += panels.lines({"propagated within a block": COLORS["matrix"]})
    handles += panels.lines({"propagated to the next C-point": COLORS["vector"]})
    panels.legend(fig, handles)
    return fig


def _draw_points(ax, rows, y, gap):
    coarse, fine = where(rows, kind="C"), where(rows, kind="F")
    for _, block in fine.groupby("block")["point"]:
        first, last = block.min(), block.max()
        ax.add_patch(Rectangle((first - 0.4 * gap, y - 0.2), last - first + 0.8 * gap, 0.4, fc="#e9eef4", ec="none"))
    ax.plot(fine["point"], [y] * len(fine), "o", color=COLORS["chunked"], ms=6, zorder=3)
    ax.plot(coarse["point"], [y] * len(coarse), "s", color=COLORS["linear"], ms=8, zorder=3)


FIGURE = Figure(
    origin="counted",
    caption="""No block waits for another: F-relaxation goes through the layers within a block, C-relaxation from its
    end to the next C-point. Above, the points of three levels of 32 layers, as the solver makes them with c = 4.
    Squares are C-points, the points of the next level; shaded F-points propagate together as a block. Below, the finest
    level: every layer that ran added a bit of its own, so that each value says which layers it went through. Blue
    arrows are layers of F-relaxation, orange ones those whose result C-relaxation writes.""",
    alt="""Above, rows of dots for three levels of a network of 32 layers: 33 points, every fourth of them a square and
    a point of the level below, which has 9, and the last level 3. Below, the finest level twice. In F-relaxation,
    arrows lead from each of the eight C-points through the three F-points after it, and no farther. In C-relaxation,
    one arrow leads from the last F-point of each block to the next C-point.""",
)
