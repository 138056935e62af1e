"""Weight gradients in a stream of their own: Algorithm 1 on VGG-11's costs, simulated."""

import numpy as np
import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Figure, where
from bppsa_nb.papers.ooo import execution
from bppsa_nb.sparse import VGG11

BATCH = {"quick": 16, "paper": 64}
ROUNDS = {"quick": 9, "paper": 15}
BLOCKS = (2, 4, 6, 8, 11)  # the last layer of each: convolutions by size of image, then the linear operators
LEAST, MOST = 1.06, 1.10  # co-run speed-ups of Section 7.2, for R2 and R5 of Figure 9
LIMIT = 1.1  # of conventional memory, as in Section 7.2
OWN = ((LEAST - 1) / (MOST - 1), 0.0)  # how much of the largest gain there is beside a kernel's own block
TOP = tuple(round(1 + 0.1 * i, 1) for i in range(11))
COSTS = "forward", "output_grad", "weight_grad"
KEPT = "activation", "output_grad", "weight_grad"
STYLES = {
    "as_ready": {"label": "as soon as ready", "color": COLORS["chunked"], "marker": "s"},
    "joint": {"label": "Algorithm 1", "color": COLORS["blelloch"], "marker": "o"},
    "limited": {"label": "Algorithm 1, with a limit", "color": COLORS["linear"], "marker": "^"},
    "carried": {"label": "overruns carried over", "color": COLORS["identity"], "marker": "D"},
}


def measure(scale, rng, progress):
    """Profile VGG-11 and schedule it: a row per layer, and one per table of co-run speed-ups and schedule."""
    x, labels = rng.standard_normal((BATCH[scale], 3, 32, 32)).astype(np.float32), rng.integers(0, 10, BATCH[scale])
    network = execution.profile(VGG11(rng), x, labels, ROUNDS[scale])
    numbers = np.arange(1, network.layers + 1)
    layers = {"part": "layer", "layer": numbers, "block": 1 + np.searchsorted(BLOCKS, numbers)}
    layers |= {cost: getattr(network, cost) for cost in COSTS}
    layers |= {f"{part}_bytes": getattr(network.memory, part) for part in KEPT}
    rows = []
    for own in OWN:
        for top in TOP:
            planned = schedules(network, corun(own, top))
            one = planned["conventional"]
            for name in STYLES:
                result = planned[name]
                row = {"part": "speedup", "own": own, "top": top, "schedule": name, "k": result.k}
                row |= {"speedup": one.makespan / result.makespan, "bound": one.makespan / result.lower_bound}
                rows.append(row | {"memory": result.peak_memory[0] / one.peak_memory[0]})
    return pd.concat([pd.DataFrame(layers), pd.DataFrame(rows)], ignore_index=True)


def recorded(table):
    """Return the profiled network of a table of this experiment, in milliseconds and bytes: schedule.Network."""
    rows = where(table, part="layer")
    memory = schedule.Memory(*(rows[f"{part}_bytes"] for part in KEPT))
    return schedule.Network(*(1e3 * rows[cost] for cost in COSTS), memory=memory)


def corun(own, top):
    """Make up a table of co-run speed-ups, for δW_2 to δW_L and two regions per block [shape=(L - 1, N)].

    `top` is the speed-up for blocks at opposite ends, `own` how much of this gain there is beside a kernel's own block.
    """
    blocks = np.arange(len(BLOCKS))
    kernels = np.searchsorted(BLOCKS, np.arange(2, BLOCKS[-1] + 1))
    apart = np.abs(kernels[:, None] - np.concatenate([blocks[::-1], blocks])) / blocks[-1]
    return 1 + (top - 1) * (own + (1 - own) * apart)


def schedules(network, speedup):
    """Schedule a network in one stream, "conventional", and in two, by every key of `STYLES`."""
    regions, kernels = schedule.Regions.blocks(network, BLOCKS), range(2, network.layers + 1)
    one = schedule.joint_regions(regions, [], np.ones((0, len(regions))))
    options = {"as_ready": {"k": len(regions)}, "joint": {}, "carried": {"carry_over": True}}
    options["limited"] = {"memory_limit": LIMIT * one.peak_memory[0]}
    planned = {"conventional": one}
    for name in STYLES:
        planned[name] = schedule.joint_regions(regions, kernels, speedup, **options[name])
        planned[name].check()
    return planned


