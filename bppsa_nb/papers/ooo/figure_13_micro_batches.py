"""Figure 13 of ooo backprop: pipelines of micro-batches, with and without a flush, and what came after them."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where

DRAWN, COUNTED, DEVICES, BATCHES = 8, 16, 4, 4
SCHEDULES = {  # name: policy, flush
    "GPipe": ("gpipe", True),
    "1F1B": ("1f1b", True),
    "fast-forwarding": ("fast_forward", True),
    "fast-forwarding, no flush": ("fast_forward", False),
    "modulo": ("modulo", True),
    "modulo, no flush": ("modulo", False),
    "ZB-H1": ("zero_bubble", True),
    "ZB-H2": ("zero_bubble", False),
}
PANELS = {
    "GPipe": "(a) GPipe",
    "fast-forwarding": "(b) gradient fast-forwarding",
    "modulo, no flush": "(c) fast-forwarding, modulo allocation, no flush",
    "1F1B": "1F1B",
    "ZB-H1": "ZB-H1",
}


def run(name, layers):
    """Schedule the example by one of `SCHEDULES`."""
    policy, flush = SCHEDULES[name]
    return schedule.pipeline(schedule.Network.uniform(layers), DEVICES, BATCHES, policy, flush)


def measure(scale, rng, progress):
    """Schedule the small example, one row per operation, and count both: one row per schedule."""
    rows = []
    for name in PANELS:
        rows += timelines.rows(run(name, DRAWN), part="timeline", schedule=name, layers=DRAWN)
    for layers in (DRAWN, COUNTED):
        for name, (policy, flush) in SCHEDULES.items():
            timeline = run(name, layers)
            timeline.check()
            row = {"part": "count", "schedule": name, "layers": layers, "policy": policy, "flush": float(flush)}
            row |= {"makespan": timeline.makespan, "bound": timeline.lower_bound}
            row |= {"iteration": timelines.iteration(timeline)}
            rows.append(row | {"idle": timeline.idle.max(), "peak_memory": timeline.peak_memory.max()})
    return pd.DataFrame(rows)


def speedups(table, layers=COUNTED):
    """Divide GPipe's iteration by each one's: a Series by schedule."""
    counts = where(table, part="count", layers=layers).set_index("schedule")["iteration"]
    return counts["GPipe"] / counts


def plot(table):
    """Draw the timelines of the small example, and the speedups of the large one."""
    heights = [1] * len(PANELS) + [1.9]
    fig, axes = pyplot.subplots(len(heights), figsize=(9.0, 8.6), height_ratios=heights, layout="constrained")
    drawn = table[table["part"] == "timeline"].astype({"worker": int})
    longest = (drawn["start"] + drawn["duration"]).max()
    for ax, (name, title) in zip(axes, PANELS.items(), strict=False):
        events = drawn[drawn["schedule"] == name]
        timelines.plot(ax, events, legend=False, unit="", until=longest)
        end = (events["start"] + events["duration"]).max()
        ax.set_title(f"{title}: {end:g} units", loc="left", size=10)
        ax.tick_params(labelbottom=False)
    ax.tick_params(labelbottom=True)
    ax.set_xlabel("unit times, 8 layers")
    timelines.legend(fig, ("F", "δO", "δW"))
    _bars(axes[-1], speedups(table))
    return fig


def _bars(ax, found):
    paper = {"fast-forwarding": 1.22, "modulo, no flush": 1.62}
    colors = [COLORS["matrix" if name in PANELS else "chunked"] for name in found.index]
    ax.barh(found.index, found, color=colors, height=0.7)
    for i, (name, ratio) in enumerate(found.items()):
        says = f"  ({paper[name]:.2f} in the paper)" if name in paper else ""
        ax.text(ratio + 0.01, i, f"{ratio:.2f}{says}", va="center", size=9)
    ax.axvline(1, color="black", lw=1.1)
    ax.invert_yaxis()
    ax.set(xlim=(0, 2.1), xlabel="speedup over GPipe, 16 layers")
    ax.grid(False)
