"""Figures 6 and 7 of layer-parallel training: strong scaling over ranks, measured and simulated."""

import itertools
from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator

from bppsa_nb.papers import panels, provenance
from bppsa_nb.papers import ranks as on_ranks
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.papers.ranks import FAST, LINKS, SLOW
from bppsa_nb.schedule import events as timeline

IMAGE, KERNEL = 24, 7
FEW, MANY = 4, 20  # channels: Figure 6's (with 4093 layers, its 3,248,534 parameters; the text says 50), Figure 7's
DEPTHS = {"quick": {FEW: 1024, MANY: 128}, "paper": {FEW: 4096, MANY: 512}}
ROUNDS = {"quick": {FEW: 5, MANY: 4}, "paper": {FEW: 9, MANY: 5}}
COARSENING, LEVELS, CYCLES = 4, 4, 2
DEPTH, RANKS = 4096, (1, 2, 4, 8, 16, 24, 32, 64)  # of the simulation
CASES = {  # of which task, and over what
    "inference": (FEW, "inference", "speedup"),
    "training": (FEW, "training", "speedup"),
    "few": (FEW, "training", "gain"),
    "many": (MANY, "training", "gain"),
}


def measure(scale, rng, progress):
    """Run the package's program on ranks, and simulate: a row per network, ranks, link, method and task."""
    seed = int(np.random.default_rng(rng).integers(2**31))
    unit = COARSENING ** (LEVELS - 1)
    points = []
    for channels, depth in DEPTHS[scale].items():
        most = min(provenance.cores(), depth // unit)
        points += [{"channels": channels, "depth": depth, "ranks": 2**i} for i in range(most.bit_length())]
    measured = progress.collect(points, lambda point, _: _run(**point, rounds=ROUNDS[scale], seed=seed), rng)
    rows = []
    for channels, depth in DEPTHS[scale].items():
        one = where(measured, channels=channels, ranks=1)
        costs = _costs(one.set_index(["method", "task"])["compute"], depth)
        for link, ranks in itertools.product(LINKS, RANKS):
            rows += _simulated(channels, ranks, costs, link)
    table = pd.concat([measured, pd.DataFrame(rows)], ignore_index=True)
    key = ["channels", "part", "link", "task"]
    alone = where(table, method="serial", ranks=1).set_index(key)["seconds"]
    return table.join(alone.rename("alone"), on=key)  # what serial propagation takes on one rank


def _run(channels, depth, ranks, rounds, seed):
    """Run the program on some ranks, one thread each; return a row per method and task."""
    network = ["--depth", depth, "--channels", channels, "--kernel", KERNEL, "--image", IMAGE, "--activation", "relu"]
    how = ["--coarsening", COARSENING, "--levels", LEVELS, "--cycles", CYCLES, "--dtype", "float32", "--backend", "cpu"]
    rounds = ["--repeat", rounds[channels], "--seed", seed]
    times = pd.DataFrame(on_ranks.run(ranks, "layers", *network, *how, *rounds)["rows"])
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


def _simulated(channels, ranks, costs, link):
    message, rows = LINKS[link].seconds(4 * channels * IMAGE**2), []
    for method, levels in ("multigrid", LEVELS), ("serial", 1):
        step = _record(DEPTH, ranks, CYCLES, COARSENING, levels)
        for task, recorded in ("inference", step.part("F")), ("training", step):
            events, _ = recorded.timeline(costs[method], message)
            seconds, compute = timeline.makespan(events), recorded.work(costs[method]) / ranks
            row = {"channels": channels, "depth": DEPTH, "ranks": ranks, "part": "simulated", "link": link}
            row |= {"method": method, "task": task, "seconds": seconds}
            rows.append(row | {"compute": compute, "communication": seconds - compute})
    return rows


def ratios(table):
    """Add `speedup` over serial propagation on one rank, and `gain` over that on as many; what share of time `waits`.

    `source` is a link of the simulation, or "measured".
    """
    key = ["channels", "part", "link", "task", "ranks"]
    table = table.join(where(table, method="serial").set_index(key)["seconds"].rename("partitioned"), on=key)
    return table.assign(
        speedup=table["alone"] / table["seconds"],
        gain=table["partitioned"] / table["seconds"],
        waits=table["communication"] / (table["compute"] + table["communication"]),
        source=table["link"].where(table["part"] == "simulated", table["part"]),
    )


def facts(table):
    """Compare multigrid with serial propagation, on one rank and on as many: simulated over Ethernet, and measured."""
    by = ratios(table).set_index(["method", "task", "source", "channels", "ranks"]).sort_index()
    multigrid, serial, links = by.loc["multigrid"], by.loc["serial"], [*LINKS]
    found = {
        "slower": 1 / multigrid["speedup"]["inference", "measured", FEW, 1],
        "waits": multigrid["waits"]["training", SLOW, FEW, RANKS[-1]],
    }
    for name, (channels, task, ratio) in CASES.items():
        simulated, measured = (multigrid[ratio][task, source, channels] for source in (SLOW, "measured"))
        found[name] = {"simulated": simulated, "measured": measured.tail(1)}
    for task in ("inference", "training"):
        over = [multigrid["speedup"][task, link, FEW] for link in links]
        first = [each.index[each > 1].min() for each in over]
        found[task]["passes"] = [f"passes 1 on {ranks} ranks" if ranks > 0 else "stays below 1" for ranks in first]
        found[task]["multigrid"] = [each[RANKS[-1]] for each in over]
        found[task]["serial"] = [serial["speedup"][task, link, FEW, RANKS[-1]] for link in links]
    return found


def plot(table):
    fig, axes = panels.subplots(2, 2, figsize=(9.6, 7.6))
    table = ratios(table)
    few = where(table, channels=FEW)
    labels = {"measured": "multigrid, measured"} | {link: f"simulated, {link}" for link in LINKS}
    for ax, task in zip(axes[0], ("inference", "training"), strict=True):
        rows = where(few, task=task)
        _draw(ax, where(rows, method="multigrid"), "speedup", "multigrid", labels)
        _draw(ax, where(rows, method="serial"), "speedup", "linear", {"measured": "model partitioning, measured"}, "s")
        ax.set_ylabel("speedup over serial propagation")
    # What the paper's text says of its GPUs, over serial propagation on one, and over model partitioning.
    axes[0, 0].plot([1, 4, 24], [1 / 4, 1.25, 4], "*", color="black", ms=9, label="multigrid, paper")
    axes[0, 0].legend(loc="upper left", fontsize=8)
    axes[0, 1].axhline(3.5, color="black", lw=0.8)
    axes[0, 1].text(1, 3.5 * 1.06, "paper, multigrid: at most 3.5,\nand 5 over model partitioning", size=8)
    _draw_decomposition(axes[1, 0], where(few, task="training", method="multigrid"))
    _draw_against_partitioning(axes[1, 1], where(table, task="training", method="multigrid"))
    titles = ["inference", "training"]
    titles += ["training by multigrid: a rank's time", "training: multigrid over model partitioning"]
    for ax, letter, title in zip(axes.flat, "abcd", titles, strict=True):
        ax.set_title(f"({letter}) {title}", loc="left", size=10)
        ax.set_xlabel("ranks (paper: GPUs)")
        panels.log_scale(ax, ticks=[ranks for ranks in RANKS if ranks.bit_count() == 1])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ax is not axes[1, 0] else (1,)))
        ax.minorticks_off()
    return fig


