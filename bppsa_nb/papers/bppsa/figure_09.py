"""Figure 9: what an iteration of the GRU is made of, by the sets S, M and L and the batch size."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import epochs
from bppsa_nb.papers.bppsa.epochs import breakdown
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.text import span

TITLE = "Figure 9: what an iteration of the GRU is made of"
CAPTION = (
    "In each group, first bar: the baseline, forward pass (FP) and back-propagation (BP); second: FP, the forward "
    "overhead (FO) of computing Jacobians, and the backward pass by BPPSA in levels, as in the paper; all over FP + "
    "BP. Above: the paper's V100, worked out from its Table 6; its overhead recomputes the gates, which cuDNN hides. "
    "Below: this machine, on features of the same sizes drawn at random; our forward pass keeps the gates, so FO only "
    "assembles Jacobians. Third bar: BPPSA in chunks, which need none. Medians of rounds in which all took turns, warm."
)
PARTS = {
    "fp": ("FP", "baseline"),
    "fo": ("FO", "vector"),
    "bp": ("BP", "linear"),
    "bppsa_alone": ("BPPSA, levels", "blelloch"),
    "chunked_alone": ("BPPSA, chunks", "chunked"),
}
BARS = (("fp", "bp"), ("fp", "fo", "bppsa_alone"), ("fp", "chunked_alone"))


def measure(scale, rng, progress):
    """Time all sets and batch sizes on this machine's fastest backend, per epoch; put them below the paper's."""
    return epochs.measure_gru(scale, rng, progress)


def alt(table):
    """Say what there is to see, and how high the bars of this machine are."""
    here = breakdown(table[table["source"] == "here"])
    levels, chunks = span(1 / here["overall"], "{:.2g}"), span(here["chunked"] / here["baseline"], "{:.2g}")
    return (
        "Stacked bars in groups, for batches of 16, 32 and 64, each with the sets S, M and L. Above, on the paper's "
        "V100, the right bar of each pair is lower than the left, at 0.6 to 0.8 of its height: BPPSA's backward pass "
        "is a strip that gets thinner from S to L, beside an overhead that grows with the batch. Below, on this "
        f"machine, the same bars and a third one: the second, BPPSA by levels, is {levels} times as high as the first, "
        f"the third, BPPSA by chunks, {chunks} times."
    )


def plot(table):
    """Draw both machines' bars, the paper's above."""
    fig, axes = pyplot.subplots(2, 1, figsize=(8.4, 6.2), layout="constrained")
    table = breakdown(table)
    machines = {"paper": f"{table.attrs['machine_of_the_paper']}, from Table 6 of the paper", "here": "This machine"}
    for ax, (source, machine) in zip(axes, machines.items(), strict=True):
        _bars(ax, table[table["source"] == source].sort_values(["B", "T"]))
        ax.set_title(machine)
        ax.set_ylabel("time / (FP + BP)")
        ax.grid(axis="x", visible=False)
    panels.legend(fig, panels.patches({label: COLORS[role] for label, role in PARTS.values()}))
    return fig


def _bars(ax, rows):
    """Draw a group of bars per row, with the height of BPPSA's written above."""
    total = rows["fp"] + rows["bp"]
    gaps = np.arange(len(rows)) // rows["features"].nunique()  # between batch sizes
    places = np.arange(len(rows)) + 0.4 * gaps
    bars = [names for names in BARS if rows[names[-1]].notna().all()]  # the paper has no chunks
    width = 0.8 / len(bars)
    highest = 1
    for number, names in enumerate(bars):
        at, bottom = places + (number - (len(bars) - 1) / 2) * width, np.zeros(len(rows))
        for name in names:
            height = (rows[name] / total).to_numpy()
            ax.bar(at, height, bottom=bottom, width=0.94 * width, color=COLORS[PARTS[name][1]], lw=0)
            bottom += height
        if number:
            for place, height in zip(at, bottom, strict=True):
                label = f"{height:.2f}" if height < 1 else f"{height:.1f}"
                ax.text(place, height, label, ha="center", va="bottom", size=7.5)
        highest = max(highest, bottom.max())
    ax.axhline(1, color="black", lw=0.8)
    ax.set_xticks(places, [f"{name}\nB = {B}" for name, B in zip(rows["features"], rows["B"], strict=True)])
    ax.set_ylim(0, 1.12 * highest)
