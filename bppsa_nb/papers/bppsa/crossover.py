"""Section 3.6: where BPPSA's dearer steps are made up for by being fewer."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.schedule.events import multiply_adds

SIZES = (4, 20, 64, 256)
PAPER = {"H": 20, "T": (10, 30, 100, 300, 1000, 3000, 10000, 30000)}
SCALES = {"quick": (100, 1000, 10000), "paper": (100, 1000, 10000, 30000)}
WORKERS = tuple(2**i for i in range(13))


def measure(scale, rng, progress):
    """Count critical paths for several n and H, then the time on p workers at the paper's H."""
    points = [{"n": n, "p": None} for n in sorted({*(2**i for i in range(1, 14)), *PAPER["T"]})]
    points += [{"n": n, "p": p} for n in SCALES[scale] for p in WORKERS]
    return progress.collect(points, _count, rng)


def _count(point, rng):
    runs = {method: timelines.traced(point["n"], method) for method in ("linear", "blelloch")}
    rows = [
        {"H": size} | {method: run.critical_path(multiply_adds(size))[0] for method, run in runs.items()}
        for size in ([PAPER["H"]] if point["p"] else SIZES)
    ]
    if not point["p"]:
        return [row | {f"{method}_steps": run.steps for method, run in runs.items()} for row in rows]
    # The linear scan is a single chain, whatever the number of workers.
    ends = timelines.on_workers(runs["blelloch"], point["p"], multiply_adds(PAPER["H"]))
    return [row | {"blelloch": ends} for row in rows]


def plot(table):
    """Draw the ratio of mean steps against n, and the speedup against p."""
    fig, (left, right) = pyplot.subplots(1, 2, figsize=(10.2, 4.2), layout="constrained")
    alone, shared = table[table["p"].isna()], table[table["p"].notna()]
    fewer = (alone["linear_steps"] / alone["blelloch_steps"]).groupby(alone["n"]).first()
    steps = {method: alone[method] / alone[f"{method}_steps"] for method in ("blelloch", "linear")}
    ratio = alone.assign(ratio=steps["blelloch"] / steps["linear"])
    left.fill_between(fewer.index, 0.5, fewer, color="#EEF3E6", lw=0)
    left.plot(fewer.index, fewer, color="black", lw=2.2, label="steps, linear / Blelloch, counted")
    n = np.geomspace(4, fewer.index.max(), 50)
    left.plot(n, n / np.log2(n), "--", color="black", lw=1.1, label=r"$n\,/\,\log_2 n$")
    shades = [COLORS[role] for role in ("identity", "blelloch", "truncated", "linear")]
    for (size, rows), shade in zip(ratio.groupby("H"), shades, strict=True):
        left.plot(rows["n"], rows["ratio"], color=shade)
        panels.name_end(left, rows["n"], rows["ratio"], f"H = {size}", shade)
    paper = ratio[(ratio["H"] == PAPER["H"]) & ratio["n"].isin(PAPER["T"])]
    left.plot(paper["n"], paper["ratio"], "*", color="black", ms=9, zorder=4, label="the paper's RNN, T = n")
    left.text(7000, 55, "BPPSA wins", ha="center", style="italic", size=9)
    left.text(11, 38, "linear wins", ha="center", style="italic", size=9)
    left.set(xscale="log", ylim=(0.5, 4000), xlim=(2, 1.4e5), title="As many workers as ⋄")
    left.set(xlabel="links in the chain, $n$", ylabel="mean step, Blelloch / linear")
    fig.get_layout_engine().set(wspace=0.06)
    left.legend(loc="upper left", bbox_to_anchor=(0, 1.03))
    for (length, rows), shade in zip(shared.groupby("n"), shades, strict=False):
        speedup = rows["linear"] / rows["blelloch"]
        right.plot(rows["p"], speedup, "o-", color=shade, ms=4)
        panels.name_end(right, rows["p"], speedup, f"T = {length}", shade)
    right.axhline(1, color="black", lw=1.1)
    right.text(1, 1.1, "as fast as linear", va="bottom", size=9)
    right.set_xscale("log", base=2)
    right.set(xlabel="workers, $p$", ylabel="speedup over the linear scan", title=f"On $p$ workers, H = {PAPER['H']}")
    for ax in (left, right):
        panels.log_scale(ax, "y")
        ax.xaxis.set_major_formatter("{x:,.0f}")
    return fig
