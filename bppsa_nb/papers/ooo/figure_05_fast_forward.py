"""Figure 5 of ooo backprop: two devices, output gradients first, and layers dealt out one by one."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines

LAYERS, DEVICES = 8, 2
POLICIES = {
    "conventional": "(a) conventional",
    "fast_forward": "(b) gradient fast-forwarding",
    "modulo": "(c) fast-forwarding and modulo allocation",
}


def measure(scale, rng, progress):
    """Schedule the example: one row per operation."""
    network, rows = schedule.Network.uniform(LAYERS), []
    for policy in POLICIES:
        timeline = schedule.pipeline(network, DEVICES, policy=policy)
        counts = {"makespan": timeline.makespan, "lower_bound": timeline.lower_bound}
        counts["peak_memory"] = timeline.peak_memory.max()  # inputs and output gradients, in tensors
        rows += timelines.rows(timeline, policy=policy, **counts)
    return pd.DataFrame(rows)


def plot(table):
    """Draw the timelines over one axis of time."""
    fig, axes = pyplot.subplots(len(POLICIES), figsize=(7.6, 4.4), sharex=True, layout="constrained")
    longest = table["makespan"].max()
    for ax, (policy, title) in zip(axes, POLICIES.items(), strict=True):
        timelines.compare(ax, table[table["policy"] == policy], title, longest)
    axes[-1].set_xlabel("unit times")
    timelines.legend(fig, ("F", "δO", "δW"))
    return fig
