"""Figures 10 and 11 of ooo backprop, simulated: the order of weight gradients in data-parallel training."""

import numpy as np
import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where

SECONDS, IMAGES = 0.380, 128  # of computation, on each GPU
STEP = 50e-6  # latency of a step of the ring
BANDWIDTHS = {"(a) 10 Gb/s": 10, "(b) 20 Gb/s": 20}
GPUS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)
RATIOS = tuple(np.round(np.arange(0.05, 2.01, 0.05), 2).tolist())
# ResNets of Section 7.3: blocks, images on each GPU, and how many layers' weight gradients are put off.
RESNETS = {"ResNet-101": ((3, 4, 23, 3), 96, 55), "ResNet-50": ((3, 4, 6, 3), IMAGES, 45)}
POLICIES = {
    "fifo": {"label": "in layer order", "color": COLORS["linear"], "marker": "o"},
    "priority": {"label": "low layers sent first", "color": COLORS["vector"], "marker": "s"},
    "reverse_first_k": {"label": "reverse first-k", "color": COLORS["matrix"], "marker": "^"},
}


def resnet(name="ResNet-50"):
    """List the convolutions of a ResNet, and its last layer, for one image of 224 x 224.

    Per layer: its weights, multiply-adds, and the sizes in numbers of its input (0 for that of a shortcut, which is the
    block's, and kept by its first layer), its output, and what batch normalization behind it keeps, the output again.
    """
    layers = [(49 * 3 * 64, 3 * 224**2, 64, 112)]
    channels, before = 64, 56
    for blocks, middle, size in zip(RESNETS[name][0], (64, 128, 256, 512), (56, 28, 14, 7), strict=True):
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


def network(layers, gpus, gigabits, images=IMAGES):
    """Make a ResNet as the scheduler sees it: bytes, and seconds of which ResNet-50's 128 images take `SECONDS`."""
    cost = SECONDS / 3 * images / IMAGES * layers["multiply_adds"] / resnet()["multiply_adds"].sum()
    kept = 4 * images * layers[["input", "output", "normalized"]]
    memory = schedule.Memory(kept["input"], kept["output"], 4 * layers["weights"], kept["normalized"])
    return schedule.Network(cost, cost, cost, ring(layers["weights"], gpus, gigabits), memory)


def measure(scale, rng, progress):
    """Schedule everything: rows over GPUs, over the ratio of communication to computation, and over time."""
    layers, depth, points = resnet(), np.arange(1.0, 25.0), []
    for title, gigabits in BANDWIDTHS.items():
        for gpus in GPUS:
            points.append(({"part": title, "gigabits": gigabits, "gpus": gpus}, network(layers, gpus, gigabits)))
    even = np.ones(24)
    for name, cost, weights in (
        ("ResNet-50", layers["multiply_adds"], layers["weights"]), ("24 equal layers", even, even),
        ("weights grow with depth", even, depth**2), ("weights shrink with depth", even, depth[::-1] ** 2),
    ):
        cost = cost / cost.sum()
        for ratio in RATIOS:
            scaled = schedule.Network(cost, cost, cost, 3 * ratio * weights / weights.sum())
            points.append(({"part": "ratio", "network": name, "ratio": ratio}, scaled))
    rows = []
    for point, net in points:
        for policy in POLICIES:
            timeline = schedule.data_parallel(net, policy)
            timeline.check()
            row = point | {"policy": policy, "makespan": timeline.makespan, "lower_bound": timeline.lower_bound}
            rows.append(row | {"alone": float(timeline.work[0]), "k": timeline.k})
    return pd.DataFrame([*rows, *(row for name in RESNETS for row in _memory(name))])


def _memory(name):
    """Yield what a GPU of 16 keeps over time, in layer order and with weight gradients put off."""
    _, images, delayed = RESNETS[name]
    layers = resnet(name)
    parameters = 2 * 4 * layers["weights"].sum()  # and their momentum
    for k in (0, delayed):
        timeline = schedule.data_parallel(network(layers, 16, 10, images), "reverse_first_k", k=k)
        timeline.check()
        backward = max(event.end for event in timeline.events if event.kind == "δW")
        for time, kept in zip(*timeline.memory()[0], strict=True):
            if time <= backward:
                yield {"part": "memory", "network": name, "k": k, "time": time, "bytes": kept + parameters}


def facts(table):
    """Compare throughput, reverse first-k with sending low layers first, and memory with weight gradients put off."""
    keys, last = ["part", "gpus", "network", "ratio"], where(table, policy="fifo", gpus=table["gpus"].max())
    makespan = table[table["policy"].notna()].pivot(index=keys, columns="policy", values="makespan")
    over = (makespan["priority"] / makespan["reverse_first_k"]).reset_index(name="over")
    most = where(table, part="memory").groupby(["network", "k"])["bytes"].max().groupby("network")
    return {
        "slow": (last["alone"] / last["makespan"]).set_axis(last["part"]), "over": over,
        "added": over.loc[over["gpus"].notna(), "over"].max() - 1, "many": over.loc[over["gpus"] >= 16, "over"],
        "best": where(over, part="ratio").groupby("network")["over"].max(), "usual": most.first(),
        "delayed": most.last(), "more": most.last() / most.first() - 1,
    }


