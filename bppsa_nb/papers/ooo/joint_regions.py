"""Two streams on one device: Algorithm 1 on the profiled costs of VGG-11, after Figures 7 to 9 of ooo backprop."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where
from bppsa_nb.schedule.operations import F, W
from bppsa_nb.sparse import VGG11

BATCH = {"quick": 16, "paper": 64}
ROUNDS = {"quick": 9, "paper": 15}
BLOCKS = (2, 4, 6, 8, 11)  # the last layer of each: convolutions by size of image, then the linear operators
LEAST, MOST = 1.06, 1.10  # co-run speed-ups of Section 7.2, for R2 and R5 of Figure 9
LIMIT = 1.1  # of conventional memory, as in Section 7.2
OWN = ((LEAST - 1) / (MOST - 1), 0.0)  # how much of the largest gain there is beside a kernel's own block
TOP = tuple(round(1 + 0.1 * i, 1) for i in range(11))
DRAWN = ("joint", "limited", "carried")
STYLES = {
    "as_ready": ("as soon as ready", COLORS["chunked"], "s"),
    "joint": ("Algorithm 1", COLORS["blelloch"], "o"),
    "limited": ("Algorithm 1, with a limit", COLORS["linear"], "^"),
    "carried": ("overruns carried over", COLORS["identity"], "D"),
}


def measure(scale, rng, progress):
    """Profile VGG-11 and schedule it: a row per layer, and one per table of co-run speed-ups and schedule."""
    batch = BATCH[scale]
    x, labels = rng.standard_normal((batch, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, batch)
    network = schedule.profile(VGG11(rng), x, labels, ROUNDS[scale])
    rows = []
    for i in range(network.layers):
        row = {"part": "layer", "layer": i + 1, "block": 1 + int(np.searchsorted(BLOCKS, i + 1))}
        row |= {cost: getattr(network, cost)[i] for cost in ("forward", "output_grad", "weight_grad")}
        row |= {f"{kept}_bytes": values[i] for kept, values in vars(network.memory).items()}
        rows.append(row)
    for own in OWN:
        for top in TOP:
            planned = schedules(network, corun(own, top))
            one = planned["conventional"]
            for name in STYLES:
                result = planned[name]
                row = {"part": "speedup", "own": own, "top": top, "schedule": name, "k": result.k}
                row |= {"speedup": one.makespan / result.makespan, "bound": one.makespan / result.lower_bound}
                rows.append(row | {"memory": result.peak_memory[0] / one.peak_memory[0]})
    table = pd.DataFrame(rows)
    table.attrs["batch"] = batch
    return table


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
    regions = schedule.Regions.blocks(network, BLOCKS)
    one = schedule.joint_regions(regions, [], np.ones((0, len(regions))))
    kernels = range(2, network.layers + 1)
    results = {
        "conventional": one,
        "as_ready": schedule.joint_regions(regions, kernels, speedup, k=len(regions)),
        "joint": schedule.joint_regions(regions, kernels, speedup),
        "limited": schedule.joint_regions(regions, kernels, speedup, memory_limit=LIMIT * one.peak_memory[0]),
        "carried": schedule.joint_regions(regions, kernels, speedup, carry_over=True),
    }
    for result in results.values():
        result.check()
    return results


def recorded(table):
    """Return the profiled network of a table of this experiment, in milliseconds and bytes: schedule.Network."""
    rows = table[table["part"] == "layer"]
    memory = schedule.Memory(*(rows[f"{kept}_bytes"] for kept in ("activation", "output_grad", "weight_grad")))
    return schedule.Network(*(1e3 * rows[cost] for cost in ("forward", "output_grad", "weight_grad")), memory=memory)


def values(table):
    """Return what words need beside the table: the part of the bound's gain that every schedule has."""
    gains = where(table, part="speedup", top=table["top"].max())
    return {"gains": gains.assign(gain=(gains["speedup"] - 1) / (gains["bound"] - 1))}


