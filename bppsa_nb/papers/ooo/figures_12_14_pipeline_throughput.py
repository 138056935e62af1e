"""Figures 12 and 14 of ooo backprop, in shape: pipelines of transformers, simulated from stated costs."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.schedule.pipelining import allocation

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
COMPARED = ("GPipe", "OOO-Pipe1", "OOO-Pipe2", "ZB-H1", "PipeDream")


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
    """Simulate one of `SYSTEMS`: seconds of an iteration, the lower bound of its makespan, and bytes on a GPU.

    The bytes are the most that one holds: what layers keep, weights and Adam's averages. For PipeDream, there are only
    the seconds of as many micro-batches at a steady pace, found from how much longer many more take.
    """
    policy, flush, _ = SYSTEMS[name]
    cost = boundaries(net, policy, devices, inside, between)

    def run(batches):
        timeline = schedule.pipeline(net, devices, batches, policy, flush, cost)
        timeline.check()
        return timeline

    if name == "PipeDream":
        long = 4 * max(batches, devices)
        return {"seconds": batches * (run(2 * long).makespan - run(long).makespan) / long}
    timeline = run(batches)
    held = timeline.peak_memory.max() + 3 * WEIGHTS * net.layers / devices
    return {"seconds": timelines.iteration(timeline), "lower_bound": timeline.lower_bound, "bytes": held}


def memory(table):
    """Return the bytes on the fullest of 4 GPUs: a row for each of `KEPT`; `bytes_bare` if δO alone read nothing."""
    rows = table[table["part"] == "interconnect"]
    rows = rows[rows["interconnect"] == next(iter(INTERCONNECTS))]
    return rows.set_index("system").loc[list(KEPT), ["bytes", "bytes_bare"]]


def measure(scale, rng, progress):
    """Simulate all: a row per system and interconnect, and one per system and number of GPUs."""
    rows, net, deep = [], network(LAYERS), network(DEEP)
    alone, deep_alone = (schedule.pipeline(each, 1).makespan for each in (net, deep))  # a micro-batch on one GPU
    for interconnect, bandwidth in INTERCONNECTS.items():
        for name in SYSTEMS:
            row = {"part": "interconnect", "interconnect": interconnect, "gpus": DEVICES, "system": name}
            row |= {"alone": BATCHES * alone} | iteration(name, net, DEVICES, BATCHES, bandwidth, bandwidth)
            if name in KEPT:
                bare = iteration(name, network(LAYERS, inner=0), DEVICES, BATCHES, bandwidth, bandwidth)
                row["bytes_bare"] = bare["bytes"]
            rows.append(row)
    for gpus in GPUS:
        for name in COMPARED:
            row = {"part": "gpus", "gpus": gpus, "system": name, "alone": MANY * deep_alone}
            inside = INTERCONNECTS["NVLink, 50 GB/s"]
            rows.append(row | iteration(name, deep, gpus, MANY, inside, BETWEEN))
    table = pd.DataFrame(rows)
    return table.assign(speedup=table["alone"] / table["seconds"])


def plot(table):
    """Draw the systems, three interconnects, numbers of GPUs, and memory."""
    fig = pyplot.figure(figsize=(9.6, 6.6), layout="constrained")
    axes = fig.subplot_mosaic("sg;im")
    rows = table[table["part"] == "interconnect"]
    speedup = rows.pivot(index="system", columns="interconnect", values="speedup").loc[list(SYSTEMS)]
    _draw_systems(axes["s"], speedup[next(iter(INTERCONNECTS))])
    _draw_interconnects(axes["i"], speedup)
    _draw_gpus(axes["g"], table[table["part"] == "gpus"])
    _draw_memory(axes["m"], memory(table) / 2**30)
    return fig


def _draw_systems(ax, speedup):
    ax.barh(speedup.index, speedup, color=[SYSTEMS[name][2] for name in speedup.index], height=0.75)
    for i, value in enumerate(speedup):
        ax.text(value + 0.04, i, f"{value:.2f}", va="center", size=9)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set(xlabel="throughput / one GPU's", xlim=(0, DEVICES + 0.4))
    ax.set_title("(a) 4 GPUs, 50 GB/s", loc="left", size=10)


def _draw_interconnects(ax, speedup):
    width = 0.16
    for i, name in enumerate(COMPARED):
        places = np.arange(len(INTERCONNECTS)) + (i - (len(COMPARED) - 1) / 2) * width
        ax.bar(places, speedup.loc[name, list(INTERCONNECTS)], width, color=SYSTEMS[name][2], label=name)
    ax.set_xticks(range(len(INTERCONNECTS)), [name.replace(", ", "\n") for name in INTERCONNECTS])
    ax.set(ylabel="throughput / one GPU's", ylim=(0, DEVICES + 0.4))
    ax.grid(False, axis="x")
    ax.set_title("(b) 4 GPUs, three interconnects", loc="left", size=10)


def _draw_gpus(ax, rows):
    for name, marker in zip(COMPARED, "os^vD", strict=True):
        part = rows[rows["system"] == name]
        ax.plot(part["gpus"], part["speedup"], marker=marker, ms=6, color=SYSTEMS[name][2], label=name)
    ax.plot(GPUS, GPUS, "--", color="black", lw=1.1, label="as many as GPUs")
    ax.set(xlabel="GPUs", ylabel="throughput / one GPU's", ylim=(0, None))
    ax.set_xticks(GPUS)
    ax.set_title("(c) 48 layers, nodes of 8 GPUs", loc="left", size=10)
    ax.legend(loc="upper left")


def _draw_memory(ax, held):
    colors = [SYSTEMS[name][2] for name in held.index]
    ax.barh(held.index, held["bytes"], color=colors, height=0.75)
    ax.barh(held.index, held["bytes_bare"], color="white", alpha=0.55, height=0.35)
    for i, row in enumerate(held.to_dict("records")):
        ax.text(row["bytes"] + 0.08, i, f"{row['bytes']:.2f}", va="center", size=9)
        ax.text(row["bytes_bare"] - 0.08, i, f"{row['bytes_bare']:.2f}", va="center", ha="right", size=8)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set(xlabel="GiB on the fullest of 4 GPUs", xlim=(0, 1.15 * held["bytes"].max()))
    ax.set_title("(d) memory, 4 GPUs", loc="left", size=10)
