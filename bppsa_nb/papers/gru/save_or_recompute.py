"""Save or recompute: memory against work."""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.ticker import MultipleLocator

from bppsa_nb.graphs import library, saving
from bppsa_nb.machine.workers import one_blas_thread
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.timing import quartiles, take_turns

# Samples and hidden size, for the subsets and for the chain.
SIZES = {"quick": {"B": 64, "H": 256}, "paper": {"B": 128, "H": 1024}}
CHAIN = {"quick": {"B": 16, "H": 64}, "paper": {"B": 128, "H": 256}}
LENGTHS = {"quick": (4, 9, 16, 25, 36, 49, 64), "paper": (4, 16, 36, 64, 100, 144, 196, 256)}
SECONDS = {"quick": 0.7, "paper": 60.0}  # for all subsets; as much again for all lengths

NAMES = {
    frozenset(): "nothing",
    frozenset({"r", "z", "c"}): "variant 3",
    frozenset({"r", "z", "Uh"}): "variant 4",
    frozenset({"r", "z", "c", "Uh", "keep"}): "everything",
}
STYLES = {
    "nothing": ("o", COLORS["vector"]),
    "variant 3": ("D", COLORS["linear"]),
    "variant 4": ("s", COLORS["blelloch"]),
    "everything": ("^", COLORS["identity"]),
    "h every √T steps": ("v", COLORS["truncated"]),
}


@dataclass(eq=False)
class ChainRun:
    """What back-propagation through a chain gave, and what it took."""

    grads: dict[str, np.ndarray] = field(default_factory=dict)  # by the parameters' names; "h" is the initial state's
    steps: int = 0  # forward steps that ran, those that ran again included
    held: int = 0  # the most arrays (B, H) held at a time, hidden states and other activations; not the inputs


def backpropagate(step, inputs, parameters, h0, grad_output, every):
    """Run a recurrent step over time and back-propagate, keeping everything, nothing, or a hidden state now and then.

    `step` is a graph with an input ``h`` and an output ``h_next``; `inputs` are dicts of its other inputs, one for
    every step. `h0` and `grad_output` are the initial state and the gradient at the last one. `every`
    says what the first pass keeps: with 0, all activations that the backward pass reads; with k > 0, the hidden state
    at every k-th step, from which k steps are recomputed and held at a time; with None, nothing, so that every step is
    recomputed from `h0`.
    """
    steps, back, run = len(inputs), step.backward(), ChainRun()
    run.grads = {name: np.zeros_like(value) for name, value in parameters.items()}
    at_hand = {node.name: parameters[node.name] for node in back.nodes if node.op == "parameter"}

    def forward(h, start, stop):
        """Yield what the backward pass reads, step by step."""
        for t in range(start, stop):
            known = step.run({**parameters, **inputs[t], "h": h}, [*back.saved, "h_next"])
            run.steps += 1
            yield {name: known[name] for name in back.saved}
            h = known["h_next"]

    error, starts = grad_output, range(0, steps, every or max(steps, 1))
    # The first pass keeps states, or, if it keeps everything, is the one below.
    states = [read["h"] for t, read in enumerate(forward(h0, 0, steps)) if t in starts] if every != 0 else [h0][:steps]
    while states:
        start = starts[len(states) - 1]
        stop = min(start + starts.step, steps)
        for end in reversed(range(1, stop + 1)) if every is None else [stop]:
            kept = list(forward(states[-1], start, end))[-1 if every is None else 0 :]
            held = [*states, *(array for read in kept for array in read.values())]
            run.held = max(run.held, len({id(array) for array in held}))
            for read in reversed(kept):
                errors = back.run(read | at_hand | {"grad_h_next": error})
                for name in parameters:
                    run.grads[name] += errors[f"grad_{name}"]
                error = errors["grad_h"]
        states.pop()
    run.grads["h"] = error
    return run


