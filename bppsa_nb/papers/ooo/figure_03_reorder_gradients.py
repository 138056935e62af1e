"""Figure 3 of ooo backprop: what waits for what in a backward pass, and the freedom that leaves."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.schedule import draw
from bppsa_nb.sparse import LeNet5
from bppsa_nb.training.loss import cross_entropy

LAYERS, DEVICES, SHOWN = 8, 2, 1  # the second of two devices
RUNS, IMAGES = 20, 8  # of LeNet-5
POLICIES = {"conventional": "(a) conventional backprop", "fast_forward": "(b) out-of-order backprop"}
LANES = {"δO": "output gradient δO", "": "", "δW": "weight gradient δW", "U": "update U"}  # room for arrows


def measure(scale, rng, progress):
    """Schedule one device's gradients, a row for each and for each update; run LeNet-5 in `RUNS` random orders."""
    rows = []
    for policy in POLICIES:
        timeline = schedule.pipeline(schedule.Network.uniform(LAYERS), DEVICES, policy=policy)
        timeline.check()
        ops = timeline.operations
        mine = [i for i, event in enumerate(timeline.events) if event.worker == SHOWN and event.kind != "F"]
        begin = min(timeline.start[i] for i in mine)
        for i in mine:
            event, layer = timeline.events[i], int(ops.layer[i])
            took = {"policy": policy, "layer": layer, "start": event.start - begin, "duration": event.duration}
            rows.append(took | {"kind": event.kind})
            if event.kind == "δW":
                rows.append(took | {"kind": "U", "start": event.end - begin, "duration": 0.0})
    return pd.DataFrame(rows + list(_runs(np.random.default_rng(rng))))


def shuffled(timeline, rng):
    """Put a single device's operations into a random order that respects what they need."""
    ops, done, now = timeline.operations, set(), 0.0
    start = np.empty(len(ops))
    while len(done) < len(ops):
        ready = [i for i in range(len(ops)) if i not in done and done.issuperset(ops.needs[i][ops.needs[i] >= 0])]
        i = int(rng.choice(ready))
        start[i] = now
        now += ops.duration[i]
        done.add(i)
    return schedule.Timeline(ops, start, "random")


def _runs(rng):
    """Yield a row per random order: how far LeNet-5's gradients are from those of the ordinary backward pass."""
    network = LeNet5(rng)
    x = rng.standard_normal((IMAGES, 3, 32, 32)).astype(np.float32)
    labels = rng.integers(0, 10, IMAGES)
    activations = network.forward(x)
    expected = network.backward(activations, cross_entropy(activations.logits, labels)[1], "ordinary")
    plan = schedule.pipeline(schedule.Network.uniform(len(schedule.split(network))), 1)
    for run in range(RUNS):
        timeline = shuffled(plan, rng)
        with schedule.Executor(timeline, network, IMAGES) as executor:
            grads = executor(x, labels).grads
        difference = max(float(np.abs(grads[name] - grad).max()) for name, grad in expected.items())
        order = " ".join(f"{kind}{layer}" for kind, layer, _ in timeline.order(0) if kind != "F")
        yield {"policy": "random", "run": run, "order": order, "difference": difference}


def values(table):
    """Return what words need beside the table: how near the gradients of random orders came."""
    worst = table["difference"].max()
    return {"near": f"to {worst:.0e}" if worst else "to the last bit"}


def plot(table):
    """Draw a lane for each kind of operation, and arrows between them."""
    fig, axes = pyplot.subplots(len(POLICIES), figsize=(7.6, 4.8), sharex=True, layout="constrained")
    for ax, (policy, title) in zip(axes, POLICIES.items(), strict=True):
        _draw(ax, table[table["policy"] == policy], title)
    axes[-1].set(xlabel="unit times of the backward pass", xlim=(0, table["start"].max() + 0.25))
    return fig


def _draw(ax, rows, title):
    bars = rows[rows["kind"] != "U"]
    bars = bars.assign(worker=bars["kind"].map(list(LANES).index), label=bars["layer"].astype(int).astype(str))
    draw.timeline(timelines.events(bars), ax, worker=list(LANES.values()), thin=[1], unit="", legend=False)
    weight, update = ax.get_yticks()[2:]
    place = {(row.kind, row.layer): (row.start, row.start + row.duration) for row in rows.itertuples()}
    for kind, layer in place:
        start, end = place[kind, layer]
        if kind == "U":
            ax.plot(end, update, "D", color="#222222", ms=7, clip_on=False)
            _arrow(ax, (end - 0.5, weight + 0.4), (end - 0.08, update - 0.15))
        elif ("δO", layer + 1) in place:
            made = place["δO", layer + 1][1]
            if kind == "δO":  # along the lane, above the bars
                _arrow(ax, (made - 0.5, -0.4), (start + 0.5, -0.4), bend=-0.35)
            else:
                _arrow(ax, (made - 0.12, 0.4), (start + 0.15, weight - 0.4))
    ready = rows.loc[rows["kind"] == "δO"].assign(end=lambda each: each["start"] + each["duration"])["end"].max()
    ax.axvline(ready, color="#D55E00", ls="--", lw=1.6)
    ax.set_ylim(update + 0.5, -1.15)
    ax.set_title(f"{title}: handed over after {ready:g} units", loc="left", size=10)


def _arrow(ax, tail, head, bend=0.0):
    style = {"arrowstyle": "-|>", "color": "#222222", "lw": 1.1, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    ax.annotate("", head, tail, arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"}, zorder=6)
