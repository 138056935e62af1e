"""Figures 6 and 7 of layer-parallel training: strong scaling over ranks, measured here and simulated beyond."""

from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.ticker import LogLocator

from bppsa_nb.distributed.predict import SHARED_MEMORY
from bppsa_nb.papers import on_ranks, panels, provenance
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.on_ranks import FAST, LINKS, SLOW
from bppsa_nb.papers.tables import where
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.cycles import record

IMAGE, KERNEL = 24, 7
FEW, MANY = 4, 20  # channels of the networks of Figure 6 and of Figure 7's convolutions
DEPTHS = {"quick": {FEW: 1024, MANY: 128}, "paper": {FEW: 4096, MANY: 512}}
ROUNDS = {"quick": {FEW: 5, MANY: 4}, "paper": {FEW: 9, MANY: 5}}
COARSENING, LEVELS, CYCLES = 4, 4, 2
DEPTH, RANKS = 4096, (1, 2, 4, 8, 16, 24, 32, 64)  # of the simulation
METHODS = {  # name, color, marker
    "multigrid": ("multigrid", COLORS["multigrid"], "o"),
    "serial": ("model partitioning", COLORS["linear"], "s"),
}
DASHES = {SLOW: "--", FAST: ":"}
EVERY_LINK = {"shared memory": SHARED_MEMORY} | LINKS
# What the paper's text says of its GPUs: (GPUs, speedup).
INFERENCE = [(1, 1 / 4), (4, 1.25), (24, 4)]  # over serial propagation on one GPU
TRAINING, OVER_PARTITIONING = 3.5, 5  # at most, over serial propagation and over model partitioning
LARGE = [(4, 1.3), (64, 10.2)]  # over model partitioning, Figure 7
WAITING = 0.97  # of the time at 64 GPUs
INTENSITY = {4: 0.928, 64: 0.345}  # “the computation to communication ratio”, Figure 7


def parameters(channels, convolutions, dense=0):
    """Count the parameters of a network of the paper: MNIST's images lose two pixels on each side in the first layer.

    Weights and biases of the opening convolution, of the residual ones, all with kernels of 7 x 7, of dense layers
    between them, whose input and output have the size of a state, and of the last one with its 10 outputs.
    """
    state = channels * IMAGE**2
    opening, residual = (channels * (inputs * KERNEL**2 + 1) for inputs in (1, channels))
    return opening + convolutions * residual + dense * state * (state + 1) + 10 * (state + 1)


