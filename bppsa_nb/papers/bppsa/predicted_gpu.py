"""What the machine code of the kernels lets one expect of a GPU, what one took, and the paper's Tables 4 and 5."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.chains import costs, plan
from bppsa_nb.chains.counts import COUNTS, price, workers
from bppsa_nb.papers import panels, published, recorded
from bppsa_nb.papers.bppsa.epochs import SAMPLES
from bppsa_nb.papers.bppsa.machine_code import H
from bppsa_nb.papers.figures import COLORS

TABLES = {"table_4": "T", "table_5": "B"}
PARTS = {
    "forward": ("forward pass", "baseline"),
    "linear": ("backward, step by step", "linear"),
    "blelloch": ("backward, BPPSA in levels", "blelloch"),
    "chunked": ("backward, in chunks", "chunked"),
}
STYLES = {
    "paper": {"marker": "o", "ms": 4.5, "lw": 1.6},
    "predicted": {"marker": "D", "ms": 5, "lw": 1.2, "fillstyle": "none", "ls": ":"},
    "measured": {"marker": "x", "ms": 6.5, "mew": 1.8, "lw": 1.2, "ls": "--"},
}


def measure(scale, rng, progress):
    """Work out what is predicted at the sizes of both tables; put it, and what was measured, below the paper's."""
    rows = []
    for name in TABLES:
        printed = published.table(name)
        for row in printed.itertuples():
            sizes = {"table": name, "T": row.T, "B": row.B}
            iteration = row.B / SAMPLES
            epoch = {"forward": row.forward, "linear": row.baseline - row.forward, "blelloch": row.bppsa - row.forward}
            rows += [sizes | {"source": "paper", "part": part, "seconds": s * iteration} for part, s in epoch.items()]
            found = predicted(row.T, row.B)
            rows += [sizes | {"source": "predicted", "part": part, "seconds": s} for part, s in found.items()]
    table = pd.concat([pd.DataFrame(rows), measured()], ignore_index=True)
    table.attrs = {"machine_of_the_paper": printed.attrs["gpu"], "collected": True}  # nothing runs here
    return table


def measured():
    """Collect what GPUs took for backward passes at these sizes, gradients of parameters included."""
    grid = recorded.collect("grid")
    there = (grid["backend"] == "cuda") & (grid["cell"] == "RNN") & (grid["H"] == H) & grid["name"].str.match("ours: ")
    ours = grid[there].assign(part=lambda r: r["name"].str.removeprefix("ours: "), seconds=lambda r: r["backward"])
    parts = [ours[ours["B"] == 16].assign(table="table_4"), ours[ours["T"] == 1000].assign(table="table_5")]
    return pd.concat(parts)[["table", "T", "B", "part", "seconds"]].assign(source="measured")


def predicted(T, B):
    """Predict seconds of a forward pass, and of a backward pass by each method, from machine code alone."""
    prices = costs.prices()["structured"]
    waves = -(-B // workers("cuda"))
    seconds = {"forward": 3 * costs.LAUNCH + T * waves * costs.table()["RNN forward"].seconds}
    for method, count in COUNTS.items():
        lengths = plan.candidate_lengths(T, workers("cuda")) if method == "chunked" else [None]
        tried = [count(T, B, H, 1, "cuda", *([length] if length else [])) for length in lengths]
        seconds[method] = min(price(counts, prices[method]) for counts in tried)
    return seconds


def values(table):
    """Work out what is predicted, and what came of it: gains from chunks from T = 1000 on; times of steps, launches."""
    times, found = (
        table[(table["source"] == source) & (table["table"] == "table_4")].pivot(index="T", columns="part")["seconds"]
        for source in ("predicted", "measured")
    )
    gain, came = ((part["linear"] / part["chunked"]).loc[1000:] for part in (times, found))
    off = (found / times).loc[1000:]
    words = {f"off_{method}": list(off[method].dropna()) for method in COUNTS}
    step = times["forward"].iloc[-1] / times.index[-1]
    return words | {"gain": list(gain), "came": list(came), "step": step, "launch": costs.LAUNCH}


def plot(table):
    """Draw milliseconds per iteration over T and over B, the paper's machine beside what is predicted."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9, 4.4), sharey=True, layout="constrained")
    for ax, (name, size) in zip(axes, TABLES.items(), strict=True):
        rows = table[table["table"] == name].sort_values(size)
        for (source, part), curve in rows.groupby(["source", "part"]):
            ax.plot(curve[size], 1e3 * curve["seconds"], color=COLORS[PARTS[part][1]], **STYLES[source])
        panels.log_scale(ax, "y")
        panels.sizes_axis(ax, sorted(rows[size].unique()))
    axes[0].set(title="B = 16", xlabel="sequence length, T", ylabel="milliseconds per iteration")
    axes[1].set(title="T = 1000", xlabel="batch size, B")
    machines = f"{table.attrs['machine_of_the_paper']}, measured (the paper)", "H100, predicted from machine code"
    machines += ("H200, measured here",)
    handles = panels.patches({label: COLORS[role] for label, role in PARTS.values()})
    for machine, style in zip(machines, STYLES.values(), strict=True):
        handles += panels.lines({machine: "#555555"}, **style)
    panels.legend(fig, handles, ncols=3)
    return fig