def measure(scale, rng, progress):
    """Count and time all subsets, then the chain: `part` is "subset" or "chain"."""
    subsets = progress.collect([SIZES[scale]], partial(time_subsets, seconds=SECONDS[scale]), rng)
    points = [{"T": T} | CHAIN[scale] for T in LENGTHS[scale]]
    chain = progress.collect(points, partial(time_chain, seconds=SECONDS[scale] / len(points)), rng)
    return pd.concat([subsets.assign(part="subset"), chain.assign(part="chain")], ignore_index=True)


def time_subsets(point, rng, seconds):
    """Count and time what recomputing takes, a row for each subset of the activations that the backward pass reads."""
    graph = library.gru_moved_reset()
    unit = point["B"] * point["H"]
    choices = saving.choices(graph, point)
    values = random_values(graph, point, rng)
    everything, read = graph.run(values), graph.backward().saved
    kept = [values | {name: everything[name] for name in choice.saved} for choice in choices]
    times = timed([partial(graph.run, each, read) for each in kept], seconds)
    rows = []
    for choice, took in zip(choices, times, strict=True):
        name = NAMES.get(frozenset(choice.saved), "another")
        row = {"name": name, "saved": ", ".join(choice.saved) or "nothing"}
        row |= {"kept": choice.kept / unit, "kept_inputs": choice.kept_inputs / unit, "work": choice.work / unit}
        rows.append(row | {"products": choice.products, "launches": choice.launches} | took)
    return rows


def time_chain(point, rng, seconds):
    """Count and time back-propagation through a chain: everything saved, nothing, and in between, a row each."""
    graph, T = library.gru_moved_reset(), point["T"]
    values = random_values(graph, point, rng)
    parameters = {name: values.pop(name) for name in ("U_r", "U_z", "U")}
    h0 = values.pop("h")
    inputs = [{name: rng.normal(size=h0.shape).astype(np.float32) for name in values} for _ in range(T)]
    grad = rng.normal(size=h0.shape).astype(np.float32)
    ways = {"everything": 0, "h every √T steps": math.isqrt(T), "nothing": None}
    runs = [partial(backpropagate, graph, inputs, parameters, h0, grad, every) for every in ways.values()]
    counted = [run() for run in runs]
    return [
        {"name": name, "steps": run.steps, "held": run.held} | took
        for name, run, took in zip(ways, counted, timed(runs, seconds), strict=True)
    ]


def timed(calls, seconds):
    """Time calls that take turns, with one BLAS thread, so that small products do not wait for each other's threads."""
    with one_blas_thread():
        rounds = take_turns(calls, seconds)
    return [quartiles("seconds", times) | {"rounds": len(rounds)} for times in rounds.T]


def random_values(graph, sizes, rng):
    """Draw float32 inputs and parameters of a step; weights of the usual size, 1 / sqrt(H)."""
    values = {}
    for node in graph.nodes:
        if not node.inputs:
            scale = 1 / math.sqrt(sizes["H"]) if node.op == "parameter" else 1
            values[node.name] = rng.normal(0, scale, [sizes[size] for size in node.shape]).astype(np.float32)
    return values


def facts(table):
    """Divide the steps that run forward by T, with everything saved, and by T² with nothing."""
    steps = where(table, part="chain").pivot(index="T", columns="name", values="steps")
    return {"T": steps.index, "nothing": steps["nothing"] / steps.index**2, "all": steps["everything"] / steps.index}


