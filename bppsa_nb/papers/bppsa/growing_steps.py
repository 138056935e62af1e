"""How whole training steps and their memory grow, ours and the peers': draws what `benchmarks/run.py` recorded."""

import numpy as np
import pandas

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

SERIES = {  # in the order of the legend, and how each is drawn
    "ours": {"color": COLORS["linear"], "marker": "o"},
    "ours, checkpoint_every=√T": {"color": COLORS["chunked"], "marker": "s"},
    "PyTorch": {"color": COLORS["identity"], "marker": "^"},
    "JAX": {"color": COLORS["vector"], "marker": "v"},
}
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
    return {"fitted": exponents(table).replace({"series": {"ours, checkpoint_every=√T": "fewer kept"}})}


def plot(table):
    """Draw times above memory, over each of the sizes; a block for each machine."""
    rows, fitted = best(table), exponents(table)
    fig, parts = panels.machines(rows, 11.5, 6.4)
    for part, here in parts:
        overs = here["over"].unique()
        axes = part.subplots(2, len(overs), sharex="col", sharey="row", squeeze=False)
        for what, line in zip(("seconds", "bytes"), axes, strict=True):
            for over, ax in zip(overs, line, strict=True):
                powers = fitted[(fitted["machine"] == here["machine"].iloc[0]) & (fitted["over"] == over)]
                powers = powers[powers["what"] == what].set_index("series")["exponent"]
                _draw(ax, here[here["over"] == over].sort_values(over), over, what, powers)
        axes[0, 0].set_ylabel("seconds a step")
        axes[1, 0].set_ylabel("MiB at most")
        for over, ax in zip(overs, axes[1], strict=True):
            ax.set_xlabel(LABELS[over])
    panels.legend(fig)
    return fig


def _draw(ax, rows, over, what, powers):
    for place, (series, style) in enumerate(SERIES.items()):
        part = rows[rows["series"] == series]
        ax.plot(part[over], part[what] / (2**20 if what == "bytes" else 1), label=series, ms=4, **style)
        if series in powers and not np.isnan(powers[series]):
            text, at = f"${LABELS[over][-1]}^{{{powers[series]:.2f}}}$", (0.03, 0.97 - 0.085 * place)
            ax.text(*at, text, transform=ax.transAxes, color=style["color"], size=8.5, va="top", weight="bold")
    panels.log_scale(ax, "xy")
    sizes = sorted(rows[over].unique())
    if over == "T":
        ax.set_xticks(sizes, [f"$10^{{{np.log10(size):.0f}}}$" for size in sizes])
    else:
        panels.sizes_axis(ax, sizes)
    ax.minorticks_off()
