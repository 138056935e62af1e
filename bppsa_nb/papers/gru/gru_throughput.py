"""Throughput of the first and the last variant of the GRU over hidden size, for several mini-batches."""

from functools import partial

from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.gru.passes import SIZES, STEPS, time_point
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import listed, span

TITLE = "Throughput of the GRU over hidden size"
CAPTION = (
    "Useful work per second of a forward and a backward pass (float32, NumPy with as many BLAS threads as it chooses, "
    "input size = hidden size). Useful are the multiply-adds of the original's products, two operations each, for both "
    "variants. Line: the original; upper edge of the band: the last variant. Medians of rounds in which both took "
    "turns; bars from quartile to quartile."
)
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


def alt(table):
    """Say what there is to see, and the throughput at every mini-batch."""
    rows = throughput(table)
    texts = [
        f"{span(rows[(rows['B'] == B) & (rows['variant'] == COMPARED[0])]['gflops'], '{:.0f}')} at mini-batches of {B}"
        for B in BATCHES
    ]
    gained = span(1 / table[table["variant"] == COMPARED[-1]]["relative"], "{:.2f}")
    return (
        "GFLOP per second over hidden sizes from 128 to 2048, for mini-batches of 32, 64 and 128: a solid line for the "
        "original GRU and a shaded band up to the variant with different saved activations. The original does "
        f"{listed(texts)}; the variant {gained} times that."
    )


def plot(table):
    """Draw throughput over hidden size: a line and a band per mini-batch."""
    fig, ax = pyplot.subplots(figsize=(7.6, 4.4), layout="constrained")
    table = throughput(table)
    for B, role in BATCHES.items():
        first, last = (where(table, B=B, variant=name) for name in COMPARED)
        ax.fill_between(first["H"], first["gflops"], last["gflops"].to_numpy(), color=COLORS[role], alpha=0.25, lw=0)
        for rows, look in ((first, {"fmt": "o-", "ms": 4}), (last, {"fmt": "none"})):
            panels.with_quartiles(ax, rows["H"], rows, "gflops", color=COLORS[role], elinewidth=1, **look)
        ax.plot([], [], "o-", ms=4, color=COLORS[role], label=f"mini-batch {B}")
    panels.sizes_axis(ax, sorted(table["H"].unique()))
    ax.set(ylim=(0, 1.2 * table["gflops_high"].max()), xlabel="hidden size, H", ylabel="useful work, GFLOP/s")
    ax.set_title("From Original (line) to Different Saved Activations (edge)")
    ax.legend(loc="upper left", ncols=3)
    return fig
