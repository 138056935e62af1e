"""How whole training steps and their memory grow, ours and the peers': draws what `benchmarks/run.py` recorded."""

import numpy as np
import pandas

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

SERIES, FEWER = ["ours", "PyTorch", "JAX"], "ours, checkpoint_every=√T"
PARTS = {"seconds": "time", "bytes": "memory"}
SHADES = COLORS | {"time": COLORS["baseline"], "memory": COLORS["chunked"]}
ROWS = "seconds a step", "MiB at most", "every √T-th state\nkept / all kept"
LABELS = {"T": "sequence length, T", "B": "batch size, B", "H": "hidden size, H", "layers": "layers, L"}
KEYS = ["machine", "over", "T", "B", "H", "layers"]
RESOLVED = 2**16  # bytes that are told apart from what a process does by the way
FITTED = 3  # sizes


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("growth")


def best(table):
    """Take of each peer its least time, and its least memory: a row for each size and `series`."""
    series = table["name"].str.split(".").str[0].replace(recorded.PEERS)
    states = table[["T", "B", "H", "layers"]].prod(axis=1) * np.dtype(np.float32).itemsize
    seen = table["bytes"] >= (states / 2).where(~series.str.contains("checkpoint"), 0).clip(lower=RESOLVED)
    table = table.assign(series=series, bytes=table["bytes"].where(seen))
    return table.groupby([*KEYS, "series"], sort=False)[["seconds", "bytes"]].min().reset_index()


def exponents(table):
    """Fit powers to the last sizes: a row for each machine, `over`, series and `what`, "seconds" or "bytes"."""
    rows = []
    for (machine, over, series), part in best(table).groupby(["machine", "over", "series"], sort=False):
        for what in ("seconds", "bytes"):
            known = part.sort_values(over)[-FITTED:].dropna(subset=what)
            power = np.polyfit(np.log(known[over]), np.log(known[what]), 1)[0] if len(known) > 1 else None
            rows.append({"machine": machine, "over": over, "series": series, "what": what, "exponent": power})
    return pandas.DataFrame(rows)


def values(table):
    """Name what the words are taken from."""
    return {"fitted": exponents(table).replace({"series": {FEWER: "fewer kept"}})}


def plot(table):
    """Draw times, memory, and what fewer kept states change of both, over all sizes; a block for each machine."""
    rows, fitted = best(table), exponents(table)
    fig, parts = panels.machines(rows, 10.5, 7.8)
    for part, here in parts:
        overs = here["over"].unique()
        axes = part.subplots(3, len(overs), sharex="col", sharey="row", squeeze=False)
        powers = fitted[(fitted["machine"] == here["machine"].iloc[0]) & (fitted["series"] == "ours")]
        powers = powers.set_index(["over", "what"])["exponent"]
        for over, column in zip(overs, axes.T, strict=True):
            known = here[here["over"] == over].pivot(index=over, columns="series", values=["seconds", "bytes"])
            _draw(column, known, over, powers[over])
        for ax, label in zip(axes[:, 0], ROWS, strict=True):
            ax.set_ylabel(label)
    return fig


def _draw(column, known, over, powers):
    """Draw a size's panels; the first one's lines have names, for which it is wider."""
    fewer, every = (known.xs(name, axis=1, level="series") for name in (FEWER, "ours"))
    drawn = known["seconds"][SERIES], known["bytes"][SERIES] / 2**20, (fewer / every).rename(columns=PARTS)
    names = [f"$10^{{{np.log10(size):.0f}}}$" if over == "T" else f"{size:g}" for size in known.index]
    for ax, lines in zip(column, drawn, strict=True):
        for name in lines:
            ax.plot(lines[name], "o-", ms=3.5, color=SHADES[name])
        panels.log_scale(ax, "xy")
        ax.set_xticks(known.index, names)
        ax.minorticks_off()
    for ax, what in zip(column, PARTS, strict=False):
        ax.set_title(f"ours ∝ ${LABELS[over][-1]}^{{{powers[what]:.2f}}}$", size=10)
    column[2].axhline(1, color="black", lw=0.8)
    column[2].set_xlabel(LABELS[over])
    if over == "T":
        column[0].set_xlim(right=known.index[-1] * 60)
        for ax, lines in zip(column, drawn, strict=True):
            panels.name_ends(ax, {name: (lines.index, lines[name], SHADES[name]) for name in lines})
