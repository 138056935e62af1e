"""Tables 4 and 5: an epoch of the RNN benchmark on the paper's V100, and on this machine."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.machine import backends
from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa.epochs import SAMPLES, breakdown, draw, sources
from bppsa_nb.papers.bppsa.iterations import RNN_SECONDS, speedups, time_rnn

TABLES = ("table_4", "table_5")
LIMIT = {"quick": 1000 * 64, "paper": np.inf}  # of T times B, for what is measured here


def measure(scale, rng, progress):
    """Time the rows of both tables on this machine's fastest backend; put them below the paper's."""
    printed = {name: published.table(name) for name in TABLES}
    sizes = pd.concat(printed.values())[["T", "B"]].drop_duplicates()
    sizes = sizes[sizes["T"] * sizes["B"] <= LIMIT[scale]]
    backend = backends.resolve("auto")
    points = [{"backend": backend} | size for size in sizes.to_dict("records")]
    timed = progress.collect(points, partial(time_rnn, seconds=RNN_SECONDS[scale]), rng)
    ours = epochs(timed)
    parts = []
    for name in TABLES:
        parts.append(printed[name].assign(source="paper", table=name))
        parts.append(printed[name][["T", "B"]].merge(ours).assign(source="here", table=name))
    table = pd.concat(parts, ignore_index=True)
    table.attrs = {"backend": backend, "machine_of_the_paper": printed["table_4"].attrs["gpu"]}
    return table


def epochs(timed):
    """Turn `time_rnn`'s seconds per iteration on one backend into seconds per epoch, with the columns of Table 4."""
    both = speedups(timed)
    seconds = both[["forward"]].assign(
        baseline=both["forward"] + both["bp"], bppsa=both["forward"] + both["bppsa"], bppsa_spread=both["bppsa_std"]
    )
    return both[["T", "B"]].join(seconds.mul(SAMPLES / both["B"], axis=0))


values = sources


def plot(table):
    """Draw seconds per epoch and speedups, over T and over 1/B."""
    fig, axes = pyplot.subplots(2, 2, figsize=(9, 5.8), sharex="col", sharey="row", layout="constrained")
    parts = breakdown(table)
    parts["1/B"] = parts["B"].map("1/{}".format)
    parts["T"] = parts["T"].map(str)
    columns = [(parts[parts["table"] == name], key) for name, key in (("table_4", "T"), ("table_5", "1/B"))]
    draw(fig, axes, columns, table.attrs["machine_of_the_paper"])
    labels = "sequence length, T (B = 16)", "fraction of the machine per sample, 1/B (T = 1000)"
    for (above, below), name, label in zip(axes.T, TABLES, labels, strict=True):
        above.set_title(name.replace("_", " ").capitalize())
        below.set_xlabel(label)
        below.tick_params(axis="x", labelsize=8)
    return fig
