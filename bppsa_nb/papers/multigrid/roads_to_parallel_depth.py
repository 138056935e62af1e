"""One network, one cost model, one picture: back-propagation, a pipeline, multigrid and the scan as timelines."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.multigrid import methods
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline

DEPTH, WORKERS, WIDTH, BATCH = 128, 16, 8, 32
STYLES = {
    "F": ("forward F", draw.OPERATION_COLORS["F"]),
    "F coarse": ("forward, coarse levels", "#0072B2"),
    "δO": ("backward δO", draw.OPERATION_COLORS["δO"]),
    "δO coarse": ("backward, coarse levels", "#D55E00"),
    "J": ("Jacobians made, multiplied", "#CC79A7"),
    "δW": ("weight gradient δW", draw.OPERATION_COLORS["δW"]),
}


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
    """Draw the timelines below each other, on one axis of time."""
    counts = table[table["part"] == "road"].set_index("road")
    events = table[table["part"] == "event"].astype({"worker": int})
    fig, axes = pyplot.subplots(len(counts), figsize=(9.4, 8.0), layout="constrained", sharex=True)
    colors = {kind: color for kind, (_, color) in STYLES.items()}
    style = {"colors": colors, "unit": "", "until": 1.02 * counts["time"].max(), "legend": False}
    for ax, (name, road) in zip(axes, counts.iterrows(), strict=True):
        draw.timeline(timelines.events(events[events["road"] == name], label=""), ax, **style)
        ax.set_yticks([])
        ax.axvline(road["time"], color="black", lw=1.0)
        ax.set_title(f"{name}: {road['time']:.1f}", loc="left", size=10)
        off = "exact" if road["error"] < 1e-12 else f"gradient off by {100 * road['error']:.1g} %"
        words = f"{road['steps']:.0f} steps in a row · work × {road['work']:.2g} · memory {road['memory']:.2g} · {off}"
        ax.set_title(words, loc="right", size=9, weight="normal")
    axes[-1].set_xlabel(f"time in layer steps; on one worker, the step takes {3 * DEPTH}")
    panels.legend(fig, panels.patches(dict(STYLES.values())), fontsize=8.5, columnspacing=1.2)
    return fig