def measure(scale, rng, progress):
    """Run the package's program on ranks, and simulate: a row per network, ranks, link, method and task."""
    seed = int(np.random.default_rng(rng).integers(2**31))
    unit = COARSENING ** (LEVELS - 1)
    points = []
    for channels, depth in DEPTHS[scale].items():
        most = min(provenance.cores(), depth // unit)
        points += [{"channels": channels, "depth": depth, "ranks": 2**i} for i in range(most.bit_length())]

    def measure_point(point, rng):
        return _run(**point, rounds=ROUNDS[scale][point["channels"]], seed=seed)

    measured = progress.collect(points, measure_point, rng)
    rows = []
    for channels, depth in DEPTHS[scale].items():
        one = where(measured, channels=channels, ranks=1)
        costs = _costs(one.set_index(["method", "task"])["compute"], depth)
        for ranks in sorted({point["ranks"] for point in points if point["channels"] == channels}):
            rows += _simulated("predicted", channels, depth, ranks, costs, "shared memory")
        for link in LINKS:
            for ranks in RANKS:
                rows += _simulated("simulated", channels, DEPTH, ranks, costs, link)
    table = pd.concat([measured, pd.DataFrame(rows)], ignore_index=True)
    key = ["channels", "part", "link", "task"]
    alone = where(table, method="serial", ranks=1).set_index(key)["seconds"]
    table = table.join(alone.rename("alone"), on=key)  # what serial propagation takes on one rank
    table.attrs |= {"backend": "cpu", "links": {name: list(link) for name, link in EVERY_LINK.items()}}
    return table


def _run(channels, depth, ranks, rounds, seed):
    """Run the program on some ranks, one thread each; return a row per method and task."""
    network = ["--depth", depth, "--channels", channels, "--kernel", KERNEL, "--image", IMAGE, "--activation", "relu"]
    how = ["--coarsening", COARSENING, "--levels", LEVELS, "--cycles", CYCLES, "--dtype", "float32", "--backend", "cpu"]
    rounds = ["--repeat", rounds, "--seed", seed]
    times = pd.DataFrame(on_ranks.run(ranks, "bppsa_nb.multigrid", *network, *how, *rounds)["rows"])
    rows = []
    for (method, task), part in times.groupby(["method", "task"]):
        total = part.groupby("round")["seconds"].max()  # of the rank that is done last
        waited = part.groupby("rank")["communication"].median().mean()
        taken = part.groupby("rank")["seconds"].median().mean()
        row = {"part": "measured", "link": "shared memory", "method": method, "task": task}
        row |= {"seconds": total.median(), "low": total.min(), "high": total.max()}
        rows.append(row | {"compute": taken - waited, "communication": waited})
    return rows


def _costs(seconds, depth):
    """Derive what each step takes, for both methods, from the seconds of one rank.

    A training step less its inference is slopes and gradients of parameters, once for every layer, and adjoint steps,
    whose number depends on the method.
    """
    steps = record(depth, 1, CYCLES, COARSENING, LEVELS).part("F").work()
    rest = {method: seconds[method, "training"] - seconds[method, "inference"] for method in ("multigrid", "serial")}
    adjoint = (rest["multigrid"] - rest["serial"]) / (steps - depth)
    gradient = max(0.0, rest["serial"] / depth - adjoint)  # below zero only if the machine was busy
    counts = {"multigrid": steps, "serial": depth}
    return {name: {"F": seconds[name, "inference"] / n, "δO": adjoint, "δW": gradient} for name, n in counts.items()}


_record = lru_cache(maxsize=32)(record)  # networks and links differ in costs only


def _simulated(part, channels, depth, ranks, costs, link):
    message = EVERY_LINK[link].seconds(4 * channels * IMAGE**2)
    rows = []
    for method, levels in ("multigrid", LEVELS), ("serial", 1):
        step = _record(depth, ranks, CYCLES, COARSENING, levels)
        for task, recorded in ("inference", step.part("F")), ("training", step):
            events, _ = recorded.timeline(costs[method], message)
            seconds, compute = timeline.makespan(events), recorded.work(costs[method]) / ranks
            row = {"channels": channels, "depth": depth, "ranks": ranks, "part": part, "link": link}
            row |= {"method": method, "task": task, "seconds": seconds}
            rows.append(row | {"compute": compute, "communication": seconds - compute})
    return rows


def values(table):
    """Return what words need beside the table: where multigrid passes serial propagation."""
    few, rows = where(table, channels=FEW, part="simulated"), []
    for (task, link), part in few.groupby(["task", "link"], sort=False):
        speedup = (part["alone"] / part["seconds"]).groupby([part["method"], part["ranks"]]).first()
        passes = speedup["multigrid"].index[speedup["multigrid"] > 1]
        leads = f"passes 1 on {passes[0]} ranks" if len(passes) else "stays below 1"
        ends = {method: speedup[method, RANKS[-1]] for method in METHODS}
        rows.append({"task": task, "link": link, "passes": leads, "ranks": RANKS[-1]} | ends)
    return {"leads": pd.DataFrame(rows).sort_values("task", kind="stable")}


def plot(table):
    """Draw speedups in inference and training, what a rank's time goes to, and multigrid against model partitioning."""
    fig, axes = pyplot.subplots(2, 2, figsize=(9.6, 7.6), layout="constrained")
    few = table[table["channels"] == FEW]
    for ax, task, title in (axes[0, 0], "inference", "(a) inference"), (axes[0, 1], "training", "(b) training"):
        _draw_speedups(ax, few[few["task"] == task])
        ax.set_title(title, loc="left", size=10)
    _draw_published(*axes[0])
    _draw_decomposition(axes[1, 0], where(few, task="training", method="multigrid"))
    _draw_against_partitioning(axes[1, 1], table[table["task"] == "training"])
    ticks = [ranks for ranks in RANKS if ranks.bit_count() == 1]
    for ax in axes.flat:
        ax.set_xlabel("ranks (paper: GPUs)")
        panels.log_scale(ax, ticks=ticks)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ax is not axes[1, 0] else (1,)))
        ax.minorticks_off()
    return fig