def plot(table):
    fig, axes = panels.subplots(2, 2, figsize=(9.6, 6.6))
    *upper, left, right = axes.flat
    for ax, title in zip(upper, BANDWIDTHS, strict=True):
        rows = where(table, part=title)
        rows = rows.assign(share=rows["alone"] / rows["makespan"], bound=rows["alone"] / rows["lower_bound"])
        panels.curves(ax, rows, "gpus", "share", "policy", POLICIES, ms=5)
        bound = where(rows, policy="fifo")
        ax.plot(bound["gpus"], bound["bound"], "--", color="black", lw=1.1, label="bound")
        ax.set(xlabel="GPUs", ylabel="throughput per GPU / alone", ylim=(0.6, 1.03))
        ax.legend(loc="lower left")
    over, roles = facts(table)["over"], ("matrix", "identity", "truncated", "linear")
    names = table.loc[table["part"] == "ratio", "network"].unique()
    styles = {name: {"color": COLORS[role], "label": name} for name, role in zip(names, roles, strict=True)}
    panels.curves(left, over, "ratio", "over", "network", styles)
    left.set(xlabel="communication / computation", ylabel="speedup", ylim=(0.98, 1.24))
    left.legend(loc="upper right")
    colors = dict(zip(RESNETS, (COLORS["matrix"], COLORS["vector"]), strict=True))
    for (name, k), rows in where(table, part="memory").groupby(["network", "k"], sort=False):
        style = {"ls": "-" if k else "--", "color": colors[name], "where": "post"}
        label = f"{name}, " + (f"first {k:g} put off" if k else "layer order")
        right.step(1e3 * rows["time"], rows["bytes"] / 2**30, label=label, **style)
    right.set(xlabel="ms of the backward pass, 16 GPUs, 10 Gb/s", ylabel="GiB", ylim=(0, None))
    right.legend(loc="lower left", fontsize=8)
    titles = [*BANDWIDTHS, "(c) reverse first-k over sending low layers first", "(d) memory"]
    for ax, title in zip(axes.flat, titles, strict=True):
        ax.set_title(title, loc="left", size=10)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""Sending low layers first comes near the bound. Computing them first adds at most {added:.0%} for
    ResNet-50 (a, b), more where low layers have most of the weights (c). Simulated from stated costs, not measured.
    ResNet-50's 54 layers are a chain: 128 images, 380 ms of computation on each GPU (Section 7.3), shared out by
    multiply-adds, F = δO = δW. Gradients go in float32 over one link that is never interrupted, by a ring: 2 (n - 1) /
    n of their bytes, and 50 µs for each of 2 (n - 1) steps. (d) ResNet-101 with 96 images, and ResNet-50 with 128:
    weights, their momentum and gradients; inputs and output gradients of layers, until both gradients of the layer are
    there; and inputs of batch normalization, not put off.""",
    alt="""Four plots. Throughput of each GPU relative to a single one at 10 and at 20 Gb/s: near 1 up to 20 and 32
    GPUs. Then layer order falls, to {slow[(a) 10 Gb/s]:.2f} and {slow[(b) 20 Gb/s]:.2f} at 48, while the two others
    stay above, along the bound. Gain of reverse first-k over sending low layers first, over communication /
    computation: up to {best[weights shrink with depth]:.2f} if weights shrink with depth, at most
    {best[weights grow with depth]:.2f}, {best[ResNet-50]:.2f} and {best[24 equal layers]:.2f} if they grow, for
    ResNet-50 and for equal layers; 1 beyond a ratio of 1.1. Memory in the backward pass: in layer order it falls, for
    ResNet-101 from {usual[ResNet-101]:.1f GiB}, for ResNet-50 from {usual[ResNet-50]:.1f GiB}. With weight gradients
    put off, ResNet-50's rises to {delayed[ResNet-50]:.1f GiB}.""",
    claims=[
        Claim("§7.3, Figure 10", "Reverse first-k over BytePS, which sends low layers first.",
              "1.10× to 1.27× on 16 to 48 GPUs (P100, V100)",
              "simulated from stated costs: {many:.2f}× over sending low layers first, ResNet-50 on 16 to 48 GPUs; up "
              "to {best[weights shrink with depth]:.2f}× if low layers have most weights",
              lambda f: compare([f["many"].min(), f["many"].max()], [1.1, 1.27]), gpu=True),
        Claim("§7.3, Figure 11", "Reverse first-k does not usually need more memory, as on ResNet-101.",
              "“remains similar” (here: less than 1 % more)",
              "counted from stated sizes: {more[ResNet-101]:.1%} more with k = 55, ResNet-101, 96 images",
              lambda f: f["more"]["ResNet-101"] < 0.01),
        Claim("§7.3", "In all experiments with CNNs it needs hardly more; here, with the k named for ResNet-50.",
              "less than 1 % more (V100, P100, Titan XP)",
              "counted from stated sizes: {more[ResNet-50]:.1%} more with k = 45, ResNet-50, 128 images",
              lambda f: f["more"]["ResNet-50"] < 0.01),
    ],
)