def plot(table):
    """Draw three timelines, memory, and speed-ups over two tables of co-run speed-ups."""
    fig = pyplot.figure(figsize=(10.4, 8.6), layout="constrained")
    axes = fig.subplot_mosaic("aaa;bbb;ccc;def", height_ratios=(1, 1, 1, 2.7))
    planned = schedules(recorded(table), corun(OWN[0], MOST))
    end = max(planned[name].makespan for name in DRAWN)
    for letter, name in zip("abc", DRAWN, strict=True):
        ax, result = axes[letter], planned[name]
        result.plot(ax, unit="ms" if letter == "c" else "", legend=False)
        gain = planned["conventional"].makespan / result.makespan
        ax.set_title(f"({letter}) {STYLES[name][0]}: k = {result.k}, {gain:.3f}× one stream", size=10, loc="left")
        ax.set_xlim(0, end)
        if letter != "c":
            ax.set_xticklabels([])
    timelines.legend(fig, ("F", "δO", "δW"))
    _draw_memory(axes["d"], planned)
    rows = table[table["part"] == "speedup"]
    for letter, own, words in (("e", OWN[0], "60% of the gain"), ("f", OWN[1], "no gain")):
        _draw_speedups(axes[letter], rows[rows["own"] == own])
        axes[letter].set_title(f"({letter}) {words} in the own block", size=10)
    top = axes["e"].get_ylim()
    axes["e"].set_ylabel("speed-up over one stream")
    axes["e"].axvline(MOST, color="black", ls=":", lw=1.1)
    axes["e"].text(MOST + 0.02, top[1], "as in (a) to (d)", va="top", size=8)
    axes["f"].set_ylim(top)
    axes["f"].legend(loc="upper left")
    return fig


def while_main_runs(result):
    """Find the most memory from the start of each of the main stream's δO and F to the next one's: labels, bytes."""
    ops, ((times, level),) = result.operations, result.memory()
    main = np.flatnonzero((ops.worker == 0) & (ops.kind != W))
    edges = np.append(result.start[main], result.makespan)
    edges[0] = 0.0
    first = np.maximum(np.searchsorted(times, edges[:-1], "right") - 1, 0)
    most = [level[i:j].max() for i, j in zip(first, np.searchsorted(times, edges[1:]), strict=True)]
    kinds = np.where(ops.kind[main] == F, "F", "δO")
    return [f"{kind}{layer}" for kind, layer in zip(kinds, ops.layer[main], strict=True)], np.array(most)


def _draw_memory(ax, planned):
    one = planned["conventional"]
    labels, most = while_main_runs(one)
    places = np.arange(len(labels))
    ax.step(places, most / 1e6, where="mid", color=COLORS["baseline"], label="one stream")
    for name, (words, color, mark) in STYLES.items():
        ax.plot(places, while_main_runs(planned[name])[1] / 1e6, color=color, marker=mark, ms=4, lw=1.3, label=words)
    limit = LIMIT * one.peak_memory[0] / 1e6
    ax.axhline(limit, color="black", ls=":", lw=1.1)
    ax.text(places[-1], limit, "limit", ha="right", va="bottom", size=8)
    ax.set_xticks(places[::3], labels[::3], size=8)
    ax.set(ylim=(0, None), xlabel="main stream", ylabel="memory (MB)")
    ax.set_title("(d) memory", size=10)


def _draw_speedups(ax, rows):
    for name, (words, color, mark) in STYLES.items():
        part = rows[rows["schedule"] == name]
        ax.plot(part["top"], part["speedup"], color=color, marker=mark, ms=4, lw=1.3, label=words)
    ax.plot(part["top"], part["bound"], color="black", ls="--", lw=1.1, label="bound")
    ax.axhline(1, color=COLORS["baseline"], lw=1.3, label="one stream")
    ax.set_xlabel("largest co-run speed-up")