def _draw_speedups(ax, rows):
    """Draw times of serial propagation on one rank over times."""
    for method, (name, color, marker) in METHODS.items():
        for source, dash, part in _sources(rows[rows["method"] == method], marker):
            label = f"{name}, measured" if source == "measured" else f"simulated, {source}"
            label = label if source == "measured" or method == "multigrid" else None
            ax.plot(part["ranks"], part["alone"] / part["seconds"], dash, color=color, label=label)
    ax.set_ylabel("speedup over serial propagation")
    _write_below(ax, _ratios_in_words("multigrid", rows))


def _sources(rows, marker):
    """Yield links that were simulated, and "measured", each with its style of lines and its rows."""
    for source, style in {**DASHES, "measured": marker}.items():
        yield source, style, rows[(rows["link"] == source) | (rows["part"] == source)]


def _ratios(rows):
    """Return measured seconds over those predicted from one rank's, for several ranks."""
    measured, predicted = (where(rows, part=part).set_index("ranks")["seconds"] for part in ("measured", "predicted"))
    return (measured / predicted)[measured.index > 1]


def _ratios_in_words(name, rows):
    ratios = _ratios(rows[rows["method"] == "multigrid"])
    texts = ", ".join(f"{ratio:.2f} on {ranks}" for ranks, ratio in ratios.items())
    return f"{name}, measured / predicted: {texts} ranks" if texts else ""


def _write_below(ax, text):
    ax.text(0.98, 0.02, text, transform=ax.transAxes, ha="right", size=8)


def _draw_published(inference, training):
    black = {"color": "black", "lw": 0, "marker": "*", "ms": 9}
    inference.plot(*zip(*INFERENCE, strict=True), **black, label="multigrid, paper")
    inference.legend(loc="upper left", fontsize=8)
    training.axhline(TRAINING, color="black", lw=0.8)
    best = f"paper, multigrid: at most {TRAINING:g},\nand {OVER_PARTITIONING:g} over model partitioning"
    training.text(RANKS[0], TRAINING * 1.06, best, size=8)


def _draw_decomposition(ax, rows):
    """Draw what a rank's time goes to, over serial propagation's time on one rank."""
    for part, color, marker in ("compute", COLORS["matrix"], "o"), ("communication", COLORS["vector"], "s"):
        for source, dash, drawn in _sources(rows[rows[part] > 0], marker):
            label = {"measured": f"{part}, measured"}.get(source)
            ax.plot(drawn["ranks"], drawn[part] / drawn["alone"], dash, color=color, label=label)
    far = rows[rows["ranks"] == RANKS[-1]].set_index("link")
    shares = far["communication"] / (far["compute"] + far["communication"])
    texts = "".join(f"\n{shares[link]:.0%} over {link}" for link in DASHES)
    text = f"communication at {RANKS[-1]}: {WAITING:.0%} in the paper,{texts}"
    ax.text(0.98, 0.97, text, transform=ax.transAxes, ha="right", va="top", size=8)
    seconds = rows[["compute", "communication"]].div(rows["alone"], axis=0)
    ax.set_ylim(0.3 * seconds[seconds > 0].min().min(), 2 * seconds.max().max())
    ax.legend(loc="lower right", ncols=2, fontsize=8)
    ax.set_ylabel("time / serial propagation's")
    ax.set_title("(c) training by multigrid: a rank's time", loc="left", size=10)


def _draw_against_partitioning(ax, rows):
    for channels, color in (FEW, COLORS["chunked"]), (MANY, COLORS["truncated"]):
        for source, dash, part in _sources(rows[rows["channels"] == channels], "o"):
            seconds = part.pivot(index="ranks", columns="method", values="seconds")
            label = f"{channels} channels" if source == SLOW else None
            ax.plot(seconds.index, seconds["serial"] / seconds["multigrid"], dash, color=color, label=label)
    ax.plot(*zip(*LARGE, strict=True), "*", color="black", ms=9, label="2 billion parameters, paper")
    ax.axhline(1, color=COLORS["baseline"], lw=0.8)
    texts = ", ".join(f"{ratio:.1%} at {gpus}" for gpus, ratio in INTENSITY.items())
    words = f"paper, computation to communication:\n{texts} GPUs"
    _write_below(ax, _ratios_in_words(f"{MANY} channels", rows[rows["channels"] == MANY]) + f"\n{words}")
    ax.legend(loc="upper left", fontsize=8)
    ax.set_ylabel("speedup over model partitioning")
    ax.set_title("(d) training: multigrid over model partitioning", loc="left", size=10)
