"""Equations 6 and 7, counted: how many steps and how much work the scans take, alone and on p workers."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.levels import up_levels

SCALES = {"quick": 4096, "paper": 32768}
STYLES = {
    "linear": ("linear scan", COLORS["linear"], "s"),
    "blelloch": ("Blelloch (BPPSA)", COLORS["blelloch"], "o"),
    "truncated": ("truncated", COLORS["truncated"], "^"),
    "hillis_steele": ("Hillis-Steele", COLORS["baseline"], "D"),
}


def measure(scale, rng, progress):
    """Count steps and work for n up to 4096 (quick) or 32768, and steps on p workers at the largest n."""
    largest = SCALES[scale]
    points = []
    for n in 2 ** np.arange(1, largest.bit_length()):
        for method in STYLES:
            k = up_levels(n.item()) // 2 if method == "truncated" else None
            points.append({"n": n, "method": method, "levels": k, "p": None})
    for p in 2 ** np.arange(0, largest.bit_length(), 2):
        points += [{"n": largest, "method": each, "levels": None, "p": p} for each in STYLES if each != "truncated"]
    return progress.collect(points, _count, rng)


def _count(point, rng):
    run = timelines.traced(point["n"], point["method"], point["levels"])
    steps = timelines.on_workers(run, point["p"]) if point["p"] else run.steps
    return [{"steps": steps, "work": run.work, "mm": run.mm, "mv": run.mv}]


def plot(table):
    """Draw steps and work against n, and steps against p."""
    fig, axes = pyplot.subplots(1, 3, figsize=(9.8, 3.7), layout="constrained")
    alone, shared = table[table["p"].isna()], table[table["p"].notna()]
    largest = table["n"].max()
    panels_of = (alone, "n", "steps"), (alone, "n", "work"), (shared, "p", "steps")
    for ax, (part, x, y) in zip(axes, panels_of, strict=True):
        for method, rows in part.groupby("method", sort=False):
            name, color, marker = STYLES[method]
            ax.plot(rows[x], rows[y], marker, color=color, ms=5, label=name, zorder=3)
        for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
            scale("log", base=2)
            axis.set_major_formatter("{x:,.0f}")
        ax.set_xticks(2 ** np.arange(0, np.log2(largest) + 1, 4))
        ax.grid(False, axis="x")
        ax.set_ylabel(f"{y} (⋄)" if y == "work" else f"{y} (levels)" if x == "n" else "steps (⋄ one after another)")
    n, p = 2 ** np.linspace(1, np.log2(largest), 60), 2 ** np.linspace(0, np.log2(largest), 60)
    _line(axes[0], n, n, "linear", "$n$")
    _line(axes[0], n, 2 * np.log2(n), "blelloch", r"$2\log_2 n$", up=4)
    _line(axes[0], n, np.log2(n), "hillis_steele", r"$\log_2 n$", up=-3)
    _line(axes[1], n, n, "linear", "$n$", up=-4)
    _line(axes[1], n, 2 * n, "blelloch", "$2n$", up=4)
    _line(axes[1], n, n * np.log2(n), "hillis_steele", r"$n\log_2 n$")
    _line(axes[2], p, largest + 0 * p, "linear", "$n$")
    _line(axes[2], p, 2 * largest / p + 2 * np.log2(p), "blelloch", r"$2n/p$" + "\n" + r"$+\,2\log_2 p$", up=8)
    _line(axes[2], p, largest * np.log2(largest) / p, "hillis_steele", r"$n\log_2 n\,/\,p$", up=-10)
    axes[0].set(title="Steps, as many workers as ⋄", xlabel="links in the chain, $n$")
    axes[1].set(title="Work", xlabel="links in the chain, $n$")
    axes[2].set(title=f"Steps on $p$ workers, $n$ = {largest}", xlabel="workers, $p$")
    axes[0].legend(loc="upper left")
    return fig


def _line(ax, x, y, method, name, up=0):
    """Draw a formula, its name at the end."""
    ax.plot(x, y, "--", color=STYLES[method][1], lw=1.1, zorder=2)
    panels.name_end(ax, x, y, name, STYLES[method][1], up)
