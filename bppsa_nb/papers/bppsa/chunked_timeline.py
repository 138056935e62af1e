"""Equation 6 for few workers, counted: the phases of a scan in chunks, how long chunks should be, what they gain."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.trace import UNIT, trace
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import Event, multiply_adds

SMALL, CHUNK = 20, 5  # links of the timeline, and of its chunks
LINKS, SIZE = 1000, 20  # of what is counted: the paper's RNN
LENGTHS = (1, 2, 3, 4, 5, 7, 10, 14, 22, 32, 50, 71, 100, 200, 334, 500, 1000)
WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 90, 125, 180, 250, 500, 1000)
PHASES = {
    "multiply": ("1. multiply matrices", COLORS["matrix"]),
    "sweep": ("1. from the loss", COLORS["linear"]),
    "cross": ("2. across chunks", COLORS["identity"]),
    "replay": ("3. along every chunk", COLORS["vector"]),
}
_trace = lru_cache(maxsize=2)(trace)


def chunks(run, length, cost=UNIT):
    """Schedule ``trace(n, "chunked", length=length)``: an event per product, its `kind` one of `PHASES`.

    There is a worker for each chunk, which does all that ends there; `cost` says what products "mm" and "mv" take.
    """
    first = run.n + 1 - (run.n - 1) // length * length if run.n else 1  # positions of the chunk that holds the gradient
    events, free = [], {}
    for product, needs in zip(run.products, run.needs, strict=True):
        position = product.span[1]
        worker = 0 if position < first else 1 + (position - first) // length
        start = max([free.get(worker, 0), *(events[i].end for i in needs)])
        first_position, last_position = product.span
        event = Event(worker, start, cost[product.product], f"{first_position}:{last_position}", _phase(product, first))
        free[worker] = event.end
        events.append(event)
    return events


def _phase(product, first):
    if product.product == "mm":
        return "multiply"
    if product.span[1] < first:
        return "sweep"
    link = product.parents[1]
    return "cross" if link.span[0] < link.span[1] else "replay"


def measure(scale, rng, progress):
    """Schedule the small scan, and count the large one: one row per event, per length and per number of workers."""
    run = _trace(SMALL, "chunked", length=CHUNK)
    events = chunks(run, CHUNK)
    timeline.check(events, run.needs)
    rows = [{"part": "timeline", "n": SMALL, "length": CHUNK} | event._asdict() for event in events]
    work = multiply_adds(SIZE)
    for length in LENGTHS:
        run = _trace(LINKS, "chunked", length=length)
        ends = {"steps": run.steps, "multiply_adds": timeline.makespan(chunks(run, length, work))}
        rows.append({"part": "length", "method": "chunked", "n": LINKS, "length": length} | ends)
    for method in ("linear", "blelloch"):
        run = _trace(LINKS, method)
        ends = {"steps": run.steps, "multiply_adds": run.critical_path(work)[0]}
        rows.append({"part": "length", "method": method, "n": LINKS} | ends)
    for p in WORKERS:
        length = -(-LINKS // p)
        runs = {"chunked": _trace(LINKS, "chunked", length=length), "blelloch": _trace(LINKS, "blelloch")}
        for method, run in runs.items():
            placed = timeline.scan_schedule(run, p, work)
            timeline.check(placed, run.needs)
            row = {"part": "workers", "method": method, "n": LINKS, "p": p, "multiply_adds": timeline.makespan(placed)}
            rows.append(row | ({"length": length} if method == "chunked" else {}))
    return pd.DataFrame(rows)


def plot(table):
    """Draw the timeline, time over the length of a chunk, and speedup over workers."""
    fig = pyplot.figure(figsize=(9.6, 6.4), layout="constrained")
    axes = fig.subplot_mosaic("tt;lw", height_ratios=(2.1, 3))
    part = {name: rows for name, rows in table.groupby("part")}
    _draw_timeline(axes["t"], part["timeline"])
    loop = part["length"].set_index("method").loc["linear"]
    _draw_lengths(axes["l"], part["length"], loop)
    _draw_workers(axes["w"], part["workers"], loop["multiply_adds"])
    return fig


def _draw_timeline(ax, rows):
    events = timelines.events(rows)
    styles = {"colors": {kind: color for kind, (_, color) in PHASES.items()}}
    styles["names"] = {kind: name for kind, (name, _) in PHASES.items()}
    draw.timeline(events, ax, unit=f"steps; {SMALL} links in chunks of {CHUNK}", **styles)
    ax.set_xticks(range(0, int(timeline.makespan(events)) + 1, 2))


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
