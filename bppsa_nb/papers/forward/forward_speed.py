"""How long the forward pass takes here: the loop, chunks that are repaired, Newton's method, and what is chosen."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.progress import grid
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.timing import quartiles, take_turns

SIZES = {"quick": (1000, 3000), "paper": (1000, 10000, 30000)}
ITERATIONS, SECONDS = {"quick": 100, "paper": 300}, {"quick": 0.3, "paper": 3}
KINDS = {"fresh": "RNN, fresh", "trained": "RNN, trained", "gru": "GRU, fresh"}
METHODS = {  # words, color
    "chunked": ("chunks, repaired", "chunked"),
    "auto": ("chosen by price", "auto"),
    "newton": ("Newton on chunks", "newton"),
}


def measure(scale, rng, progress):
    """Time methods that take turns: a row per network, length, backend and method."""
    def measure_point(point, rng):
        model = networks.make(point["network"], rng, ITERATIONS[scale], np.float32)
        x = networks.inputs(point["T"], 1, rng, np.float32)
        methods = ["linear", *METHODS]
        calls = [lambda method=method: model.forward(x, None, point["backend"], method=method) for method in methods]
        times = take_turns(calls, SECONDS[scale])
        ratios = times[:, :1] / times
        exact, rows = model.forward(x, None, point["backend"], method="linear").hidden, []
        for i, method in enumerate(methods):
            found = model.forward(x, None, point["backend"], method=method)
            solved = found.solved[0] if found.solved else None
            row = {"method": method, "chunks": -(-point["T"] // solved.length) if solved else 1}
            row |= {"passes": solved.passes if solved else 1, "error": float(abs(found.hidden - exact).max())}
            rows.append(row | {"seconds": float(np.median(times[:, i]))} | quartiles("ratio", ratios[:, i]))
        return rows

    points = grid(network=KINDS, T=SIZES[scale], backend=("numpy", "cpu"))
    return progress.collect(points, measure_point, rng)


def ratio(table, network, backend, method="chunked"):
    """Return how often the loop's time is a method's, by T."""
    rows = where(table, network=network, backend=backend, method=method)
    return rows.set_index("T")["ratio"]


def plot(table):
    """Draw ratios over length as bars that begin at the loop's, a panel per network and backend."""
    fig, axes = pyplot.subplots(2, 3, figsize=(10, 5.8), sharex=True, sharey=True, layout="constrained")
    lengths = sorted(table["T"].unique())
    for row, (backend, words) in zip(axes, {"numpy": "NumPy", "cpu": "compiled"}.items(), strict=True):
        for ax, (kind, name) in zip(row, KINDS.items(), strict=True):
            for i, (method, (_, role)) in enumerate(METHODS.items()):
                rows = where(table, network=kind, backend=backend, method=method)
                style = {"bottom": 1, "color": COLORS[role], "error_kw": {"lw": 0.8}}
                ends = [rows["ratio"] - rows["ratio_low"], rows["ratio_high"] - rows["ratio"]]
                ax.bar(np.arange(len(lengths)) + 0.27 * (i - 1), rows["ratio"] - 1, 0.25, yerr=ends, **style)
            ax.axhline(1, color="black", lw=1)
            ax.set_title(f"{name}, {words}", size=10)
            ax.set_xticks(range(len(lengths)), [f"{T:,}" for T in lengths])
            panels.log_scale(ax, "y", "{x:g}×", ticks=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20))
            ax.grid(visible=False, axis="x")
        row[0].set_ylabel("times the loop's speed")
    for i, (words, role) in enumerate(METHODS.values()):
        style = {"va": "top", "weight": "bold", "bbox": {"fc": "white", "ec": "none", "pad": 1}}
        axes[0, 0].text(-0.4, 0.6 / 1.8**i, words, color=COLORS[role], size=9.5, **style)
    pyplot.setp(axes[1], xlabel="length of the sequence, T")
    return fig
