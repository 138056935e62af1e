"""Equation 6 for few workers, counted: the phases of a scan in chunks, how long chunks should be, what they gain."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.trace import UNIT
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import Event, multiply_adds

SMALL, CHUNK = 20, 5  # links of the timeline, and of its chunks
LINKS, SIZE = 1000, 20  # of what is counted: the paper's RNN
LENGTHS = (1, 2, 3, 4, 5, 7, 10, 14, 22, 32, 50, 71, 100, 200, 334, 500, 1000)
WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 90, 125, 180, 250, 500, 1000)
PHASES = {
    "multiply": "1. multiply matrices",
    "sweep": "1. from the loss",
    "cross": "2. across chunks",
    "replay": "3. along every chunk",
}
_COLORS = dict(zip(PHASES, (COLORS[role] for role in ("matrix", "linear", "identity", "vector")), strict=True))


def chunks(run, length, cost=UNIT):
    """Schedule ``trace(n, "chunked", length=length)``, a worker per chunk: events whose `kind` is one of `PHASES`."""
    first = run.n + 1 - (run.n - 1) // length * length if run.n else 1  # positions of the chunk that holds the gradient
    tasks = []
    for product in run.products:
        position, link = product.span[1], product.parents[1].span
        worker = 0 if position < first else 1 + (position - first) // length
        phase = "cross" if link[0] < link[1] else "replay"
        phase = "multiply" if product.product == "mm" else "sweep" if position < first else phase
        tasks.append(Event(worker, 0, cost[product.product], "{}:{}".format(*product.span), phase))
    return timeline.in_order(tasks, run.needs)[0]


def measure(scale, rng, progress):
    """Schedule the small scan, and count the large one: one row per event, per length and per number of workers."""
    run = timelines.traced(SMALL, "chunked", length=CHUNK)
    events = chunks(run, CHUNK)
    timeline.check(events, run.needs)
    rows = [{"part": "timeline", "n": SMALL, "length": CHUNK} | event._asdict() for event in events]
    work = multiply_adds(SIZE)
    for method, length in [*(("chunked", length) for length in LENGTHS), ("linear", None), ("blelloch", None)]:
        run = timelines.traced(LINKS, method, length=length)
        ends = timeline.makespan(chunks(run, length, work)) if length else run.critical_path(work)[0]
        row = {"part": "length", "method": method, "n": LINKS, "length": length}
        rows.append(row | {"steps": run.steps, "multiply_adds": ends})
    for p in WORKERS:
        for method, length in ("chunked", -(-LINKS // p)), ("blelloch", None):
            ends = timelines.on_workers(timelines.traced(LINKS, method, length=length), p, work)
            row = {"part": "workers", "method": method, "n": LINKS, "length": length, "p": p}
            rows.append(row | {"multiply_adds": ends})
    return pd.DataFrame(rows)


def plot(table):
    """Draw the timeline, time over the length of a chunk, and speedup over workers."""
    fig = pyplot.figure(figsize=(9.6, 6.4), layout="constrained")
    axes = fig.subplot_mosaic("tt;lw", height_ratios=(2.1, 3))
    part = {name: rows for name, rows in table.groupby("part")}
    events = timelines.events(part["timeline"])
    unit = f"steps; {SMALL} links in chunks of {CHUNK}"
    draw.timeline(events, axes["t"], unit=unit, names=PHASES, colors=_COLORS)
    axes["t"].set_xticks(range(0, int(timeline.makespan(events)) + 1, 2))
    loop = part["length"].set_index("method").loc["linear"]
    _draw_lengths(axes["l"], part["length"], loop)
    _draw_workers(axes["w"], part["workers"], loop["multiply_adds"])
    return fig


def _draw_lengths(ax, rows, loop):
    chunked, tree = rows[rows["method"] == "chunked"], rows[rows["method"] == "blelloch"].iloc[0]
    for quantity, words, shade in (
        ("multiply_adds", f"multiply-adds, H = {SIZE}", COLORS["chunked"]),
        ("steps", "steps", COLORS["baseline"]),
    ):
        share = chunked[quantity] / loop[quantity]
        ax.plot(chunked["length"], share, "o-", ms=4, color=shade, label=words)
        ax.axhline(tree[quantity] / loop[quantity], ls="--", lw=1.1, color=shade)
    ax.axhline(1, color="black", lw=1.1)
    ax.text(LENGTHS[0], 1.08, "the loop", va="bottom", size=9)
    panels.log_scale(ax, shown="{x:,g}")
    ax.set(xlabel="steps of a chunk", ylabel="time / the loop's")
    ax.set_title(f"A worker for each chunk, n = {LINKS}", size=10)
    ax.legend(loc="upper center", bbox_to_anchor=(0.56, 1.0))


def _draw_workers(ax, rows, loop):
    for method, words in (("blelloch", "levels (Blelloch)"), ("chunked", "chunks")):
        part = rows[rows["method"] == method]
        style = {"ms": 4} if method == "blelloch" else {"ms": 8, "mfc": "none"}
        ax.plot(part["p"], loop / part["multiply_adds"], "o-", **style, color=COLORS[method], label=words)
    ax.axhline(1, color="black", lw=1.1)
    panels.log_scale(ax, shown="{x:,g}")
    ax.set_xticks(10 ** np.arange(4))
    ax.set(xlabel="workers, $p$", ylabel="speedup over the loop")
    ax.set_title(f"On p workers, n = {LINKS}, H = {SIZE}", size=10)
    ax.legend(loc="lower right")
