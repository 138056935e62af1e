"""A scan in chunks: three phases, the length of a chunk, and what it gains."""

import numpy as np
import pandas as pd

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Figure, where
from bppsa_nb.scan.trace import UNIT
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline

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


def chunks(run, length, cost=UNIT):
    """Schedule ``trace(n, "chunked", length=length)``, a worker per chunk: events whose `kind` is one of `PHASES`."""
    first = run.n + 1 - (run.n - 1) // length * length if run.n else 1  # positions of the chunk that holds the gradient
    tasks = []
    for product in run.products:
        position, link = product.span[1], product.parents[1].span
        worker = 0 if position < first else 1 + (position - first) // length
        phase = "cross" if link[0] < link[1] else "replay"
        phase = "multiply" if product.product == "mm" else "sweep" if position < first else phase
        tasks.append(timeline.Event(worker, 0, cost[product.product], "{}:{}".format(*product.span), phase))
    return timeline.in_order(tasks, run.needs)[0]


def measure(scale, rng, progress):
    """Schedule the small scan, and count the large one: one row per event, per length and per number of workers."""
    run = timelines.traced(SMALL, "chunked", length=CHUNK)
    events = chunks(run, CHUNK)
    timeline.check(events, run.needs)
    rows = [{"part": "timeline", "n": SMALL, "length": CHUNK} | event._asdict() for event in events]
    work = timeline.multiply_adds(SIZE)
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
    fig = panels.figure(figsize=(9.6, 6.4))
    axes = fig.subplot_mosaic("tt;lw", height_ratios=(2.1, 3))
    events, left, right = timelines.events(where(table, part="timeline")), axes["l"], axes["w"]
    names, colors = ({kind: each[i] for kind, each in PHASES.items()} for i in (0, 1))
    unit = f"steps; {SMALL} links in chunks of {CHUNK}"
    draw.timeline(events, axes["t"], unit=unit, names=names, colors=colors)
    axes["t"].set_xticks(range(0, int(timeline.makespan(events)) + 1, 2))
    chunked, tree, loop = (where(table, part="length", method=name) for name in ("chunked", "blelloch", "linear"))
    tree, loop = tree.iloc[0], loop.iloc[0]
    for quantity, words, shade in (
        ("multiply_adds", f"multiply-adds, H = {SIZE}", COLORS["chunked"]),
        ("steps", "steps", COLORS["baseline"]),
    ):
        left.plot(chunked["length"], chunked[quantity] / loop[quantity], "o-", ms=4, color=shade, label=words)
        left.axhline(tree[quantity] / loop[quantity], ls="--", lw=1.1, color=shade)
    left.text(LENGTHS[0], 1.08, "the loop", va="bottom", size=9)
    left.set(xlabel="steps of a chunk", ylabel="time / the loop's")
    left.set_title(f"A worker for each chunk, n = {LINKS}", size=10)
    styles = {
        "blelloch": {"color": COLORS["blelloch"], "label": "levels (Blelloch)", "ms": 4},
        "chunked": {"color": COLORS["chunked"], "label": "chunks", "ms": 8, "mfc": "none"},
    }
    rows = where(table, part="workers")
    rows = rows.assign(speedup=loop["multiply_adds"] / rows["multiply_adds"])
    panels.curves(right, rows, "p", "speedup", "method", styles, marker="o")
    right.set(xlabel="workers, $p$", ylabel="speedup over the loop", xticks=10 ** np.arange(4))
    right.set_title(f"On p workers, n = {LINKS}, H = {SIZE}", size=10)
    for ax, place in (left, {"loc": "upper center", "bbox_to_anchor": (0.56, 1.0)}), (right, {"loc": "lower right"}):
        ax.axhline(1, color="black", lw=1.1)
        panels.log_scale(ax, shown="{x:,g}")
        ax.legend(**place)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""At H = 20, a scan in chunks overtakes the loop at about 20 workers, as levels do. Beyond about 100
    workers it falls behind levels. Costs are counted in multiply-adds. Above, numbers are positions that went into a
    product, 0 the gradient; blue products multiply matrices. Below left, each chunk has a worker (dashed: levels, a
    worker for each product). Below right, chunks have n / p steps.""",
    alt="""A timeline of four workers above two plots on logarithmic axes. While worker 0 goes through its chunk, two
    others multiply matrices; then the gradient crosses the chunks. Below left, time over chunk length is a valley.
    Below right, speedup over workers passes 1 at about 20, for chunks as for levels.""",
)
