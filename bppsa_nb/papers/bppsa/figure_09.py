"""Figure 9: what an iteration of the GRU is made of; Table 6: an epoch of it."""

from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels, tables
from bppsa_nb.papers.bppsa import epochs
from bppsa_nb.papers.bppsa.iterations import time_gated
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, grid, where
from bppsa_nb.training.datasets.audio import FEATURES

BATCHES = (16, 32, 64)
SECONDS = {"quick": 0.2, "paper": 60.0}  # for one point
SOURCES = {"GRU": "here", "LSTM": "here, LSTM"}
PARTS = {
    "fp": ("FP", "baseline"),
    "fo": ("FO", "vector"),
    "bp": ("BP", "linear"),
    "bppsa_alone": ("BPPSA, levels", "blelloch"),
    "chunked_alone": ("BPPSA, chunks", "chunked"),
}
BARS = (("fp", "bp"), ("fp", "fo", "bppsa_alone"), ("fp", "chunked_alone"))


def measure(scale, rng, progress):
    """Time all sets and batch sizes on this machine's fastest backend, per epoch; put them below Table 6.

    On a CPU those of an LSTM are timed, too: what is recorded of a step on a GPU has one vector of state.
    """
    printed, backend = tables.published("table_6"), backends.resolve("auto")
    points = grid(cell=("GRU",) if backend == "cuda" else ("GRU", "LSTM"), features=FEATURES, B=BATCHES)
    timed = progress.collect(points, partial(time_gated, backend=backend, seconds=SECONDS[scale]), rng)
    timed["source"] = timed.pop("cell").map(SOURCES)
    seconds = timed.columns.drop(["features", "B", "rounds", "source"])
    timed[seconds] = timed[seconds].mul(epochs.CLIPS / timed["B"], axis=0)
    table = pd.concat([printed.assign(source="paper"), timed], ignore_index=True)
    table["T"] = table["features"].map({name: features.frames for name, features in FEATURES.items()})
    table.attrs = {"backend": backend, "machine_of_the_paper": printed.attrs["gpu"]}
    return table


def facts(table):
    """Take our epochs, and those of the paper, apart."""
    here, there = map(epochs.breakdown, (where(table, source="here"), tables.published("table_6")))
    by_batch = here.sort_values("T").groupby("B")["backward"]
    return {
        "here": here,
        "there": there,
        "slower": 1 / here["overall"],
        "by_chunks": here["chunked"] / here["baseline"],
        "largest": {part: here.nlargest(1, part) for part in ("backward", "overall")},
        "over_T": by_batch.agg(["first", "last"]),
        "overhead": here["overhead"].median(),
        "epochs": epochs.by_size(here, "of the GRU on {features}, B = {B}"),
        "printed": epochs.by_size(there, "of the GRU on {features}, B = {B}"),
    }


def plot(table):
    parts, machine = epochs.breakdown(table), table.attrs["machine_of_the_paper"]
    titles = {"paper": f"GRU, {machine}, from Table 6 of the paper", "here": "GRU, our machine"}
    titles = {source: titles.get(source, "LSTM, our machine") for source in table["source"].unique()}
    heights = (0.6 + 2.8 * len(titles), 5.2)
    fig = panels.figure(figsize=(9, sum(heights)))
    above, below = fig.subfigures(2, 1, height_ratios=heights)
    for ax, (source, title) in zip(above.subplots(len(titles), 1), titles.items(), strict=True):
        _bars(ax, where(parts, source=source).sort_values(["B", "T"]))
        ax.set(title=title, ylabel="time / (FP + BP)")
        ax.grid(axis="x", visible=False)
    panels.legend(above, panels.patches({label: COLORS[role] for label, role in PARTS.values()}))
    columns = [(where(parts, B=B).sort_values("T"), "features", f"B = {B}", "set") for B in BATCHES]
    axes = below.subplots(2, len(BATCHES), sharex=True, sharey="row")
    epochs.draw(below, axes, columns, machine)
    for ax in axes.flat:
        ax.label_outer()
    return fig


