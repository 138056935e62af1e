"""Figures 12 and 14 of ooo backprop, simulated: pipelines of transformers, over interconnects and GPUs."""

import numpy as np
import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where
from bppsa_nb.schedule.policies import allocation

HIDDEN, LENGTH, SEQUENCES, SPEED = 1024, 128, 24, 10e12
FLOPS = 24 * SEQUENCES * LENGTH * HIDDEN**2 + 4 * SEQUENCES * LENGTH**2 * HIDDEN  # of a layer's forward pass
MESSAGE = 4 * SEQUENCES * LENGTH * HIDDEN  # bytes: a layer's output
HEADS = 16
# A layer keeps, in outputs of a layer: inputs of its matrices (queries, keys and values; projection; MLP), gradients
# at their outputs, and for its δO alone two inputs of layer norms, queries, keys, values, probabilities of attention
# before and after dropout, and the input of GELU.
INPUTS, GRADIENTS = 1 + 1 + 1 + 4, 3 + 1 + 4 + 1
INNER = 2 + 3 + 2 * HEADS * LENGTH / HIDDEN + 4
WEIGHTS = 4 * 12 * HIDDEN**2  # bytes
LAYERS, DEVICES, BATCHES = 24, 4, 4
INTERCONNECTS = {"NVLink, 50 GB/s": 50e9, "PCIe, 16 GB/s": 16e9, "Ethernet, 1 GB/s": 1e9}
FAST = "NVLink, 50 GB/s"
DEEP, MANY, NODE, BETWEEN = 48, 32, 8, 25e9 / 8
GPUS = (4, 8, 12, 16, 24, 32)
SYSTEMS = {  # name: policy, flush, color
    "model parallelism": ("conventional", True, COLORS["baseline"]),
    "GPipe": ("gpipe", True, COLORS["pipeline"]),
    "1F1B": ("1f1b", True, COLORS["truncated"]),
    "OOO-Pipe1": ("fast_forward", True, COLORS["chunked"]),
    "OOO-Pipe2": ("modulo", False, COLORS["matrix"]),
    "ZB-H1": ("zero_bubble", True, COLORS["identity"]),
    "ZB-H2": ("zero_bubble", False, "#F0E442"),
    "PipeDream": ("1f1b", False, COLORS["linear"]),
}
KEPT = ("GPipe", "1F1B", "OOO-Pipe1", "OOO-Pipe2", "ZB-H1", "ZB-H2")
COMPARED = {"GPipe": "o", "OOO-Pipe1": "s", "OOO-Pipe2": "^", "ZB-H1": "v", "PipeDream": "D"}


def network(layers, inner=INNER):
    """Make equal layers; times are seconds, memory is in bytes. `inner` is what a δO alone reads, in outputs."""
    cost = np.full(layers, FLOPS / SPEED)
    memory = schedule.Memory(INPUTS * MESSAGE, GRADIENTS * MESSAGE, WEIGHTS, inner * MESSAGE)
    return schedule.Network(cost, cost, cost, memory=memory)


def boundaries(net, policy, devices, inside, between):
    """Compute the seconds of each boundary between layers; bandwidths are those in nodes and between them."""
    node = allocation(net, devices, policy) // NODE
    times = [schedule.transfer_time(MESSAGE, bandwidth) for bandwidth in (inside, between)]
    return np.where(node[1:] == node[:-1], *times)


def iteration(name, net, devices, batches, inside, between):
    """Simulate an iteration of one of `SYSTEMS`: a row; of PipeDream, without bytes and lower bound.

    Its pace is steady: its seconds are found from how much longer many more micro-batches take.
    """
    policy, flush, _ = SYSTEMS[name]
    cost = boundaries(net, policy, devices, inside, between)

    def run(batches):
        timeline = schedule.pipeline(net, devices, batches, policy, flush, cost)
        timeline.check()
        return timeline

    row = {"system": name, "gpus": devices, "alone": batches * schedule.pipeline(net, 1).makespan}
    if name == "PipeDream":
        long = 4 * max(batches, devices)
        row["seconds"] = batches * (run(2 * long).makespan - run(long).makespan) / long
    else:
        timeline = run(batches)
        row |= {"seconds": timelines.iteration(timeline), "lower_bound": timeline.lower_bound}
        row["bytes"] = timeline.peak_memory.max() + 3 * WEIGHTS * net.layers / devices
    return row | {"speedup": row["alone"] / row["seconds"]}


def measure(scale, rng, progress):
    """Simulate all: a row per system and interconnect, and one per system and number of GPUs."""
    rows, net, bare, deep = [], network(LAYERS), network(LAYERS, inner=0), network(DEEP)
    for interconnect, bandwidth in INTERCONNECTS.items():
        for name in SYSTEMS:
            row = iteration(name, net, DEVICES, BATCHES, bandwidth, bandwidth)
            if name in KEPT:
                row["bytes_bare"] = iteration(name, bare, DEVICES, BATCHES, bandwidth, bandwidth)["bytes"]
            rows.append(row | {"part": "interconnect", "interconnect": interconnect})
    for gpus in GPUS:
        for name in COMPARED:
            rows.append(iteration(name, deep, gpus, MANY, INTERCONNECTS[FAST], BETWEEN) | {"part": "gpus"})
    return pd.DataFrame(rows)


