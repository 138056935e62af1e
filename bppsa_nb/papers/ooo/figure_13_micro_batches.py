"""Figure 13 of ooo backprop: micro-batches in a pipeline, beside 1F1B and zero-bubble schedules."""

import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where

DRAWN, COUNTED = 8, 16  # layers
PANELS = {
    "GPipe": "(a) GPipe",
    "fast-forwarding": "(b) gradient fast-forwarding",
    "modulo, no flush": "(c) fast-forwarding, modulo allocation, no flush",
    "1F1B": "1F1B",
    "ZB-H1": "ZB-H1",
}


def measure(scale, rng, progress):
    """Schedule both sizes on four devices: one row per operation that is drawn, and one per size and schedule."""
    runs, rows = {}, []
    for layers in (DRAWN, COUNTED):
        for name, (policy, flush) in timelines.PIPELINES.items():
            runs[layers, name] = schedule.pipeline(schedule.Network.uniform(layers), 4, 4, policy, flush)
    for name in PANELS:
        rows += timelines.rows(runs[DRAWN, name], part="timeline", schedule=name, layers=DRAWN)
    for (layers, name), run in runs.items():
        run.check()
        row = {"part": "count", "schedule": name, "layers": layers, "policy": run.policy, "flush": float(run.flush)}
        row |= {"makespan": run.makespan, "bound": run.lower_bound, "iteration": timelines.iteration(run)}
        rows.append(row | {"idle": run.idle.max(), "peak_memory": run.peak_memory.max()})
    return pd.DataFrame(rows)


def facts(table):
    """Compare iterations over the larger number of layers with GPipe's, and count units of both."""
    counts = where(table, part="count").pivot(index="schedule", columns="layers", values=["makespan", "iteration"])
    iteration = counts["iteration"][COUNTED].loc[list(timelines.PIPELINES)]
    return {"units": counts["makespan"], "speedup": iteration["GPipe"] / iteration}


def plot(table):
    heights = [1] * len(PANELS) + [1.9]
    fig, (*axes, ax) = panels.subplots(len(heights), figsize=(9.0, 8.6), height_ratios=heights)
    drawn = where(table, part="timeline")
    timelines.stacked(axes, drawn, "schedule", PANELS, unit=f"unit times, {DRAWN} layers", gains=False)
    timelines.legend(fig, ("F", "δO", "δW"))
    speedup, paper = facts(table)["speedup"], {"fast-forwarding": 1.22, "modulo, no flush": 1.62}
    colors = [COLORS["matrix" if name in PANELS else "chunked"] for name in speedup.index]
    ax.barh(speedup.index, speedup, color=colors, height=0.7)
    for i, (name, ratio) in enumerate(speedup.items()):
        says = f"  ({paper[name]:.2f} in the paper)" if name in paper else ""
        ax.text(ratio + 0.01, i, f"{ratio:.2f}{says}", va="center", size=9)
    ax.axvline(1, color="black", lw=1.1)
    ax.invert_yaxis()
    ax.set(xlim=(0, 2.1), xlabel=f"speedup over GPipe, {COUNTED} layers")
    ax.grid(False)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""The paper's two speedups for 16 layers take two policies: {speedup[fast-forwarding]:.2f}× comes out with
    a flush, 1.62× ({speedup[modulo, no flush]:.3f}) without. (a) to (c) are the paper's; 1F1B and the zero-bubble
    schedules (Qi et al. 2023) stand beside them. Dark bars are drawn above. Simulated: four GPUs, four micro-batches A
    to D, every operation one unit, no cost of communication. With a flush, no GPU begins its gradients before its last
    forward pass. ZB-H2 may start its next iteration before all GPUs have ended: its bar counts the longest span of a
    GPU. It gains on ZB-H1 from five micro-batches on.""",
    alt="""Five timelines of four GPUs with forward passes, output gradients and weight gradients in three colors, and
    bars of eight speedups over GPipe. GPipe and 1F1B are the longest, {units[8][GPipe]} units, with gaps between
    gradients. Fast-forwarding takes {units[8][fast-forwarding]}, ZB-H1 {units[8][ZB-H1]}, and modulo allocation without
    a flush {units[8][modulo, no flush]}, with hardly a gap. Bars for 16 layers: 1F1B {speedup[1F1B]:.2f},
    fast-forwarding {speedup[fast-forwarding]:.2f} with a flush and {speedup[fast-forwarding, no flush]:.2f} without,
    modulo allocation {speedup[modulo]:.2f} and {speedup[modulo, no flush]:.2f}, zero-bubble ones
    {speedup[ZB-H1]:.2f}.""",
    claims=[
        Claim("§7.4, Figure 13", "Fast-forwarding over GPipe, 16 layers of equal costs.", "1.22×",
              "{speedup[fast-forwarding]:.3f}× with a flush ({units[16][GPipe]} / {units[16][fast-forwarding]} units), "
              "{speedup[fast-forwarding, no flush]:.3f}× without",
              lambda f: 1.22 <= f["speedup"]["fast-forwarding"] < 1.23),
        Claim("§7.4, Figure 13", "With modulo allocation besides.", "1.62×",
              "{speedup[modulo, no flush]:.3f}× without ({units[16][GPipe]} / {units[16][modulo, no flush]} units), "
              "{speedup[modulo]:.3f}× with a flush",
              lambda f: 1.62 <= f["speedup"]["modulo, no flush"] < 1.63),
    ],
)
