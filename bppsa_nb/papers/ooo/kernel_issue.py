"""Issuing kernels, and running them."""

import numpy as np

from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.experiment import COLORS, Figure

PARTS = {"issue": ("until issued", COLORS["vector"]), "run": ("until done", COLORS["matrix"])}


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return experiments.collect("kernel_issue")


def plot(table):
    cells, names = table["cell"].unique(), table.groupby("cell")["name"].nunique().max()
    fig, parts = panels.machines(table, 10, 1.3 + 0.55 * names)
    for part, rows in parts:
        for ax, cell in zip(part.subplots(1, len(cells), squeeze=False)[0], cells, strict=True):
            mine = rows[rows["cell"] == cell]
            places = np.arange(len(mine))[::-1]
            for shift, (what, (label, color)) in zip((0.2, -0.2), PARTS.items(), strict=True):
                median, low, high = (1e6 * mine[f"{what}{end}"] for end in ("", "_low", "_high"))
                style = {"height": 0.38, "color": color, "lw": 0, "error_kw": {"lw": 1}, "label": label}
                bars = ax.barh(places + shift, median, xerr=[median - low, high - median], **style)
                ax.bar_label(bars, fmt="{:,.0f}", padding=4, size=8)
            ax.set_yticks(places, mine["name"], size=8)
            ax.set(xlim=(0, 1.2e6 * mine["run_high"].max()), xlabel="µs")
            ax.set_title(f"{cell}, one training step", size=10)
            ax.grid(axis="y", visible=False)
    panels.legend(fig)
    return fig


FIGURE = Figure(
    origin="waiting", needs=["kernel_issue.paper"],
    caption="""Where the two bars of a pair are close, the device waits for the host. They are a training step on a GPU
    that has nothing else to do: until the host has issued all its kernels, and until the device is done with them. A
    recorded graph issues all kernels of a step at once. Medians of one run by benchmarks/run.py, warm, all in turns;
    lines: quartiles.""",
    alt="""Pairs of horizontal bars for the training steps of the RNN and the GRU, by PyTorch and here, without and with
    a recorded graph: microseconds to issue a step's kernels, and until the step is done.""",
)
