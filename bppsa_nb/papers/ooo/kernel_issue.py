"""How long issuing a training step's kernels takes, beside running them: draws what `benchmarks/run.py` recorded."""

import numpy as np

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

PARTS = {"issue": ("until issued", COLORS["vector"]), "run": ("until done", COLORS["matrix"])}


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("kernel_issue")


def plot(table):
    """Draw a panel for each machine and cell."""
    cells, names = table["cell"].unique(), table.groupby("cell")["name"].nunique().max()
    fig, parts = panels.machines(table, 10, 1.3 + 0.55 * names)
    for part, rows in parts:
        for ax, cell in zip(part.subplots(1, len(cells), squeeze=False)[0], cells, strict=True):
            _bars(ax, rows[rows["cell"] == cell])
            ax.set_title(f"{cell}, one training step", size=10)
    panels.legend(fig)
    return fig


def _bars(ax, rows):
    places = np.arange(len(rows))[::-1]
    for shift, (part, (label, color)) in zip((0.2, -0.2), PARTS.items(), strict=True):
        median, low, high = (1e6 * rows[f"{part}{end}"].to_numpy() for end in ("", "_low", "_high"))
        ax.barh(places + shift, median, height=0.38, color=color, lw=0, label=label)
        ax.hlines(places + shift, low, high, color="black", lw=1)
        for value, end, place in zip(median, high, places + shift, strict=True):
            ax.annotate(f"{value:,.0f}", (end, place), (4, 0), textcoords="offset points", va="center", size=8)
    ax.set_yticks(places, rows["name"], size=8)
    ax.set_xlim(0, 1.2e6 * rows["run_high"].max())
    ax.set_xlabel("µs")
    ax.grid(axis="y", visible=False)
