"""Figure 9: what an iteration of the GRU is made of, by the sets S, M and L and the batch size; and of an LSTM."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import epochs
from bppsa_nb.papers.bppsa.epochs import breakdown
from bppsa_nb.papers.figures import COLORS

PARTS = {
    "fp": ("FP", "baseline"),
    "fo": ("FO", "vector"),
    "bp": ("BP", "linear"),
    "bppsa_alone": ("BPPSA, levels", "blelloch"),
    "chunked_alone": ("BPPSA, chunks", "chunked"),
}
BARS = (("fp", "bp"), ("fp", "fo", "bppsa_alone"), ("fp", "chunked_alone"))


def measure(scale, rng, progress):
    """Time all sets and batch sizes on this machine's fastest backend, per epoch; put them below the paper's.

    On a CPU those of an LSTM are timed, too: what is recorded of a step on a GPU has one vector of state.
    """
    cells = ("GRU",) if backends.resolve("auto") == "cuda" else tuple(epochs.SOURCES)
    return epochs.measure_gru(scale, rng, progress, cells)


values = epochs.sources


def plot(table):
    """Draw both machines' bars, the paper's above; below, where it was timed, an LSTM's."""
    table = breakdown(table)
    machines = {"paper": f"GRU, {table.attrs['machine_of_the_paper']}, from Table 6 of the paper"}
    machines |= {"here": "GRU, this machine", "here, LSTM": "LSTM, this machine"}
    machines = {source: title for source, title in machines.items() if (table["source"] == source).any()}
    fig, axes = pyplot.subplots(len(machines), 1, figsize=(8.4, 0.6 + 2.8 * len(machines)), layout="constrained")
    for ax, (source, machine) in zip(axes, machines.items(), strict=True):
        _bars(ax, table[table["source"] == source].sort_values(["B", "T"]))
        ax.set(title=machine, ylabel="time / (FP + BP)")
        ax.grid(axis="x", visible=False)
    panels.legend(fig, panels.patches({label: COLORS[role] for label, role in PARTS.values()}))
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
