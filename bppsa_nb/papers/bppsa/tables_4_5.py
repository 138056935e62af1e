"""Tables 4 and 5: an epoch of the RNN benchmark on the paper's V100, and on this machine."""

from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.machine import backends
from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import figure_08
from bppsa_nb.papers.figures import COLORS

TITLE = "Tables 4 and 5: an epoch on the paper's V100, and here"
CAPTION = (
    "Filled: the paper's Tables 4 and 5 (NVIDIA V100, PyTorch 1.2 with cuDNN as baseline). Open: this machine, its "
    "seconds per iteration times 32000 / B, BPTT on the same backend as baseline. Seconds do not compare across "
    "machines; the speedups, each within one machine, do. A V100 shares the products of a level out to thousands of "
    "threads; where there are few workers, the tree's extra work decides."
)
ALT = (
    "Four plots, two over sequence length T and two over the fraction 1/B of the machine per sample. Above, seconds "
    "per epoch of forward pass, baseline and BPPSA: on the V100, BPPSA lies between forward pass and baseline, on "
    "this machine its marks are open. Below, speedups of BPPSA with a line at 1: the V100's overall speedup is "
    "between 1 and 2, its backward speedup rises to about 50 at T = 30000; this machine's are drawn beside them."
)
TABLES = {"table_4": "T", "table_5": "B"}
LIMIT = {"quick": 1000 * 64, "paper": np.inf}  # of T times B, for what is measured here
SAMPLES = 32000  # of an epoch


def measure(scale, rng, progress):
    """Time the rows of both tables on this machine's fastest backend; put them below the paper's."""
    printed = {name: published.table(name) for name in TABLES}
    sizes = pd.concat(printed.values())[["T", "B"]].drop_duplicates()
    sizes = sizes[sizes["T"] * sizes["B"] <= LIMIT[scale]]
    backend = backends.resolve("auto")
    points = [{"backend": backend} | size for size in sizes.to_dict("records")]
    timed = progress.collect(points, partial(figure_08.time_iterations, seconds=figure_08.SECONDS[scale]), rng)
    ours = epochs(timed)
    parts = []
    for name in TABLES:
        parts.append(printed[name].assign(source="paper", table=name))
        parts.append(printed[name][["T", "B"]].merge(ours).assign(source="here", table=name))
    table = pd.concat(parts, ignore_index=True)
    table.attrs = {"backend": backend, "machine_of_the_paper": printed["table_4"].attrs["gpu"]}
    return table


def epochs(timed):
    """Turn Figure 8's seconds per iteration into seconds per epoch, in the columns of Tables 4 and 5.

    Parameters
    ----------
    timed : pandas.DataFrame
        From `figure_08.time_iterations`, on one backend.

    Returns
    -------
    pandas.DataFrame
        `T`, `B`, and in seconds `forward` (the forward pass alone), `baseline` and `bppsa` (forward and backward
        pass) with `bppsa_spread`, as if every iteration were off by the standard deviation.
    """
    both = figure_08.speedups(timed)
    iterations = SAMPLES / both["B"]
    return pd.DataFrame(
        {
            "T": both["T"],
            "B": both["B"],
            "forward": both["forward"] * iterations,
            "baseline": (both["forward"] + both["bp"]) * iterations,
            "bppsa": (both["forward"] + both["bppsa"]) * iterations,
            "bppsa_spread": both["bppsa_std"] * iterations,
        }
    )


def speedups(table):
    """Compute overall and backward speedups as Appendix G derives them.

    Parameters
    ----------
    table : pandas.DataFrame
        With columns `forward`, `baseline` and `bppsa`, such as from this experiment or from `published.table`.

    Returns
    -------
    pandas.DataFrame
        The table, with `overall` = baseline / bppsa and `backward` = (baseline - forward) / (bppsa - forward).
    """
    return table.assign(
        overall=table["baseline"] / table["bppsa"],
        backward=(table["baseline"] - table["forward"]) / (table["bppsa"] - table["forward"]),
    )


def plot(table):
    """Draw seconds per epoch and speedups, over T and over 1/B."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    fig, axes = pyplot.subplots(2, 2, figsize=(9, 5.8), sharex="col", sharey="row", layout="constrained")
    table = speedups(table)
    seconds = {"baseline": ("baseline", "linear"), "bppsa": ("BPPSA", "blelloch")}
    seconds["forward"] = ("forward pass", "baseline")
    ratios = {"overall": ("overall", "identity"), "backward": ("backward pass", "truncated")}
    looks = {
        "paper": {"marker": "o", "ms": 4.5, "lw": 1.5},
        "here": {"marker": "s", "ms": 5.5, "lw": 1.5, "fillstyle": "none", "ls": "--"},
    }
    axes_of = {"T": "sequence length, T (B = 16)", "B": "fraction of the machine per sample, 1/B (T = 1000)"}
    for column, (name, key) in zip(axes.T, TABLES.items(), strict=True):
        rows = table[table["table"] == name]
        label = "{}".format if key == "T" else "1/{}".format
        for source in ("paper", "here"):  # the paper's rows come first, and set the order on the axis
            part = rows[rows["source"] == source]
            for ax, curves in zip(column, (seconds, ratios), strict=True):
                for quantity, (_, role) in curves.items():
                    ax.plot(part[key].map(label), part[quantity], color=COLORS[role], **looks[source])
        column[0].set_title(name.replace("_", " ").capitalize())
        column[1].axhline(1, color="black", lw=1.1)
        column[1].set_xlabel(axes_of[key])
        column[1].tick_params(axis="x", labelsize=8)
    for ax, curves, quantity in ((axes[0, 0], seconds, "seconds per epoch"), (axes[1, 0], ratios, "speedup of BPPSA")):
        ax.set(yscale="log", ylabel=quantity)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.legend(handles=[Line2D([], [], color=COLORS[role], label=words) for words, role in curves.values()])
    machines = {"paper": f"{table.attrs['machine_of_the_paper']} (paper)", "here": "this machine"}
    machines = [Line2D([], [], color="black", label=machines[source], **look) for source, look in looks.items()]
    axes[0, 1].legend(handles=machines)
    return fig
