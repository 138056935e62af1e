"""Figure 5 of layer-parallel training: concurrent blocks, on CPU threads."""

import threading
import time

import numpy as np
import pandas as pd

from bppsa_nb import multigrid
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline

SIZES = {"quick": (64, 16, 15), "paper": (256, 50, 31)}  # layers, channels, runs
KERNEL, IMAGE, COARSENING = 7, 28, 4


def measure(scale, rng, progress):
    """Clock every block of the loop and of a cycle: a row per run, and per block of the runs of median length."""
    from bppsa_nb.machine.workers import THREADS

    depth, channels, runs = SIZES[scale]
    weights = rng.standard_normal((depth, channels, channels, KERNEL, KERNEL), np.float32)
    weights /= np.float32(KERNEL * np.sqrt(channels))
    net = multigrid.ResidualNetwork(weights, np.zeros((depth, channels), np.float32), 1 / depth, "relu")
    u0 = rng.standard_normal((1, channels, IMAGE, IMAGE), np.float32)
    methods = {"loop": {"levels": 1}, "cycle": {"cycles": 1, "coarsening": COARSENING}}
    turns = [{method: clock(net, u0, options) for method, options in methods.items()} for _ in range(2 + runs)]
    rows = []
    for method in methods:
        runs = sorted((turn[method] for turn in turns[2:]), key=timeline.makespan)  # the first two touch the memory
        for events in runs:
            end = timeline.makespan(events)
            row = {"part": "run", "method": method, "seconds": end, "blocks": len(events), "threads": THREADS}
            at_once = sum(event.duration for event in events) / end
            rows.append(row | {"at_once": at_once, "most_at_once": most_at_once(events)})
        for event in runs[len(runs) // 2]:
            kind = "loop" if method == "loop" else event.kind
            rows.append({"part": "event", "method": method} | event._replace(kind=kind)._asdict())
    return pd.DataFrame(rows)


def clock(net, u0, options):
    """Solve for the states with the compiled code, and clock every block: events, in seconds from the first.

    There is one per block and sweep, as they ended. Worker 0 is the calling thread. A single step by which the coarser
    level's right-hand side is made is a block, too.
    """
    clocked = Clocked(net.weights, net.biases, net.h, net.activation)
    multigrid.solve(clocked, u0, backend="cpu", **options)
    log = clocked.log
    workers = {thread: i for i, thread in enumerate(dict.fromkeys([threading.get_ident(), *[row[0] for row in log]]))}
    origin = min(row[1] for row in log)
    return [timeline.Event(workers[thread], a - origin, b - a, label, kind) for thread, a, b, label, kind in log]


class Clocked(multigrid.ResidualNetwork):
    """A network whose blocks are swept one by one, on all cores; `log` has each's thread, start, end, name and kind."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.log = []

    def forward_steps(self, u0, backend):
        """Return what computes and its sweep, as every network does."""
        from bppsa_nb.machine.workers import parallel_for

        ops, sweep = super().forward_steps(u0, backend)

        def clocked(points, source, bounds, layers, sizes):
            arrivals = np.empty((len(bounds) - 1, *points.shape[1:]), points.dtype)
            kind = f"level {round(float(np.log(sizes[0] / self.h) / np.log(COARSENING)))}"

            def go_through(first, last):
                for block in range(first, last):
                    start, here = time.perf_counter(), slice(*bounds[block : block + 2])
                    added, ends = None if source is None else source[here], bounds[block : block + 2] - bounds[block]
                    arrivals[block] = sweep(points[here], added, ends, layers[here], sizes[here])[0]
                    self.log.append((threading.get_ident(), start, time.perf_counter(), f"block {block}", kind))
                return True

            parallel_for(go_through, len(arrivals))
            return arrivals

        return ops, clocked


def most_at_once(events):
    """Return how many events are under way at the same time, at most."""
    changes = sorted([(event.start, 1) for event in events] + [(event.end, -1) for event in events])
    return int(np.cumsum([change for _, change in changes]).max(initial=0))


def facts(table):
    """Count the blocks that a cycle runs at a time, and compare its time with the loop's; medians over runs."""
    runs = where(table, part="run").groupby("method").median(numeric_only=True)
    at_once, most, threads = runs.loc["cycle", ["at_once", "most_at_once", "threads"]]
    ratio = runs["seconds"]["cycle"] / runs["seconds"]["loop"]
    return {"at_once": at_once, "most": most, "threads": threads, "ratio": ratio}


def plot(table):
    runs = where(table, part="run").groupby("method", sort=False)[["seconds", "at_once", "most_at_once"]].median()
    events = where(table, part="event").astype({"worker": int})
    events[["start", "duration"]] *= 1e3
    roles = "chunked", "vector", "identity", "truncated", "baseline"
    colors = {kind: COLORS[role] for kind, role in zip(sorted(events["kind"].unique()), roles, strict=False)}
    threads = [f"thread {i}" for i in range(1 + events["worker"].max())]
    style = {"worker": threads, "colors": colors, "unit": "", "legend": False}
    style["until"] = 1.02 * (events["start"] + events["duration"]).max()
    fig, axes = panels.subplots(2, figsize=(9.4, 3.4), sharex=True)
    for ax, (method, run) in zip(axes, runs.iterrows(), strict=True):
        bars = timelines.events(where(events, method=method), label="")
        draw.timeline(bars, ax, **style)
        name = "The loop" if method == "loop" else f"A cycle: {len(bars)} blocks"
        ax.set_title(f"{name}, {1e3 * run['seconds']:.1f} ms", loc="left", size=10)
        words = f"blocks at a time: {run['at_once']:.2f} on average, {run['most_at_once']:.0f} at most"
        ax.set_title(words, loc="right", size=9, weight="normal")
    axes[-1].set_xlabel("ms on CPU threads")
    panels.legend(fig, panels.patches(colors))
    return fig


FIGURE = Figure(
    origin="timed", backend="cpu",
    caption="""A V-cycle runs {at_once:.1f} blocks of layers at a time on {threads} threads, and takes {ratio:.1f} times
    as long as the loop over the same layers. Each bar is one block on the thread that took it, by the clock, in the run
    of median length. Above, the loop, which a single image keeps on one thread. The coarsest level is one block, its
    last bar; the shorter ones, as the first of level 1, are single steps for right-hand sides. Measured on CPU threads,
    not on CUDA streams: FCF-relaxation, c = 4, over residual convolutions with 7 × 7 kernels, one image of 28 × 28
    pixels. The paper shows up to five kernels at once on a V100, where registers are the limit (published, not measured
    here).""",
    alt="""Two timelines, one lane per CPU thread. The loop is one long bar on the first thread. The cycle shares out
    its blocks: bars of the finest level, twice in a row, then fewer bars of coarser levels, very short ones first. Four
    very short bars and a longer one are of the coarsest level; bars of finer levels end it.""",
    claims=[
        Claim("§IV-B, Figure 5", "Blocks of layers run at once on one GPU; registers allow no more.",
              "5 kernels at once (V100)", "on {threads} CPU threads: {most} blocks at once at most, {at_once:.1f} on "
              "average", lambda f: compare(f["most"], 5), gpu=True),
    ],
)
