"""Figures 2 and 3 of layer-parallel training: which layers the levels visit, and which value relaxation moves where."""

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from bppsa_nb import multigrid
from bppsa_nb.multigrid.cycles import GridLevel
from bppsa_nb.multigrid.grids import hierarchy
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS

DEPTH, COARSENING, LEVELS = 32, 4, 3


def measure(scale, rng, progress):
    """List the points of all levels, and the layers that values went through: a row per point and per arrow."""
    grids = hierarchy(DEPTH, COARSENING, LEVELS)
    rows = []
    for i, grid in enumerate(grids):
        kind = np.where(np.isin(np.arange(len(grid) + 1), grid.bounds), "C", "F")
        block = np.searchsorted(grid.bounds, np.arange(len(grid) + 1), "right") - 1
        columns = zip(grid.points.tolist(), kind.tolist(), block.tolist(), strict=True)
        rows += [{"part": "point", "level": i, "point": n, "kind": k, "block": b} for n, k, b in columns]
    before, relaxed, passed_on = relax(grids[0])
    for name, then, now in (("F", before, relaxed), ("C", relaxed, passed_on)):
        for point in np.flatnonzero(now != then).tolist():
            start, layers = decode(now[point])
            row = {"part": "arrow", "relaxation": name, "level": 0, "point": point, "start": start}
            rows.append(row | {"layers": len(layers), "last_layer": layers[-1]})
    return pd.DataFrame(rows)


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
    """Draw the levels, and both relaxations."""
    fig, (above, below) = pyplot.subplots(2, figsize=(9.4, 5.2), height_ratios=(3, 2), layout="constrained")
    points = table[table["part"] == "point"].astype({"point": int, "block": int})
    for level, rows in points.groupby("level"):
        _draw_points(above, rows, -level, COARSENING**level)
        if level:
            above.vlines(rows["point"], -level, 1 - level, color="#bbbbbb", lw=0.8, zorder=1)
    names = ["level 0, steps of h", *[f"level {i}, steps of {COARSENING**i} h" for i in range(1, LEVELS)]]
    above.set_yticks([-i for i in range(LEVELS)], names)
    arrows = table[table["part"] == "arrow"].astype({"point": int, "last_layer": int})
    for y, (name, color) in enumerate((("F", COLORS["matrix"]), ("C", COLORS["vector"]))):
        _draw_points(below, points[points["level"] == 0], -y, 1)
        style = {"arrowstyle": "-|>", "color": color, "lw": 1.4, "connectionstyle": "arc3,rad=-0.6"}
        style |= {"shrinkA": 2, "shrinkB": 2}
        for layer in arrows.loc[arrows["relaxation"] == name, "last_layer"]:
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
    fine = rows[rows["kind"] == "F"]
    for _, block in fine.groupby("block"):
        first, last = block["point"].min(), block["point"].max()
        ax.add_patch(Rectangle((first - 0.4 * gap, y - 0.2), last - first + 0.8 * gap, 0.4, fc="#e9eef4", ec="none"))
    ax.plot(fine["point"], [y] * len(fine), "o", color=COLORS["chunked"], ms=6, zorder=3)
    is_c = rows.loc[rows["kind"] == "C", "point"]
    ax.plot(is_c, [y] * len(is_c), "s", color=COLORS["linear"], ms=8, zorder=3)
