"""One network, one cost model, one picture: back-propagation, a pipeline, multigrid and the scan as timelines."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import timelines
from bppsa_nb.papers.multigrid import methods
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline

DEPTH, WORKERS, WIDTH, BATCH = 128, 16, 8, 32
COLORS = draw.OPERATION_COLORS | {"F coarse": "#0072B2", "δO coarse": "#D55E00", "J": "#CC79A7"}
NAMES = {  # timeline, time and worker at which a kind is named
    "F": ("forward F", 0, 50, 3),
    "δO": ("backward δO", 0, 170, 5),
    "δW": ("weight gradient δW", 0, 215, 12),
    "F coarse": ("coarse levels,\nforward", 2, 128, 4),
    "δO coarse": ("coarse levels,\nbackward", 2, 170, 4),
    "J": ("Jacobians made,\nmultiplied", 4, 232, 4),
}
COUNTS = {"steps": "steps in\na row", "work": "times\nthe work", "memory": "memory,\nstates"}


def measure(scale, rng, progress):
    """Schedule all methods on the same workers: one row for each with its counts, and one per event."""
    split = methods.best_split(DEPTH, WORKERS, BATCH)
    error = methods.errors(DEPTH, WIDTH, BATCH, (1, 2), rng)
    chosen = {
        "Back-propagation, layers on 16 workers": (methods.pipeline(DEPTH, WORKERS), 0.0),
        f"Pipeline of {split} micro-batches": (methods.pipeline(DEPTH, WORKERS, split), 0.0),
        "Multigrid, 1 cycle": (methods.layer_parallel(DEPTH, WORKERS, 1), error["layers", 1]),
        "Multigrid, 2 cycles": (methods.layer_parallel(DEPTH, WORKERS, 2), error["layers", 2]),
        "Scan of Jacobians": (methods.scan(DEPTH, WORKERS, WIDTH), error["scan", 0]),
    }
    rows = []
    for name, (step, off) in chosen.items():
        timeline.check(step.events, step.needs)
        counts = {"time": step.time, "backward": step.backward, "steps": step.steps}
        counts |= {"work": step.work / (3 * DEPTH), "memory": step.memory, "error": off}
        rows.append({"part": "road", "road": name} | counts)
        drawn = [event for event in step.events if event.worker < WORKERS and event.duration]
        rows += [{"part": "event", "road": name} | event._asdict() | {"label": "-"} for event in drawn]
    return pd.DataFrame(rows)


def plot(table):
    """Draw the timelines below each other, on one axis of time, and what else a method takes beside them."""
    counts = table[table["part"] == "road"].set_index("road")
    events = table[table["part"] == "event"].astype({"worker": int})
    fig, axes = pyplot.subplots(len(counts), figsize=(10.4, 8.0), layout="constrained", sharex=True)
    style = {"colors": COLORS, "unit": "", "until": 1.02 * counts["time"].max(), "legend": False}
    for ax, (name, road) in zip(axes, counts.iterrows(), strict=True):
        draw.timeline(timelines.events(events[events["road"] == name], label=""), ax, **style)
        ax.set_yticks([])
        ax.axvline(road["time"], color="black", lw=1.0)
        off = "exact" if road["error"] < 1e-12 else f"off by {100 * road['error']:.1g} %"
        ax.set_title(f"{name}: done at {road['time']:.1f}, gradient {off}", loc="left", size=10)
        for place, (count, words) in enumerate(COUNTS.items()):
            column = {"transform": ax.transAxes, "ha": "center", "size": 9.5}
            ax.text(1.05 + 0.09 * place, 0.4, f"{road[count]:.{2 if road[count] < 10 else 3}g}", **column)
            if ax is axes[0]:
                ax.text(1.05 + 0.09 * place, 1.06, words, **column)
    for kind, (words, row, time, worker) in NAMES.items():
        axes[row].text(time, worker, words, color=COLORS[kind], weight="bold", size=9.5, va="center")
    axes[-1].set_xlabel(f"time in layer steps; on one worker, the step takes {3 * DEPTH}")
    return fig
