"""Section 3.6 and Appendix B: what one device has to hold, counted, for BPPSA and for a pipeline."""

import math

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.networks.jacobians import Convolution
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa.figure_11 import pipeline
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline

SCALES = {"quick": 256, "paper": 1024}


def measure(scale, rng, progress):
    """Count the fullest device's matrices, vectors and activations, from one device to one per layer."""
    layers = SCALES[scale]
    rows = [{"n": layers - 1, "p": 2**i} for i in range(layers.bit_length())]
    for row in rows:
        row["matrices"], row["vectors"] = scan_space(trace(row["n"], "blelloch"), row["p"])
        row["activations"] = pipeline_space(layers, row["p"])
    return pd.DataFrame(rows)


def scan_space(run, p):
    """Count the matrices, and the vectors, that the fullest of p devices holds at any time while a scan runs."""
    owner = [min(i, run.n) * p // (run.n + 1) for i in range(run.n + 2)]
    rows, most = run.rows(), {"matrix": 0, "vector": 0}
    for r, row in enumerate(rows):
        held = {kind: [0] * p for kind in most}
        place = {operand: owner[position] for position, operand in enumerate(row)}
        for operand, device in zip(row, owner, strict=False):  # rows grow
            if operand is not IDENTITY:
                held[operand.kind][device] += 1
        products = run.levels[r].products if r < run.steps else ()
        ends = [[place[parent] for parent in product.parents] for product in products if product.product == "mm"]
        for device in {right for left, right in ends if left != right}:  # a matrix arrives, one at a time
            held["matrix"][device] += 1
        most = {kind: max(most[kind], *held[kind]) for kind in most}
    return most["matrix"], most["vector"]


def pipeline_space(layers, devices):
    """Count the activations that the fullest device holds at any time, with as many micro-batches as devices."""
    events, needs = pipeline(devices, devices, backward=True)
    timeline.check(events, needs)
    changes, again = [], layers // devices  # what lies between a device's ends is computed again
    for event in events:
        forward = event.kind.startswith("F")
        changes.append((event.start, 1, event.worker, 1 if forward else again))
        changes += [] if forward else [(event.end, 0, event.worker, -again - 1)]
    held, most = [0] * devices, 0
    for _, _, device, change in sorted(changes):  # at the same time, what leaves makes room first
        held[device] += change
        most = max(most, held[device])
    return most


def convolution_bytes():
    """Size up VGG-11's first convolution in float32: its output, and its Jacobian's values, all and those stored."""
    pattern = Convolution(np.ones((64, 3, 3, 3), bool), (3, 32, 32), padding=1).pattern
    numbers = {"activation": pattern.shape[1], "dense": math.prod(pattern.shape), "sparse": pattern.nnz}
    return {what: 4 * number for what, number in numbers.items()}


def plot(table):
    """Draw the counts, and what they come to in bytes."""
    fig, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4.0), layout="constrained")
    n, p = table["n"].iloc[0] + 1, table["p"]
    blue, sky, gray = COLORS["blelloch"], COLORS["chunked"], COLORS["baseline"]
    smooth = np.geomspace(1, p.max(), 100)
    left.plot(smooth, np.maximum(n / smooth, 1), "--", color=blue, lw=1.1, label=r"$\max(n/p,\,1)$")
    left.plot(p, table["matrices"], "o", color=blue, label="BPPSA, Jacobians")
    left.plot(smooth, n / smooth + smooth, "--", color=gray, lw=1.1, label="$n/p + p$")
    left.plot(p, table["activations"], "D", color=gray, ms=5, label="GPipe, activations")
    left.set(ylabel="held by the fullest device", title=f"Counted, {n} layers")
    bytes_of = convolution_bytes()
    for kind, color, marker in (("dense", sky, "s"), ("sparse", blue, "o")):
        total = table["matrices"] * bytes_of[kind] + table["vectors"] * bytes_of["activation"]
        right.plot(p, total / 2**20, marker=marker, color=color, ms=5, label=f"BPPSA, {kind} Jacobians")
    total = table["activations"] * bytes_of["activation"]
    right.plot(p, total / 2**20, "-D", color=gray, ms=5, label="GPipe")
    right.set(ylabel="MiB per sample on the fullest device", title="Layers like VGG-11's first convolution")
    for ax in (left, right):
        panels.log_scale(ax, shown="{x:,.0f}", ticks=4 ** np.arange(np.log2(n) // 2 + 1))
        ax.set_xlabel("devices, $p$")
    left.legend(loc="upper center", ncols=2)
    left.set_ylim(top=2e4)
    right.legend(loc="upper right")
    return fig
