"""Figure 5 of ooo backprop: gradient fast-forwarding and modulo allocation."""

import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import Claim, Figure, where

POLICIES = {
    "conventional": "(a) conventional",
    "fast_forward": "(b) gradient fast-forwarding",
    "modulo": "(c) fast-forwarding and modulo allocation",
}


def measure(scale, rng, progress):
    """Schedule eight equal layers on two devices: one row per operation."""
    rows = []
    for policy in POLICIES:
        timeline = schedule.pipeline(schedule.Network.uniform(8), 2, policy=policy)
        counts = {"makespan": timeline.makespan, "lower_bound": timeline.lower_bound}
        counts["peak_memory"] = timeline.peak_memory.max()  # inputs and output gradients, in tensors
        rows += timelines.rows(timeline, policy=policy, **counts)
    return pd.DataFrame(rows)


def facts(table):
    """Compare the policies' units and tensors; find how busy each device is in the backward pass of the last."""
    by_policy = table.groupby("policy").first()
    units = by_policy["makespan"]
    backward = where(table, policy="modulo").query("kind != 'F'")
    busy = backward.groupby("lane")["duration"].sum() / (units["modulo"] - backward["start"].min())
    return {
        "units": units,
        "gain": units["conventional"] / units,
        "tensors": by_policy["peak_memory"],
        "busy": busy,
        "together": busy.mean(),
    }


def plot(table):
    fig, axes = panels.subplots(len(POLICIES), figsize=(7.6, 4.4))
    timelines.stacked(axes, table, "policy", POLICIES)
    timelines.legend(fig, ("F", "δO", "δW"))
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""Output gradients first let two GPUs work at the same time, and layers dealt out one by one keep both
    busy. (a) One GPU works at a time. (b) With its output gradients first, GPU 2 hands over early, and computes weight
    gradients while GPU 1 goes on. (c) Odd layers are on GPU 1, even ones on GPU 2: one computes a weight gradient while
    the other computes the next output gradient. Simulated: eight layers, every operation one unit, no cost of
    communication, no output gradient of layer 1.""",
    alt="""Three timelines of two GPUs, forward passes first, then output and weight gradients in two colors.
    Conventional: GPU 2 does its layers' gradients in turns, then GPU 1, {units[conventional]} units in all.
    Fast-forwarding: GPU 2 does four output gradients in a row, and its weight gradients beside the output gradients of
    GPU 1, {units[fast_forward]} units. Modulo allocation: layers alternate between the GPUs, which both work nearly all
    of the backward pass, {units[modulo]} units.""",
    claims=[
        Claim("§5.2, Figure 5", "Fast-forwarding speeds up 8 layers on 2 GPUs.", "23 to 19 unit times, 21 %",
              "{units[conventional]} and {units[fast_forward]} units: {gain[fast_forward]:×}",
              lambda f: f["units"][["conventional", "fast_forward"]].tolist() == [23, 19]),
        Claim("§5.2, Figure 5", "With modulo allocation besides.", "16 unit times, 1.44×",
              "{units[modulo]} units: {gain[modulo]:×}",
              lambda f: f["units"][["conventional", "modulo"]].tolist() == [23, 16]),
        Claim("§5.2, Figure 5", "Both GPUs are then utilized in nearly all of the backward pass.", "more than 90 %",
              "{busy[GPU 1]:.0%} and {busy[GPU 2]:.0%}, {together:.0%} together", lambda f: f["busy"].min() > 0.9),
        Claim("§5.2", "Modulo allocation removes the additional memory of fast-forwarding.",
              "one output gradient at a time",
              "inputs and output gradients at a time: {tensors[conventional]}; with fast-forwarding "
              "{tensors[fast_forward]}, with both {tensors[modulo]}",
              lambda f: f["tensors"]["modulo"] <= f["tensors"]["conventional"]),
    ],
)
