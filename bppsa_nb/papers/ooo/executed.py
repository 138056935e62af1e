"""Predicted and run: pipelines of a real network, scheduled from its profile and executed by two processes."""

from contextlib import ExitStack

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb import schedule
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where
from bppsa_nb.schedule.operations import F
from bppsa_nb.sparse import Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU

POLICIES = ("conventional", "gpipe", "fast_forward", "modulo", "1f1b", "zero_bubble")
DRAWN = ("gpipe", "zero_bubble")
_NAMES = dict(zip(POLICIES, ("conventional", "GPipe", "fast-forward", "modulo", "1F1B", "zero-bubble"), strict=True))
DEVICES, MICRO_BATCHES, BATCH = 2, 4, 8  # BATCH images in each micro-batch
ROUNDS = {"quick": 6, "paper": 60}


def network(seed):
    """Make a convolutional network of eight layers; its weights begin by He initialization."""
    operators, channels = [], 3
    for i, outputs in enumerate((16, 16, 32, 32, 48, 48), 1):
        operators += [Conv2d(f"conv{i}", channels, outputs, 3, padding=1), ReLU(f"relu{i}")]
        channels = outputs
        if i % 2 == 0:
            operators.append(MaxPool2d(f"pool{i}", 2))
    operators += [Flatten("flatten"), Linear("fc1", 16 * channels, 128), ReLU("relu7"), Linear("fc2", 128, 10)]
    return Network((3, 32, 32), operators, init="he", rng=seed)


def measure(scale, rng, progress):
    """Profile the network and the link, schedule, run: a row per layer, boundary, policy and round, and drawn event."""
    rng = np.random.default_rng(rng)
    model, rounds = network(rng), ROUNDS[scale]
    x = rng.standard_normal((MICRO_BATCHES * BATCH, 3, 32, 32)).astype(np.float32)
    labels = rng.integers(10, size=len(x))
    costs = schedule.profile(model, x[:BATCH], labels[:BATCH], rounds)
    latency, bandwidth, rows = link(model, x[:BATCH], labels[:BATCH], costs, rounds)
    boundary = schedule.transfer_time(costs.memory.output_grad[:-1], bandwidth, latency)
    columns = zip(costs.forward, costs.output_grad, costs.weight_grad, strict=True)
    rows += [
        {"part": "layer", "layer": i, "forward": f, "output_grad": o, "weight_grad": w}
        for i, (f, o, w) in enumerate(columns, 1)
    ]
    plans = {
        policy: schedule.pipeline(costs, DEVICES, MICRO_BATCHES, policy, boundary_cost=boundary) for policy in POLICIES
    }
    with ExitStack() as stack:
        runs = {name: stack.enter_context(schedule.Executor(plan, model, len(x))) for name, plan in plans.items()}
        turns = [{policy: run(x, labels).timeline for policy, run in runs.items()} for _ in range(1 + rounds)]
    for policy, plan in plans.items():
        measured = [turn[policy] for turn in turns[1:]]  # the first one touches the memory
        spans = [timeline.makespan for timeline in measured]
        same = {"part": "policy", "policy": policy, "predicted": plan.makespan}
        rows += [same | {"round": i, "measured": span} for i, span in enumerate(spans)]
        if policy in DRAWN:
            middle = measured[int(np.argsort(spans)[len(spans) // 2])]
            for which, timeline in (("predicted", plan), ("measured", middle)):
                rows += timelines.rows(timeline, part="event", policy=policy, which=which)
    table = pd.DataFrame(rows)
    table.attrs = {"data": "synthetic", "backend": "numpy", "latency": latency, "bandwidth": bandwidth}
    return table


def link(model, x, labels, costs, rounds):
    """Measure how long arrays are under way from one process to the other: latency in seconds, bytes per second, rows.

    One micro-batch goes through layers that are dealt out to two devices: whoever gets an array has waited for it. For
    each boundary, a row has the bytes that cross it and the median of the seconds; a line is fitted by least squares.
    """
    from scipy.optimize import nnls

    timeline = schedule.pipeline(costs, DEVICES, 1, "modulo")
    forward = timeline.operations.select(F)[0]
    with schedule.Executor(timeline, model, len(x)) as run:
        ran = [run(x, labels).timeline for _ in range(1 + rounds)]
    under_way = [each.start[forward[1:]] - each.end[forward[:-1]] for each in ran[1:]]
    sizes, seconds = costs.memory.output_grad[:-1], np.median(under_way, axis=0)
    (latency, per_byte), _ = nnls(np.column_stack([np.ones(len(sizes)), sizes]), seconds)
    rows = [{"part": "link", "bytes": size, "seconds": took} for size, took in zip(sizes, seconds, strict=True)]
    return float(latency), float(1 / per_byte), rows


def ratios(table):
    """Compare what was measured with what was predicted, for each policy.

    `predicted` seconds; `median`, `least` and `most` of the measured ones; and `ratio`, the median over the predicted.
    """
    runs = table[table["part"] == "policy"].groupby("policy", sort=False)
    spans = runs["measured"].agg(median="median", least="min", most="max").assign(predicted=runs["predicted"].first())
    return spans.assign(ratio=spans["median"] / spans["predicted"])


def plot(table):
    """Draw timelines predicted and measured, and makespans of all policies."""
    fig = pyplot.figure(figsize=(9.6, 6.8), layout="constrained")
    names = [[f"{which} {policy}" for policy in DRAWN] for which in ("predicted", "measured")]
    axes = fig.subplot_mosaic([*names, ["all"] * len(DRAWN)], height_ratios=(1, 1, 1.3))
    events = table[table["part"] == "event"]
    events = events.assign(start=1e3 * events["start"], duration=1e3 * events["duration"]).astype({"worker": int})
    until = (events["start"] + events["duration"]).max()
    for which in ("predicted", "measured"):
        for policy in DRAWN:
            ax = axes[f"{which} {policy}"]
            rows = where(events, policy=policy, which=which)
            timelines.plot(ax, rows, legend=False, unit="ms" if which == "measured" else "", until=until, thin=(2, 3))
            ax.set_title(f"{_NAMES[policy]}, {which}", loc="left", size=10)
    timelines.legend(fig, ("F", "δO", "δW", "S[F]", "S[δO]"))
    _draw_makespans(axes["all"], table)
    return fig


def _draw_makespans(ax, table):
    compared = ratios(table)
    place, ms = np.arange(len(compared)), 1e3 * compared
    ax.bar(place - 0.2, ms["predicted"], 0.36, color=COLORS["chunked"], label="predicted from the profile")
    ax.bar(place + 0.2, ms["median"], 0.36, color=COLORS["matrix"], label="measured: median, least, most")
    style = {"fmt": "none", "color": "black", "capsize": 3, "lw": 1}
    panels.errorbar(ax, place + 0.2, ms["least"], ms["median"], ms["most"], **style)
    top = ms["most"].max()
    for i, (ratio, most) in enumerate(zip(compared["ratio"], ms["most"], strict=True)):
        ax.text(i + 0.2, most + 0.02 * top, f"{ratio:.2f}×", ha="center", size=9)
    ax.set_xticks(place, [_NAMES[policy] for policy in compared.index])
    ax.set(ylabel="makespan, ms", ylim=(0, 1.3 * top))
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper right", ncols=2)
