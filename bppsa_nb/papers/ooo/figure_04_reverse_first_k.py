"""Figure 4 of ooo backprop: which weight gradients to send, and to compute, first; an example of our own."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.figures import COLORS

FORWARD, OUTPUT_GRAD, WEIGHT_GRAD, SYNC = [2, 2, 1, 1, 1], [1, 1, 1, 1, 1], [2, 2, 2, 1, 1], [2, 3, 1, 4, 4]
SCHEDULES = {
    "(a) in layer order": ("fifo", None),
    "(b) low layers sent first": ("priority", None),
    "(c) reverse first-3": ("reverse_first_k", 3),
}


def example():
    """Make the example's network."""
    return schedule.Network(FORWARD, OUTPUT_GRAD, WEIGHT_GRAD, sync=SYNC)


def measure(scale, rng, progress):
    """Schedule the example: one row per operation of three schedules, one per k, and the optimum."""
    network, rows = example(), []
    for title, (policy, k) in SCHEDULES.items():
        timeline = schedule.data_parallel(network, policy, k=k)
        rows += timelines.rows(timeline, idle=True, part=title, makespan=timeline.makespan)
    for k in range(network.layers + 1):
        timeline = schedule.data_parallel(network, "reverse_first_k", k=k)
        rows.append({"part": "k", "k": k, "makespan": timeline.makespan})
    best = schedule.optimum(schedule.data_parallel(network, "fifo"))
    best.check()
    rows.append({"part": "optimum", "makespan": best.makespan})
    rows.append({"part": "lower bound", "makespan": best.lower_bound})
    return pd.DataFrame(rows)


def plot(table):
    """Draw the timelines, and the makespan over k."""
    fig = pyplot.figure(figsize=(9.6, 4.9), layout="constrained")
    axes = fig.subplot_mosaic([[title, "k"] for title in SCHEDULES], width_ratios=(3.4, 1))
    longest = table["makespan"].max()
    for title in SCHEDULES:
        timelines.compare(axes[title], table[table["part"] == title], title, longest, thin=[1])
        axes[title].set_xticks(range(0, int(longest) + 1, 5))
    axes[title].set_xlabel("unit times")
    for title in list(SCHEDULES)[:-1]:
        axes[title].tick_params(labelbottom=False)
    timelines.legend(fig, ("δO", "δW", "S[δW]", "F", "idle"))
    over_k = table[table["part"] == "k"]
    ax = axes["k"]
    ax.bar(over_k["k"], over_k["makespan"], color=COLORS["chunked"])
    for k, makespan in zip(over_k["k"], over_k["makespan"], strict=True):
        ax.text(k, makespan + 0.15, f"{makespan:g}", ha="center", size=9)
    best = table.loc[table["part"] == "optimum", "makespan"].iloc[0]
    ax.axhline(best, color="black", ls="--", lw=1.1)
    ax.annotate("optimum", (1, best), (4, 0), ("axes fraction", "data"), "offset points", va="center", size=9)
    ax.set(xlabel="k", ylim=(0, longest + 1), title="makespan over k")
    ax.title.set(size=10, ha="center")
    ax.set_xticks(over_k["k"])
    ax.grid(False)
    return fig
