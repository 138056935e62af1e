"""The forward pass of one sample: how often a loop's time fits into another's."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels, words
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, grid, where
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.timing import quartiles, take_turns

SIZES = {"quick": (1000, 3000), "paper": (1000, 10000, 30000)}
ITERATIONS, SECONDS = {"quick": 100, "paper": 300}, {"quick": 0.3, "paper": 3}
KINDS = {"fresh": "RNN, fresh", "trained": "RNN, trained", "gru": "GRU, fresh"}
THEIRS = pd.Series({1000: 41, 10000: 289, 30000: 752})  # DEER's report_memeff, forward and gradient, H = 1, a V100
METHODS = {"chunked": "chunks, repaired", "auto": "chosen by price", "newton": "Newton on chunks"}


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


def facts(table):
    """Say how often a method's time fits into the loop's: of chunks, and by network, backend and length in turn."""
    chunks, gru = where(table, method="chunked"), where(table, network="gru").set_index("T")
    found = {"longest": table["T"].max(), "shortest": table["T"].min(), "error": table["error"].max()}
    for end in ("longest", "shortest"):
        found[f"at_{end}"] = dict(iter(where(chunks, T=found[end]).groupby("backend")["ratio"]))
    for method in METHODS:
        found[method] = {}
        for (kind, backend), rows in where(table, method=method).groupby(["network", "backend"], sort=False):
            ratios = words.listed(rows["ratio"].map("{:.2g}".format).tolist())
            found[method][f"{KINDS[kind]}, {backend}"] = {"ratios": ratios}
    return found | {
        "gru": dict(iter(where(gru, method="chunked").groupby("backend")["ratio"])),
        "gru_newton": where(gru, method="newton", backend="cpu")["ratio"].max(),
    }


def plot(table):
    fig, axes = pyplot.subplots(2, 3, figsize=(10, 5.8), sharex=True, sharey=True, layout="constrained")
    lengths = sorted(table["T"].unique())
    for row, (backend, how) in zip(axes, {"numpy": "NumPy", "cpu": "compiled"}.items(), strict=True):
        for ax, (kind, name) in zip(row, KINDS.items(), strict=True):
            for i, method in enumerate(METHODS):
                rows = where(table, network=kind, backend=backend, method=method)
                style = {"bottom": 1, "color": COLORS[method], "error_kw": {"lw": 0.8}}
                ends = [rows["ratio"] - rows["ratio_low"], rows["ratio_high"] - rows["ratio"]]
                ax.bar(np.arange(len(lengths)) + 0.27 * (i - 1), rows["ratio"] - 1, 0.25, yerr=ends, **style)
            ax.axhline(1, color="black", lw=1)
            ax.set_title(f"{name}, {how}", size=10)
            ax.set_xticks(range(len(lengths)), [f"{T:,}" for T in lengths])
            panels.log_scale(ax, "y", "{x:g}×", ticks=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20))
            ax.grid(visible=False, axis="x")
        row[0].set_ylabel("times the loop's speed")
    for i, (method, name) in enumerate(METHODS.items()):
        style = {"va": "top", "weight": "bold", "bbox": {"fc": "white", "ec": "none", "pad": 1}}
        axes[0, 0].text(-0.4, 0.6 / 1.8**i, name, color=COLORS[method], size=9.5, **style)
    pyplot.setp(axes[1], xlabel="length of the sequence, T")
    return fig


FIGURE = Figure(
    origin="timed",
    phrases={"network": "{_}: {ratios}"},
    caption="""At T = {longest:,}, repaired chunks are {at_longest[numpy]:.2g} times as fast as a loop in NumPy, and
    {at_longest[cpu]:.2g} times compiled. At T = {shortest:,} they are {at_shortest[numpy]:.2g} and
    {at_shortest[cpu]:.2g} times as fast. Bars begin at the loop's speed: those that go up are faster, those that go
    down slower. They are medians of a loop's time over the other's, of calls in turns, with quartiles. H = 20, one
    sample, single precision. States are within {error:.0e} of the loop's.""",
    alt="""Six panels of bars, three networks by two backends, over the length of a sequence: times the loop's speed, up
    or down from 1 on a logarithmic axis. Repaired chunks: {chunked:each network;}. Chosen by price:
    {auto:each network;}. Newton's method: {newton:each network;}.""",
    claims=[
        Claim("DEER, abstract and report", "Forward pass and gradient of a GRU over the loop.",
              "41× at T = 1,000, 289× at 10,000, 752× at 30,000 (H = 1, a GPU)",
              "repaired chunks over the loop, numpy: {gru[numpy]:× at _}; repaired chunks over the loop, cpu: "
              "{gru[cpu]:× at _}; Newton on chunks, cpu: at most {gru_newton:×}",
              lambda f: compare((f["gru"]["cpu"] / THEIRS).dropna(), 1), gpu=True),
    ],
)