def _draw(ax, rows, y, role, labels, marker="o"):
    """Draw what was simulated as lines, a label for each, and what was measured as marks."""
    looks = {SLOW: {"ls": "--"}, FAST: {"ls": ":"}, "measured": {"ls": "", "marker": marker}}
    styles = {source: look | {"label": labels.get(source)} for source, look in looks.items()}
    panels.curves(ax, rows, "ranks", y, "source", styles, color=COLORS[role])


def _draw_decomposition(ax, rows):
    """Draw what a rank's time goes to, over serial propagation's time on one rank."""
    for part, role, marker in ("compute", "matrix", "o"), ("communication", "vector", "s"):
        drawn = rows[rows[part] > 0]
        drawn = drawn.assign(part=drawn[part] / drawn["alone"])
        _draw(ax, drawn, "part", role, {"measured": f"{part}, measured"}, marker)
    shares = where(rows, ranks=RANKS[-1]).set_index("source")["waits"]
    texts = "".join(f"\n{shares[link]:.0%} over {link}" for link in LINKS)
    text = f"communication at {RANKS[-1]}: 97% in the paper,{texts}"
    ax.text(0.98, 0.97, text, transform=ax.transAxes, ha="right", va="top", size=8)
    seconds = rows[["compute", "communication"]].div(rows["alone"], axis=0)
    ax.set_ylim(0.3 * seconds[seconds > 0].min().min(), 2 * seconds.max().max())
    ax.legend(loc="lower right", ncols=2, fontsize=8)
    ax.set_ylabel("time / serial propagation's")