def _bars(ax, rows):
    """Draw a group of bars per row, with the height of BPPSA's written above."""
    gaps = np.arange(len(rows)) // rows["features"].nunique()  # between batch sizes
    places = np.arange(len(rows)) + 0.4 * gaps
    bars = [names for names in BARS if rows[names[-1]].notna().all()]  # the paper has no chunks
    colors, highest = {name: COLORS[role] for name, (_, role) in PARTS.items()}, 1
    for number, tops in enumerate(epochs.draw_bars(ax, rows, places, bars, colors)):
        for place, height in tops:
            highest = max(highest, height)
            if number:
                ax.text(place, height, f"{height:.{2 if height < 1 else 1}f}", ha="center", va="bottom", size=6)
    ax.axhline(1, color="black", lw=0.8)
    ax.set_xticks(places, [f"{name}\nB = {B}" for name, B in zip(rows["features"], rows["B"], strict=True)])
    ax.set_ylim(0, 1.12 * highest)


FIGURE = Figure(
    origin="timed", needs=["paper/table_6"],
    caption="""On our machine an iteration takes {slower:.2g} times as long with BPPSA in levels, and {by_chunks:.2g}
    times in chunks. Bars are times over FP + BP: forward pass (FP) and back-propagation (BP). The second bar has FP,
    the forward overhead (FO) of Jacobians, and BPPSA in levels, as in the paper; the third FP and BPPSA in chunks. The
    V100's bars are from Table 6, where FO recomputes the gates. Here, on random features of the same sizes, FO only
    assembles Jacobians. Lowest bars, where it was timed: an LSTM, whose Jacobians are four times as large. Medians of
    warm rounds. Below, an epoch, {there[overall]:.3g} times as fast by BPPSA's levels on the V100, and
    {here[overall]:.2g} times on ours. Filled: the paper's Table 6 (baseline: cuDNN in PyTorch 1.2). Open: seconds per
    iteration times 6705 / B; baseline: BPTT on the same backend. Compare speedups across machines, not seconds. The
    backward speedup excludes computing Jacobians. For M at B = 64 printed times are 0.02 ± 0.02 s apart, too close to
    divide by.""",
    alt="""Stacked bars for three batch sizes and the sets S, M and L. Above, on the V100, BPPSA's bar has 0.6 to 0.8 of
    the baseline's height; its backward pass gets thinner from S to L. Below, our machine, with a third bar for chunks,
    and the same for an LSTM where it was timed. At the bottom, six plots over S, M and L, for three batch sizes:
    seconds per epoch, where on the V100 BPPSA lies between the baseline and the forward pass with overhead; and
    speedups, of which the V100's backward one rises from S to L.""",
    phrases={"ends": "{first:×} to {last:×} at B = {_}"},
    claims=[
        Claim("§5.2, Figure 9", "The GRU's largest overall speedup.", "2.36× (RTX 2070 or 2080 Ti)",
              "{largest[overall][overall]:×} on {largest[overall][features]}, B = {largest[overall][B]}",
              lambda f: compare(f["largest"]["overall"]["overall"], 2.36), gpu=True),
        Claim("§5.2, Figure 9", "The GRU's largest backward speedup, excluding the overhead.",
              "13.4× (RTX 2070 or 2080 Ti)",
              "{largest[backward][backward]:×} on {largest[backward][features]}, B = {largest[backward][B]}",
              lambda f: compare(f["largest"]["backward"]["backward"], 13.4), gpu=True),
        Claim("§5.2, Figure 9", "The GRU's backward speedup grows with T, from S to L.", "rises", "{over_T:each ends}",
              lambda f: (f["over_T"]["last"] > f["over_T"]["first"]).all(), gpu=True),
        Claim("Appendix E", "The forward overhead could be reduced if the values of the gates were at hand.",
              "5% to 37% of FP, median 19%, to recompute and assemble (V100)",
              "{here[overhead]:.0%} of FP, median {overhead:.0%}, to assemble alone",
              lambda f: compare(f["there"]["overhead"].median(), f["overhead"]), gpu=True),
        epochs.claim(6, "of the GRU on S, B = 16", "3.71 s / 2.94 s: 1.26× overall, 2.44× backward without overhead"),
        epochs.claim(6, "of the GRU on M, B = 16", "6.19 s / 4.2 s: 1.47× overall, 4.38× backward without overhead"),
        epochs.claim(6, "of the GRU on L, B = 16", "11.43 s / 6.91 s: 1.65× overall, 6.65× backward without overhead"),
    ],
)
