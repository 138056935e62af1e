"""Epochs of the benchmarks as Tables 4 to 6 have them, the paper's machine beside this one."""

from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels, published
from bppsa_nb.papers.bppsa.iterations import time_gated
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.progress import grid
from bppsa_nb.training.datasets.audio import FEATURES

BATCHES = (16, 32, 64)  # of the GRU
SAMPLES = 32000  # of the RNN's epoch
CLIPS = 6705  # of the GRU's epoch: IRMAS's training set
GRU_SECONDS = {"quick": 0.2, "paper": 60.0}  # for one point
CURVES = (  # above and below
    {
        "forward": ("forward pass", "baseline"),
        "forward_overhead": ("with overhead", "vector"),
        "baseline": ("baseline", "linear"),
        "bppsa": ("BPPSA", "blelloch"),
    },
    {"overall": ("overall", "identity"), "backward": ("backward pass", "truncated")},
)
STYLES = {
    "paper": {"marker": "o", "ms": 4.5, "lw": 1.5},
    "here": {"marker": "s", "ms": 5.5, "lw": 1.5, "fillstyle": "none", "ls": "--"},
}
SOURCES = {"GRU": "here", "LSTM": "here, LSTM"}


def measure_gru(scale, rng, progress, cells=("GRU",)):
    """Time all sets and batch sizes on this machine's fastest backend, per epoch; put them below Table 6."""
    printed = published.table("table_6")
    backend = backends.resolve("auto")
    time_point = partial(time_gated, backend=backend, seconds=GRU_SECONDS[scale])
    timed = progress.collect(grid(cell=cells, features=FEATURES, B=BATCHES), time_point, rng)
    timed["source"] = timed.pop("cell").map(SOURCES)
    seconds = timed.columns.drop(["features", "B", "rounds", "source"])
    timed[seconds] = timed[seconds].mul(CLIPS / timed["B"], axis=0)
    table = pd.concat([printed.assign(source="paper"), timed], ignore_index=True)
    table["T"] = table["features"].map({name: features.frames for name, features in FEATURES.items()})
    table.attrs = {"backend": backend, "machine_of_the_paper": printed.attrs["gpu"]}
    return table


def breakdown(table):
    """Add what the columns of Tables 4 to 6 hold besides the forward pass, and speedups, as Appendix G has them."""
    forward = table["forward"]
    parts = table.assign(fp=forward, bp=table["baseline"] - forward, overall=table["baseline"] / table["bppsa"])
    if "forward_overhead" in table:
        parts["fo"] = table["forward_overhead"] - forward
        parts["overhead"] = parts["fo"] / parts["fp"]
    if "chunked" in table:
        parts["chunked_alone"] = table["chunked"] - forward
        parts["backward_chunked"] = parts["bp"] / parts["chunked_alone"]
    alone = table["bppsa"] - table.get("forward_overhead", forward)
    return parts.assign(bppsa_alone=alone, backward=parts["bp"] / alone)


def sources(table):
    """Return the paper's rows and this machine's, taken apart, from which words are taken: `there` and `here`."""
    return {name: breakdown(table[table["source"] == of]) for name, of in (("there", "paper"), ("here", "here"))}


def draw_bars(ax, rows, places, bars, colors):
    """Draw, for each row, a stacked bar of each tuple of columns in `bars`, over FP + BP; yield places and heights."""
    width, total = 0.8 / len(bars), rows[list(bars[0])].sum(axis=1)
    for number, names in enumerate(bars):
        at, bottom = places + (number - (len(bars) - 1) / 2) * width, np.zeros(len(rows))
        for name in names:
            height = (rows[name] / total).to_numpy()
            ax.bar(at, height, bottom=bottom, width=0.94 * width, color=colors[name], lw=0)
            bottom += height
        yield zip(at, bottom, strict=True)


def draw(fig, axes, columns, machine, here="this machine"):
    """Draw seconds per epoch above speedups, the paper's filled, ours open; `columns` has rows and what x is."""
    drawn = {}
    for column, (rows, x) in zip(axes.T, columns, strict=True):
        for source, style in STYLES.items():  # the paper's rows come first, and set the order on the axis
            part = rows[rows["source"] == source]
            for ax, curves in zip(column, CURVES, strict=True):
                for quantity, (label, role) in curves.items():
                    if quantity in part:
                        ax.plot(part[x], part[quantity], color=COLORS[role], **style)
                        drawn[label] = COLORS[role]
        column[1].axhline(1, color="black", lw=1.1)
    for ax, quantity in zip(axes[:, 0], ("seconds per epoch", "speedup of BPPSA"), strict=True):
        panels.log_scale(ax, "y")
        ax.set_ylabel(quantity)
    handles = panels.lines(drawn) + panels.lines({f"{machine} (paper)": "black"}, **STYLES["paper"])
    panels.legend(fig, handles + panels.lines({here: "black"}, **STYLES["here"]), ncols=4)