def plot(table):
    fig, axes = panels.subplots(2, 3, figsize=(10.4, 6.4))
    subsets, chain = table[table["part"] == "subset"], table[table["part"] == "chain"]
    B, H = (int(subsets[size].iloc[0]) for size in "BH")
    kept, work, ms = subsets["kept"], subsets["work"], 1e3 * subsets["seconds"]
    for ax, title, memory, cost in (
        (axes[0, 0], "(a) Counted, input products at hand", kept, work),
        (axes[0, 1], "(b) Counted, input products as well", kept + subsets["kept_inputs"], work),
        (axes[0, 2], f"(c) Measured, B = {B}, H = {H}", kept, ms),
    ):
        _trade(ax, subsets["name"], memory, cost)
        ax.set_title(title, size=10)
        ax.set(xlim=(-0.3, 5.3), xlabel="activations kept, arrays per step")
        ax.xaxis.set_major_locator(MultipleLocator(1))
        if cost is work:
            ax.set_yscale("symlog", linthresh=1, linscale=0.4)
            ax.set(ylim=(-0.25, 6 * H), ylabel="operations again, per hidden unit")
        else:
            low, high = (1e3 * subsets[f"seconds_{end}"] for end in ("low", "high"))
            ax.vlines(kept, low, high, color="#BBBBBB", lw=1.2, zorder=1)
            ax.set(ylim=(0, None), ylabel="ms to recompute, per step")
    B, H = (int(chain[size].iloc[0]) for size in "BH")
    styles = {name: {"marker": STYLES[name][0], "color": STYLES[name][1], "label": name} for name in chain["name"]}
    for ax, title, column, label in (
        (axes[1, 0], "(d) Chain, counted", "steps", "forward steps run"),
        (axes[1, 1], f"(e) Chain, measured, B = {B}, H = {H}", "seconds", "seconds, both passes"),
        (axes[1, 2], "(f) Chain, memory", "held", "arrays held at a time"),
    ):
        panels.curves(ax, chain, "T", column, "name", styles, ms=5)
        ax.set_title(title, size=10)
        panels.log_scale(ax, "x", ticks=sorted(chain["T"].unique()))
        ax.set(yscale="log", xlabel="steps in the chain, T", ylabel=label)
    handles = [*axes[0, 0].get_legend_handles_labels()[0], *axes[1, 0].get_legend_handles_labels()[0]]
    by_name = {handle.get_label(): handle for handle in handles}  # a line where there is one, the marker elsewhere
    panels.legend(fig, list(by_name.values()))
    return fig


def _trade(ax, names, memory, cost):
    """Draw cost over memory, and a line along the best of them."""
    ax.plot(memory, cost, "o", ms=4, color="#BBBBBB", zorder=2, label="another subset")
    points = list(zip(memory, cost, strict=True))
    best = sorted({point for point, good in zip(points, saving.front(points), strict=True) if good})
    ax.step(*zip(*best, strict=True), where="post", color=COLORS["baseline"], lw=1.1, zorder=1, label="best trade-offs")
    for name, (marker, color) in STYLES.items():
        if (names == name).any():
            ax.plot(memory[names == name], cost[names == name], marker, ms=8, color=color, ls="", zorder=3, label=name)


FIGURE = Figure(
    origin="timed", backend="numpy",
    caption="""Variant 4 costs no more memory than variant 3 and no product if input products are at hand anyway (a).
    Counted with them (b), keeping the candidate instead takes as much and recomputes less. A dot of the first row is a
    subset of the five activations (r, z, candidate, U h, 1 - z) that the backward pass of a step reads. (c) is (a)
    measured, in NumPy on one thread, a few microseconds of Python's included. (d-f) T steps in a chain: saving
    everything; saving nothing, which means T² / 2 steps more; between them, a hidden state every √T steps. Medians of
    rounds, all in turns, with quartiles.""",
    alt="""Six plots. First row, work to recompute over arrays kept per step, 32 dots each, and a line along the best
    trade-offs. With the input products at hand, variant 4 of the GRU lies on it, straight below variant 3; counted with
    them, only variant 3 does; the third plot has measured milliseconds. Second row, over the length T of a chain: steps
    run, seconds, and arrays held. Saving nothing grows quadratically in steps, and holds a constant number of arrays. A
    hidden state every √T steps runs twice the steps, and holds far fewer arrays than saving everything.""",
    claims=[
        Claim("appendix", "Without saved activations, work grows polynomially with depth; with all, linearly.",
              "polynomially; linearly",
              "{nothing:.2f} times T² steps, with all saved {all:g} times T; T from {T:g}",
              lambda f: f["nothing"].max() <= 3 * f["nothing"].min() and (f["all"] == 1).all(), "printed"),
    ],
)