def _draw_against_partitioning(ax, rows):
    for channels, role in (FEW, "chunked"), (MANY, "truncated"):
        _draw(ax, where(rows, channels=channels), "gain", role, {SLOW: f"{channels} channels"})
    ax.plot([4, 64], [1.3, 10.2], "*", color="black", ms=9, label="2 billion parameters, paper")
    ax.axhline(1, color=COLORS["baseline"], lw=0.8)
    theirs = "paper, computation to communication:\n92.8% at 4, 34.5% at 64 GPUs"
    ax.text(0.98, 0.02, theirs, transform=ax.transAxes, ha="right", size=8)
    ax.legend(loc="upper left", fontsize=8)
    ax.set_ylabel("speedup over model partitioning")


FIGURE = Figure(
    origin="timed", backend="cpu",
    caption="""On 64 ranks, multigrid is {inference[multigrid]:.2g} times as fast as serial propagation on one in
    inference, and {training[multigrid]:.2g} times in training (simulated). Model partitioning, serial propagation from
    rank to rank, is {inference[serial]:.2g} and {training[serial]:.2g} times as fast. Dots are measured on this
    machine's cores, on 1024 layers and, with 20 channels, on 128 (4096 and 512 at the paper's scale). Lines are
    simulated, of 4096 layers: a recorded step, scheduled. Layer steps cost what one rank measured; a message takes 30
    µs and 25 Gb/s (the paper's Ethernet, whose latency it does not say) or 2 µs and 200 Gb/s. 4 channels of 24 x 24,
    kernels of 7 x 7, ReLU; one image, float32, one thread per rank; two V-cycles, FCF, four levels of blocks of 4.
    Communication is messages and waiting; 24 ranks wait longer, as they divide no level's blocks evenly. Black: the
    paper's V100s. (d) 20 channels, as in Figure 7's convolutions.""",
    alt="""Four plots on logarithmic axes over 1 to 64 ranks; dots are at the few ranks that were measured, lines are
    simulated. Speedup over serial propagation by multigrid {inference[passes]} in inference; in training it
    {training[passes]}. At 64 it is {inference[multigrid]:.2g} and {training[multigrid]:.2g}, by model partitioning
    {inference[serial]:.2g} and {training[serial]:.2g}. The paper's stars for inference are 0.25, 1.25 and 4 at 1, 4 and
    24 GPUs; its best in training is a line at 3.5. A rank's time in training: computing and communication. Multigrid
    over model partitioning, with the paper's stars, 1.3 at 4 and 10.2 at 64 GPUs.""",
    claims=[
        Claim("§IV-C, Figure 6a", "On one device, multigrid is slower than serial propagation.",
              "about 4× slower (V100; how many cycles is not said)",
              f"{{slower:.1f}}× slower on one CPU rank, {CYCLES} cycles", lambda f: compare(1 / f["slower"], 1 / 4)),
        Claim("§IV-C, Figure 6a", "Inference over serial propagation on one GPU.", "1.25× on 4 GPUs, 4× on 24 (V100)",
              "simulated from stated costs: {inference[simulated][4]:×} on 4, {inference[simulated][24]:×} on 24; "
              "measured: {inference[measured]:× on _ CPU ranks}",
              lambda f: compare(f["inference"]["simulated"][[4, 24]], [1.25, 4]), gpu=True),
        Claim("§IV-D, Figure 6b", "Training over serial propagation on one GPU, 3 million parameters.",
              "up to 3.5× (V100)", "simulated from stated costs: {training[simulated][64]:×} on 64; measured: "
              "{training[measured]:× on _ CPU ranks}",
              lambda f: compare(f["training"]["simulated"][64], 3.5), gpu=True),
        Claim("§IV-D, Figure 6b", "Training over a partitioned model on as many GPUs.", "up to 5× (V100)",
              "simulated from stated costs: {few[simulated][64]:×} on 64; measured: {few[measured]:× on _ CPU ranks}",
              lambda f: compare(f["few"]["simulated"][64], 5), gpu=True),
        Claim("§IV-D, Figure 6c", "On 64 GPUs, communication is nearly all of the time.", "97 % (V100)",
              f"simulated from stated costs: {{waits:.0%}} of a rank's time over {SLOW}", lambda f: f["waits"] >= 0.9,
              gpu=True),
        Claim("§IV-E, Figure 7", "Training over a partitioned model, 2 billion parameters.",
              "1.3× on 4 GPUs, 10.2× on 64 (V100)", "simulated from stated costs: {many[simulated][4]:×} on 4, "
              "{many[simulated][64]:×} on 64; measured: {many[measured]:× on _ CPU ranks}",
              lambda f: compare(f["many"]["simulated"][[4, 64]], [1.3, 10.2]), gpu=True),
    ],
)
