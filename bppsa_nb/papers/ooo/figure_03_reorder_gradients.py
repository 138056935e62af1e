"""Figure 3 of ooo backprop: the dependencies of gradients, and two orders that respect them."""

import numpy as np
import pandas as pd

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import Claim, Figure, where
from bppsa_nb.papers.ooo import execution
from bppsa_nb.schedule import draw
from bppsa_nb.schedule.timeline import place
from bppsa_nb.sparse import LeNet5
from bppsa_nb.training.loss import cross_entropy

RUNS, IMAGES = 20, 8  # of LeNet-5
POLICIES = {"conventional": "(a) conventional backprop", "fast_forward": "(b) out-of-order backprop"}
LANES = {"δO": "output gradient δO", "": "", "δW": "weight gradient δW", "U": "update U"}  # room for arrows


def measure(scale, rng, progress):
    """Schedule the second device's gradients, a row for each and for each update; run LeNet-5 in random orders."""
    parts = []
    for policy in POLICIES:
        timeline = schedule.pipeline(schedule.Network.uniform(8), 2, policy=policy)
        timeline.check()
        events = pd.DataFrame(timeline.events).assign(policy=policy, layer=timeline.operations.layer)
        mine = events.query("worker == 1 and kind != 'F'").drop(columns=["worker", "label"])
        mine["start"] -= mine["start"].min()
        weights = where(mine, kind="δW")
        updates = weights.assign(kind="U", start=weights["start"] + weights["duration"], duration=0.0)
        parts.append(pd.concat([mine, updates]).sort_index(kind="stable"))
    return pd.concat([*parts, pd.DataFrame(_runs(np.random.default_rng(rng)))], ignore_index=True)


def _runs(rng):
    """Yield a row per random order: how far LeNet-5's gradients are from those of the ordinary backward pass."""
    network = LeNet5(rng)
    x = rng.standard_normal((IMAGES, 3, 32, 32)).astype(np.float32)
    labels = rng.integers(0, 10, IMAGES)
    activations = network.forward(x)
    expected = network.backward(activations, cross_entropy(activations.logits, labels)[1], "ordinary")
    ops = schedule.pipeline(schedule.Network.uniform(len(schedule.split(network))), 1).operations
    for run in range(RUNS):
        timeline = place(ops, [], rng.permutation(len(ops)), "random")
        grads = execution.run(timeline, network, x, labels).grads
        difference = max(float(np.abs(grads[name] - grad).max()) for name, grad in expected.items())
        order = " ".join(f"{kind}{layer}" for kind, layer, _ in timeline.order(0) if kind != "F")
        yield {"policy": "random", "run": run, "order": order, "difference": difference}


def facts(table):
    """Find when the last output gradient is there, and how far gradients of random orders are from the usual ones."""
    output, worst = where(table, kind="δO"), table["difference"].max()
    return {
        "ready": (output["start"] + output["duration"]).groupby(output["policy"]).max(),
        "runs": table["run"].count(),
        "worst": worst,
        "near": f"to {worst:.0e}" if worst else "to the last bit",
    }


def plot(table):
    fig, axes = panels.subplots(len(POLICIES), figsize=(7.6, 4.8), sharex=True)
    ready = facts(table)["ready"]
    for ax, (policy, title) in zip(axes, POLICIES.items(), strict=True):
        _draw(ax, where(table, policy=policy))
        ax.axvline(ready[policy], color="#D55E00", ls="--", lw=1.6)
        ax.set_title(f"{title}: handed over after {ready[policy]:g} units", loc="left", size=10)
    axes[-1].set(xlabel="unit times of the backward pass", xlim=(0, table["start"].max() + 0.25))
    return fig


def _draw(ax, rows):
    bars = rows[rows["kind"] != "U"]
    bars = bars.assign(worker=bars["kind"].map(list(LANES).index), label=bars["layer"].astype(int).astype(str))
    draw.timeline(timelines.events(bars), ax, worker=list(LANES.values()), thin=[1], unit="", legend=False)
    weight, update = ax.get_yticks()[2:]
    ends = {(row.kind, row.layer): row.start + row.duration for row in rows.itertuples()}
    for (kind, layer), end in ends.items():
        made = ends.get(("δO", layer + 1))
        if kind == "U":
            ax.plot(end, update, "D", color="#222222", ms=7, clip_on=False)
            _arrow(ax, (end - 0.5, weight + 0.4), (end - 0.08, update - 0.15))
        elif made and kind == "δO":  # along the lane, above the bars
            _arrow(ax, (made - 0.5, -0.4), (end - 0.5, -0.4), bend=-0.35)
        elif made:
            _arrow(ax, (made - 0.12, 0.4), (end - 0.85, weight - 0.4))
    ax.set_ylim(update + 0.5, -1.15)


def _arrow(ax, tail, head, bend=0.0):
    style = {"arrowstyle": "-|>", "color": "#222222", "lw": 1.1, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    ax.annotate("", head, tail, arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"}, zorder=6)


FIGURE = Figure(
    origin="counted",
    caption="""Weight gradients can wait: nothing but a layer's own update reads one. Arrows point from a result to what
    reads it. Dashed: the gradient that the GPU with layers 1 to 4 waits for is there. Simulated: one GPU with layers 5
    to 8 of eight, every gradient one unit; updates U are drawn without duration. Run, on LeNet-5: {runs} random orders
    that respect the arrows gave the gradients of the ordinary backward pass, {near}.""",
    alt="""Two timelines of a backward pass over layers 8 to 5 with a lane each for output gradients, weight gradients
    and updates. Arrows run from each output gradient to the next lower layer's output and weight gradient, and from
    each weight gradient to its update. Conventional: weight and output gradients take turns, and the last output
    gradient is ready after {ready[conventional]} units. Output gradients first: it is ready after
    {ready[fast_forward]}, then four weight gradients follow.""",
    claims=[
        Claim("§3, Figure 3", "Weight gradients are used by no other gradient, so reordering them changes none.",
              "no change in semantics", "{worst} at most, in {runs} random orders on LeNet-5",
              lambda f: f["worst"] == 0),
    ],
)
