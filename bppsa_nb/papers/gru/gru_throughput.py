"""Throughput of the first and the last variant of the GRU over hidden size, for several mini-batches."""

from functools import partial

from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.gru.passes import SIZES, STEPS, time_point
from bppsa_nb.papers.tables import where

BATCHES = {32: "linear", 64: "vector", 128: "matrix"}
SECONDS = {"quick": 0.1, "paper": 20.0}  # for one point
COMPARED = ("original", "saved")


def measure(scale, rng, progress):
    """Time both variants: one row per mini-batch, hidden size and variant."""
    points = [{"T": STEPS[scale], "B": B, "H": H} for B in BATCHES for H in SIZES[scale]]
    table = progress.collect(points, partial(time_point, names=COMPARED, seconds=SECONDS[scale]), rng)
    table.attrs = {"backend": "numpy"}
    return table


def throughput(table):
    """Divide the useful work by the time: `gflops`, with quartiles `gflops_low` and `gflops_high`."""
    # Three products with W and three with U forward, twice as many backward; what runs is counted in the tests.
    operations = 2 * 18 * table["T"] * table["B"] * table["H"] ** 2
    return table.assign(
        gflops=operations / table["seconds"] / 1e9,
        gflops_low=operations / table["seconds_high"] / 1e9,
        gflops_high=operations / table["seconds_low"] / 1e9,
    )


def plot(table):
    """Draw throughput over hidden size: a line and a band per mini-batch."""
    fig, ax = pyplot.subplots(figsize=(7.6, 4.4), layout="constrained")
    table = throughput(table)
    for B, role in BATCHES.items():
        first, last = (where(table, B=B, variant=name) for name in COMPARED)
        ax.fill_between(first["H"], first["gflops"], last["gflops"].to_numpy(), color=COLORS[role], alpha=0.25, lw=0)
        for rows, style in ((first, {"fmt": "o-", "ms": 4}), (last, {"fmt": "none"})):
            panels.with_quartiles(ax, rows["H"], rows, "gflops", color=COLORS[role], elinewidth=1, **style)
        ax.plot([], [], "o-", ms=4, color=COLORS[role], label=f"mini-batch {B}")
    panels.sizes_axis(ax, sorted(table["H"].unique()))
    ax.set(ylim=(0, 1.2 * table["gflops_high"].max()), xlabel="hidden size, H", ylabel="useful work, GFLOP/s")
    ax.set_title("From Original (line) to Different Saved Activations (edge)")
    ax.legend(loc="upper left", ncols=3)
    return fig
