"""Figure 5 of layer-parallel training: blocks of layers that run at the same time, measured on CPU threads."""

import threading
import time

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import multigrid
from bppsa_nb.papers import panels, timelines
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import Event

SIZES = {"quick": (64, 16, 15), "paper": (256, 50, 31)}  # layers, channels, runs
STYLES = {
    "level 0": ("blocks of the finest level", "#56B4E9"),
    "level 1": ("level 1", "#E69F00"),
    "level 2": ("level 2", "#009E73"),
    "level 3": ("level 3", "#CC79A7"),
    "loop": ("the loop over layers", "#999999"),
}
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
        runs = [turn[method] for turn in turns[2:]]  # the first two touch the memory
        ends = [timeline.makespan(events) for events in runs]
        for events, end in zip(runs, ends, strict=True):
            row = {"part": "run", "method": method, "seconds": end, "blocks": len(events), "threads": THREADS}
            at_once = sum(event.duration for event in events) / end
            rows.append(row | {"at_once": at_once, "most_at_once": most_at_once(events)})
        for event in runs[int(np.argsort(ends)[len(ends) // 2])]:
            kind = "loop" if method == "loop" else event.kind
            rows.append({"part": "event", "method": method} | event._replace(kind=kind)._asdict())
    table = pd.DataFrame(rows)
    table.attrs = {"data": "synthetic", "backend": "cpu", "layers": depth, "channels": channels}
    return table


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
    return [Event(workers[thread], a - origin, b - a, label, kind) for thread, a, b, label, kind in log]


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


def values(table):
    """Return what words need beside the table: a cycle's median time over the loop's, threads, and blocks at a time."""
    runs = table[table["part"] == "run"]
    medians = runs.groupby("method")[["seconds", "at_once"]].median()
    ratio = medians["seconds"]["cycle"] / medians["seconds"]["loop"]
    return {"ratio": ratio, "threads": int(runs["threads"].iloc[0]), "at_once": medians["at_once"]["cycle"]}


def plot(table):
    """Draw the loop and the cycle, one below the other."""
    runs = table[table["part"] == "run"].groupby("method", sort=False)[["seconds", "at_once", "most_at_once"]].median()
    events = table[table["part"] == "event"].astype({"worker": int})
    fig, axes = pyplot.subplots(2, figsize=(9.4, 3.4), layout="constrained", sharex=True)
    lanes = 1 + events["worker"].max()
    colors = {kind: color for kind, (_, color) in STYLES.items() if kind in set(events["kind"])}
    for ax, (method, run) in zip(axes, runs.iterrows(), strict=True):
        rows = events[events["method"] == method]
        bars = timelines.events(rows.assign(start=1e3 * rows["start"], duration=1e3 * rows["duration"]), label="")
        names = [f"thread {i}" for i in range(lanes)]
        until = 1.02 * 1e3 * (events["start"] + events["duration"]).max()
        draw.timeline(bars, ax, colors=colors, worker=names, unit="", until=until, legend=False)
        name = "The loop" if method == "loop" else f"A cycle: {len(rows)} blocks"
        ax.set_title(f"{name}, {1e3 * run['seconds']:.1f} ms", loc="left", size=10)
        words = f"blocks at a time: {run['at_once']:.2f} on average, {run['most_at_once']:.0f} at most"
        ax.set_title(words, loc="right", size=9, weight="normal")
    axes[-1].set_xlabel("ms on CPU threads")
    panels.legend(fig, panels.patches({STYLES[kind][0]: color for kind, color in colors.items()}))
    return fig
