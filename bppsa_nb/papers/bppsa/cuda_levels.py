"""How much work each kernel launch of the scan has to share out: thread blocks per level."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

T, B = 1000, 16
MULTIPROCESSORS = {"RTX 2070 (the paper): 36 multiprocessors": 36, "H200: 132 multiprocessors": 132}


def measure(scale, rng, progress):
    """List the launches of a Blelloch scan: one row per level."""
    launches = [("up", d) for d in range(up_levels(T))]
    launches += [("down", d) for d in reversed(range(down_levels(T)))]
    return pd.DataFrame(
        {"T": T, "B": B, "launch": number, "phase": phase, "d": d, "blocks": num_pairs(T, d) * B}
        for number, (phase, d) in enumerate(launches, 1)
    )


def plot(table):
    """Draw blocks per launch against the multiprocessors there are."""
    fig, ax = pyplot.subplots(figsize=(8.2, 4.2))
    colors = table["phase"].map({"up": COLORS["matrix"], "down": COLORS["vector"]})
    ax.bar(table["launch"], table["blocks"], color=colors, width=0.75)
    for phase, label in (("up", "up-sweep: matrix × matrix"), ("down", "down-sweep: matrix × vector")):
        ax.bar(0, 0, color=COLORS["matrix" if phase == "up" else "vector"], label=label)
    for (label, count), style in zip(MULTIPROCESSORS.items(), (":", "--"), strict=True):
        ax.axhline(count, color="#333333", linestyle=style, linewidth=1.2, label=label)
    ax.set_xticks(table["launch"], [f"{n}\nd={d}" for n, d in zip(table["launch"], table["d"], strict=True)], size=7.5)
    ax.set(yscale="log", ylim=(8, 80_000), xlim=(0.3, len(table) + 0.7))
    ax.set(xlabel="kernel launch, and its level d in Algorithm 1", ylabel="thread blocks")
    ax.grid(axis="x", visible=False)
    ax.set_title(f"{len(table)} launches instead of {table['T'].iloc[0]} steps, from wide to narrow to wide")
    ax.legend(ncols=2, loc="upper center", frameon=True)
    return fig
