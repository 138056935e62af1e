"""Figures 10 and 11 of ooo backprop, in shape: data-parallel training, simulated from stated costs."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where

SECONDS, IMAGES = 0.380, 128  # of computation, on each GPU
STEP = 50e-6  # latency of a step of the ring
BANDWIDTHS = {"(a) 10 Gb/s": 10, "(b) 20 Gb/s": 20}
GPUS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)
RATIOS = tuple(np.round(np.arange(0.05, 2.01, 0.05), 2).tolist())
# ResNets of Section 7.3: blocks, images on each GPU, and how many layers' weight gradients are put off.
BLOCKS = {"ResNet-101": (3, 4, 23, 3), "ResNet-50": (3, 4, 6, 3)}
KEPT = {"ResNet-101": (96, 55), "ResNet-50": (IMAGES, 45)}
POLICIES = {
    "fifo": ("in layer order", COLORS["linear"], "o"),
    "priority": ("low layers sent first", COLORS["vector"], "s"),
    "reverse_first_k": ("reverse first-k", COLORS["matrix"], "^"),
}
NETWORKS = {
    "ResNet-50": COLORS["matrix"],
    "24 equal layers": COLORS["identity"],
    "weights grow with depth": COLORS["truncated"],
    "weights shrink with depth": COLORS["linear"],
}


def resnet(name="ResNet-50"):
    """List the convolutions of a ResNet, and its last layer, for one image of 224 x 224.

    Per layer: its weights, multiply-adds, and the sizes in numbers of its input (0 for that of a shortcut, which is the
    block's, and kept by its first layer), its output, and what batch normalization behind it keeps, the output again.
    """
    layers = [(49 * 3 * 64, 3 * 224**2, 64, 112)]
    channels, before = 64, 56
    for blocks, middle, size in zip(BLOCKS[name], (64, 128, 256, 512), (56, 28, 14, 7), strict=True):
        for block in range(blocks):
            out = 4 * middle
            shape = [(channels, middle, 1, before), (middle, middle, 9, size), (middle, out, 1, size)]
            if not block:
                shape.append((channels, out, 1, before))  # the shortcut's
            layers += [(taps * i * o, i * side**2 * (n < 3), o, size) for n, (i, o, taps, side) in enumerate(shape)]
            channels, before = out, size
    layers.append((2048 * 1000, 2048, 1000, 1))
    table = pd.DataFrame(layers, columns=["weights", "input", "channels", "size"])
    positions = table["size"] ** 2
    output = table["channels"] * positions
    normalized = output.where(table.index < len(table) - 1, 0)
    return table.assign(multiply_adds=table["weights"] * positions, output=output, normalized=normalized)


def ring(weights, gpus, gigabits):
    """Compute the seconds that adding up float32 gradients of all GPUs in a ring takes."""
    moved = 2 * (gpus - 1) / gpus * 4 * np.asarray(weights, float)
    return schedule.transfer_time(moved, gigabits * 1e9 / 8, latency=2 * (gpus - 1) * STEP)


def network(layers, sync, images=IMAGES):
    """Make a ResNet as the scheduler sees it: bytes, and seconds of which ResNet-50's 128 images take `SECONDS`."""
    cost = SECONDS / 3 * images / IMAGES * layers["multiply_adds"] / resnet()["multiply_adds"].sum()
    kept = 4 * images * layers[["input", "output", "normalized"]]
    memory = schedule.Memory(kept["input"], kept["output"], 4 * layers["weights"], kept["normalized"])
    return schedule.Network(cost, cost, cost, sync, memory)


def measure(scale, rng, progress):
    """Schedule everything: rows over GPUs, over the ratio of communication to computation, and over time."""
    layers, rows = resnet(), []
    for title, gigabits in BANDWIDTHS.items():
        for gpus in GPUS:
            point = {"part": title, "gigabits": gigabits, "gpus": gpus}
            rows += [point | row for row in _policies(network(layers, ring(layers["weights"], gpus, gigabits)))]
    for name in NETWORKS:
        for ratio in RATIOS:
            point = {"part": "ratio", "network": name, "ratio": ratio}
            rows += [point | row for row in _policies(_scaled(name, ratio))]
    rows += [row for name in KEPT for row in _memory(name)]
    return pd.DataFrame(rows)


def _memory(name):
    """Yield what a GPU of 16 keeps over time, in layer order and with weight gradients put off."""
    images, delayed = KEPT[name]
    layers = resnet(name)
    parameters = 2 * 4 * layers["weights"].sum()  # and their momentum
    net = network(layers, ring(layers["weights"], 16, 10), images)
    for k in (0, delayed):
        timeline = schedule.data_parallel(net, "reverse_first_k", k=k)
        timeline.check()
        backward = max(event.end for event in timeline.events if event.kind == "δW")
        for time, kept in zip(*timeline.memory()[0], strict=True):
            if time <= backward:
                yield {"part": "memory", "network": name, "k": k, "time": time, "bytes": kept + parameters}


def more_memory(table, name):
    """Compute how much more a GPU keeps at most with weight gradients put off, relative to layer order."""
    peaks = where(table, part="memory", network=name).groupby("k")["bytes"].max()
    return peaks[KEPT[name][1]] / peaks[0] - 1


def _scaled(name, ratio):
    """Make a network that communicates for `ratio` times as long as it computes."""
    if name == "ResNet-50":
        layers = resnet()
        cost = (layers["multiply_adds"] / layers["multiply_adds"].sum()).to_numpy()
        weights = layers["weights"].to_numpy(float)
    else:
        cost = np.full(24, 1 / 24)
        depth = np.arange(1.0, 25.0)
        weights = {"24 equal layers": cost, "weights grow with depth": depth**2}.get(name, depth[::-1] ** 2)
    return schedule.Network(cost, cost, cost, 3 * ratio * weights / weights.sum())


def _policies(net):
    """Yield a row for each policy."""
    for policy in POLICIES:
        timeline = schedule.data_parallel(net, policy)
        timeline.check()
        row = {"policy": policy, "makespan": timeline.makespan, "lower_bound": timeline.lower_bound}
        yield row | {"alone": float(timeline.work[0]), "k": float("nan") if timeline.k is None else timeline.k}


def gains(table):
    """Compare reverse first-k with the two others, per part, GPUs, network and ratio.

    `over_fifo` and `over_priority` are their makespans over its own, `to_bound` is this one over the lower bound.
    """
    keys = ["part", "gpus", "network", "ratio"]
    rows = table[table["policy"].notna()]
    makespans = rows.pivot(index=keys, columns="policy", values="makespan")
    ours = makespans["reverse_first_k"]
    compared = {f"over_{policy}": makespans[policy] / ours for policy in ("fifo", "priority")}
    compared["to_bound"] = ours / rows.groupby(keys, dropna=False)["lower_bound"].first()
    return pd.DataFrame(compared).dropna().reset_index()


def plot(table):
    """Draw throughput over GPUs, the gain over the ratio, and memory over time."""
    fig, axes = pyplot.subplots(2, 2, figsize=(9.6, 6.6), layout="constrained")
    for ax, title in zip(axes[0], BANDWIDTHS, strict=True):
        _draw_throughput(ax, table[table["part"] == title], title)
    _draw_gain(axes[1, 0], gains(table))
    _draw_memory(axes[1, 1], table[table["part"] == "memory"])
    for ax, title in zip(axes[1], ("(c) reverse first-k over sending low layers first", "(d) memory"), strict=True):
        ax.set_title(title, loc="left", size=10)
    return fig


def _draw_throughput(ax, rows, title):
    for policy, (words, color, marker) in POLICIES.items():
        part = rows[rows["policy"] == policy]
        ax.plot(part["gpus"], part["alone"] / part["makespan"], marker=marker, ms=5, color=color, label=words)
    bound = rows[rows["policy"] == "fifo"]
    ax.plot(bound["gpus"], bound["alone"] / bound["lower_bound"], "--", color="black", lw=1.1, label="bound")
    ax.set(xlabel="GPUs", ylabel="throughput per GPU / alone", ylim=(0.6, 1.03))
    ax.set_title(title, loc="left", size=10)
    ax.legend(loc="lower left")


def _draw_gain(ax, found):
    for name, color in NETWORKS.items():
        rows = found[found["network"] == name]
        ax.plot(rows["ratio"], rows["over_priority"], "-", color=color, label=name)
    ax.set(xlabel="communication / computation", ylabel="speedup", ylim=(0.98, 1.24))
    ax.legend(loc="upper right")


def _draw_memory(ax, rows):
    for (name, (_, delayed)), color in zip(KEPT.items(), (COLORS["matrix"], COLORS["vector"]), strict=True):
        for k, style in ((0, "--"), (delayed, "-")):
            part = where(rows, network=name, k=k)
            label = f"{name}, " + (f"first {k} put off" if k else "layer order")
            ax.step(1e3 * part["time"], part["bytes"] / 2**30, where="post", color=color, ls=style, label=label)
    ax.set(xlabel="ms of the backward pass, 16 GPUs, 10 Gb/s", ylabel="GiB", ylim=(0, None))
    ax.legend(loc="lower left", fontsize=8)