def facts(table):
    """Compare throughput with one GPU's, GPipe's and PipeDream's, and memory on the fullest of 4 GPUs."""
    near, far = where(table, part="interconnect"), where(table, part="gpus")
    near = near.pivot(index="interconnect", columns="system", values="speedup").loc[list(INTERCONNECTS)]
    far = far.pivot(index="gpus", columns="system", values="speedup")
    every = pd.concat([near, far])
    held = where(table, interconnect=FAST).set_index("system")[["bytes", "bytes_bare"]].dropna()
    return {
        "near": near, "far": far, "gpus": far.index, "over": near.div(near["GPipe"], axis=0),
        "far_over": far["OOO-Pipe2"] / far["GPipe"], "leads": every["OOO-Pipe2"] / every["GPipe"],
        "pace": every["OOO-Pipe2"] / every["PipeDream"], "held": held, "more": held / held.loc["GPipe"] - 1,
    }


def plot(table):
    fig, axes = panels.subplots(2, 2, figsize=(9.6, 6.6))
    (systems, gpus), (interconnects, memory) = axes
    found, colors = facts(table), {name: color for name, (_, _, color) in SYSTEMS.items()}
    bars = systems.barh(list(SYSTEMS), found["near"].loc[FAST, list(SYSTEMS)], color=colors.values(), height=0.75)
    systems.bar_label(bars, fmt="{:.2f}", padding=3, size=9)
    systems.set(xlabel="throughput / one GPU's", xlim=(0, DEVICES + 0.4))
    places = np.arange(len(INTERCONNECTS))
    for i, name in enumerate(COMPARED):
        shift = 0.16 * (i - (len(COMPARED) - 1) / 2)
        interconnects.bar(places + shift, found["near"][name], 0.16, color=colors[name], label=name)
    interconnects.set_xticks(places, [name.replace(", ", "\n") for name in INTERCONNECTS])
    interconnects.set(ylabel="throughput / one GPU's", ylim=(0, DEVICES + 0.4))
    interconnects.grid(False, axis="x")
    styles = {name: {"marker": marker, "color": colors[name], "label": name} for name, marker in COMPARED.items()}
    panels.curves(gpus, where(table, part="gpus"), "gpus", "speedup", "system", styles, ms=6)
    gpus.plot(GPUS, GPUS, "--", color="black", lw=1.1, label="as many as GPUs")
    gpus.set(xlabel="GPUs", ylabel="throughput / one GPU's", ylim=(0, None), xticks=GPUS)
    gpus.legend(loc="upper left")
    held = found["held"] / 2**30
    memory.barh(held.index, held["bytes"], color=[colors[name] for name in KEPT], height=0.75)
    memory.barh(held.index, held["bytes_bare"], color="white", alpha=0.55, height=0.35)
    for i, (full, bare) in enumerate(held.to_numpy()):
        memory.text(full + 0.08, i, f"{full:.2f}", va="center", size=9)
        memory.text(bare - 0.08, i, f"{bare:.2f}", va="center", ha="right", size=8)
    memory.set(xlabel="GiB on the fullest of 4 GPUs", xlim=(0, 1.15 * held["bytes"].max()))
    for ax in (systems, memory):
        ax.invert_yaxis()
        ax.grid(False)
    titles = "4 GPUs, 50 GB/s", "48 layers, nodes of 8 GPUs", "4 GPUs, three interconnects", "memory, 4 GPUs"
    for ax, letter, title in zip(axes.flat, "acbd", titles, strict=True):
        ax.set_title(f"({letter}) {title}", loc="left", size=10)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""OOO-Pipe2 is {over[OOO-Pipe2][NVLink, 50 GB/s]:.2f}, {over[OOO-Pipe2][PCIe, 16 GB/s]:.2f} and
    {over[OOO-Pipe2][Ethernet, 1 GB/s]:.2f} times as fast as GPipe in (b); the paper measured 1.70, 1.58 and 1.48.
    Simulated from stated costs, not measured: equal transformer layers, hidden size 1024, micro-batches of 24 sequences
    of 128, 10 TFLOP/s on each GPU, F = δO = δW = 7.9 ms; 12.6 MB cross each boundary. (a, b) 24 layers, 4
    micro-batches; (c) 48 layers, 32 micro-batches, 50 GB/s in a node, 25 Gb/s between. OOO-Pipe1: fast-forwarding with
    a flush; OOO-Pipe2: modulo allocation without; PipeDream (stale weights): its steady pace; ZB-H2: the longest span
    of a GPU. (d) The fullest GPU of (a): weights, their gradients, Adam's averages, and for each layer and micro-batch,
    in outputs of a layer, 7 inputs of matrices; before its δO also 13 that δO alone reads, and then, until its δW, 9
    gradients. Pale: without the 13.""",
    alt="""Three plots of throughput relative to one GPU, and one of memory. Bars on 4 GPUs at 50 GB/s: model
    parallelism {near[model parallelism][NVLink, 50 GB/s]:.2f}, GPipe and 1F1B {near[GPipe][NVLink, 50 GB/s]:.2f},
    OOO-Pipe1 {near[OOO-Pipe1][NVLink, 50 GB/s]:.2f}, OOO-Pipe2 {near[OOO-Pipe2][NVLink, 50 GB/s]:.2f}, both zero-bubble
    schedules {near[ZB-H1][NVLink, 50 GB/s]:.2f}, PipeDream {near[PipeDream][NVLink, 50 GB/s]:.2f}. Bars for three
    interconnects: at 16 GB/s nearly the same; at 1 GB/s OOO-Pipe2 falls to {near[OOO-Pipe2][Ethernet, 1 GB/s]:.1f},
    just above GPipe. Lines over 4 to 32 GPUs: PipeDream and OOO-Pipe2 are highest, {far[PipeDream][32]:.0f} and
    {far[OOO-Pipe2][32]:.0f} on 32; GPipe stays at {far[GPipe][32]:.0f} from 24 GPUs on. Memory on 4 GPUs:
    {held[bytes]:.1f GiB}; paler bars are {held[bytes_bare][GPipe]:.1f GiB} for GPipe and 1F1B,
    {held[bytes_bare][OOO-Pipe2]:.1f GiB} for OOO-Pipe2, {held[bytes_bare][OOO-Pipe1]:.1f GiB} for OOO-Pipe1 and
    zero-bubble ones.""",
    claims=[
        Claim("§7.4", "Fast-forwarding needs little more memory than GPipe.", "11 % at most (4 × V100)",
              "counted from stated sizes, BERT-24 on 4 GPUs, the fullest: OOO-Pipe1 {held[bytes][OOO-Pipe1]:.2f GiB}, "
              "GPipe {held[bytes][GPipe]:.2f GiB}; if layers kept nothing for their δO alone, "
              "{more[bytes_bare][OOO-Pipe1]:.0%} more", lambda f: f["more"]["bytes"]["OOO-Pipe1"] <= 0.11),
        Claim("§7.4", "With modulo allocation, as much memory as GPipe.", "the same (4 × V100)",
              "counted from stated sizes, BERT-24 on 4 GPUs, the fullest: OOO-Pipe2 {held[bytes][OOO-Pipe2]:.2f GiB}, "
              "GPipe {held[bytes][GPipe]:.2f GiB}; if layers kept nothing for their δO alone, "
              "{more[bytes_bare][OOO-Pipe2]:.0%} more", lambda f: f["more"]["bytes"]["OOO-Pipe2"] <= 0),
        Claim("§7.4, Figure 12a", "OOO-Pipe1 and OOO-Pipe2 over GPipe, BERT-24; OOO-Pipe2 over one GPU.",
              "1.15×, 1.59×; 3.2× (4 × V100)",
              "simulated from stated costs: {over[OOO-Pipe1][NVLink, 50 GB/s]:.2f}×, "
              "{over[OOO-Pipe2][NVLink, 50 GB/s]:.2f}×; {near[OOO-Pipe2][NVLink, 50 GB/s]:.2f}× one GPU",
              lambda f: compare([*f["over"].loc[FAST, ["OOO-Pipe1", "OOO-Pipe2"]], f["near"]["OOO-Pipe2"][FAST]],
                                [1.15, 1.59, 3.2]), gpu=True),
        Claim("§7.4, Figure 12b", "OOO-Pipe2 over GPipe with NVLink, PCIe 3.0 and 10 Gb Ethernet, BERT-24.",
              "1.70×, 1.58×, 1.48× (4 × V100)",
              "simulated from stated costs: {over[OOO-Pipe2][NVLink, 50 GB/s]:×}, {over[OOO-Pipe2][PCIe, 16 GB/s]:×}, "
              "{over[OOO-Pipe2][Ethernet, 1 GB/s]:×}",
              lambda f: compare(f["over"]["OOO-Pipe2"], [1.70, 1.58, 1.48]), gpu=True),
        Claim("§7.4, Figures 12, 14", "OOO-Pipe2 over GPipe.", "1.41× to 1.99× on 4 to 36 GPUs (V100)",
              "simulated from stated costs: {far_over:×} on {gpus} GPUs, {over[OOO-Pipe2]:×} on 4 over three "
              "interconnects", lambda f: compare([f["leads"].min(), f["leads"].max()], [1.41, 1.99]), gpu=True),
        Claim("§7.4, Figure 14", "OOO-Pipe2 over PipeDream.", "1.14× to 1.63× (V100)",
              "simulated from stated costs: {pace:×} over its steady pace, with weights stashed at no cost",
              lambda f: compare([f["pace"].min(), f["pace"].max()], [1.14, 1.63]), gpu=True),
    ],
)