def facts(table):
    """Compare every schedule's gain with the bound's, at the largest co-run speed-up."""
    rows = where(table, part="speedup", top=table["top"].max()).set_index("schedule")
    gains = ((rows["speedup"] - 1) / (rows["bound"] - 1)).rename({name: STYLES[name]["label"] for name in STYLES})
    alike, order = (gains[rows["own"].to_numpy() == own] for own in OWN)
    return {"top": rows["top"], "alike": alike, "order": order}


def plot(table):
    fig = panels.figure(figsize=(10.4, 8.6))
    axes = fig.subplot_mosaic("aaa;bbb;ccc;def", height_ratios=(1, 1, 1, 2.7))
    planned = schedules(recorded(table), corun(OWN[0], MOST))
    one = planned["conventional"]
    for letter, name in zip("abc", ("joint", "limited", "carried"), strict=True):
        ax, result = axes[letter], planned[name]
        result.plot(ax, unit="ms" if letter == "c" else "", legend=False)
        words = f"{STYLES[name]['label']}: k = {result.k}, {one.makespan / result.makespan:.3f}× one stream"
        ax.set_title(f"({letter}) {words}", size=10, loc="left")
        ax.set_xlim(0, max(planned[drawn].makespan for drawn in ("joint", "limited", "carried")))
        ax.tick_params(labelbottom=letter == "c")
    timelines.legend(fig, ("F", "δO", "δW"))
    ax, limit = axes["d"], LIMIT * one.peak_memory[0] / 1e6
    for name, style in ({"conventional": {"color": COLORS["baseline"]}} | STYLES).items():
        ((times, level),) = planned[name].memory()
        ax.step(times[:-1], level[:-1] / 1e6, where="post", color=style["color"], lw=1.3)
    ax.axhline(limit, color="black", ls=":", lw=1.1)
    ax.text(one.makespan, limit, "limit", ha="right", va="bottom", size=8)
    ax.set(ylim=(0, None), xlabel="ms", ylabel="memory (MB)")
    ax.set_title("(d) memory", size=10)
    for letter, own, words in (("e", OWN[0], "60% of the gain"), ("f", OWN[1], "no gain")):
        ax, rows = axes[letter], where(table, part="speedup", own=own)
        panels.curves(ax, rows, "top", "speedup", "schedule", STYLES, ms=4, lw=1.3)
        bound = where(rows, schedule="joint")
        ax.plot(bound["top"], bound["bound"], color="black", ls="--", lw=1.1, label="bound")
        ax.axhline(1, color=COLORS["baseline"], lw=1.3, label="one stream")
        ax.set_xlabel("largest co-run speed-up")
        ax.set_title(f"({letter}) {words} in the own block", size=10)
    top = axes["e"].get_ylim()
    axes["e"].set_ylabel("speed-up over one stream")
    axes["e"].axvline(MOST, color="black", ls=":", lw=1.1)
    axes["e"].text(MOST + 0.02, top[1], "as in (a) to (d)", va="top", size=8)
    axes["f"].set_ylim(top)
    axes["f"].legend(loc="upper left")
    return fig


FIGURE = Figure(
    origin="timed",
    caption="""At co-run speed-up {top}, what runs as soon as it is ready has {alike[as soon as ready]:.0%} of the
    bound's gain in (e) and {order[as soon as ready]:.0%} in (f). Algorithm 1 as published has {alike[Algorithm 1]:.0%}
    and {order[Algorithm 1]:.0%}. No order of these kernels exceeds the bound. Simulated from costs of VGG-11's 11
    layers, profiled on this machine, and a table of co-run speed-ups: 6% for a kernel beside its own block of layers,
    10% for blocks at opposite ends, as in Section 7.2. Kernels that run together with speed-up p each advance at p/2 of
    their speed. Regions R1 to R10 are blocks, backward and forward. (a) As published, every region is planned by
    itself: a kernel that ends later than planned may delay a forward pass. (b) Limit: 1.1 times conventional memory,
    kept by running the weight gradients of the first k regions as soon as they are ready. (c) Our addition: a kernel
    that outlasts its region takes the beginning of the next.""",
    alt="""Above, three timelines of a main stream, with output gradients and forward passes, and of a sub stream with
    weight gradients, cut into ten regions: by Algorithm 1 as published, with a memory limit, and with overruns carried
    over. Below left, memory over time, with a dotted line at the limit, below which Algorithm 1 with a limit stays.
    Below middle and right, speed-up over one stream over the largest co-run speed-up; at {top}, of the bound's gain:
    with 60% of the gain in the own block, {alike:.0% (_)}; with none, {order:.0% (_)}.""",
)
