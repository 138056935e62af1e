"""What the compiler made of the RNN's time loop, instruction by instruction."""

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.colors import ListedColormap

from bppsa_nb.chains import costs
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS

KINDS = {  # names begin with these
    "multiply-adds": ("FFMA", "blelloch"),
    "other arithmetic (tanh, sums)": ("FADD FMUL FSETP FSEL FMNMX MUFU HFMA", "vector"),
    "memory": ("LD ST ULDC", "linear"),
    "barriers, jumps": ("BAR BRA BSSY BSYNC WARP NOP EXIT CALL RET", "identity"),
    "addresses, indices, moves": ("", "baseline"),
}
WIDE = 20  # squares


def measure(scale, rng, progress):
    """List the instructions of both loops."""
    rows = [
        {"kernel": kernel, "instruction": name, "kind": kind_of(name)}
        for kernel, names in reversed(costs.loops().items())
        for name in names
    ]
    table = pd.DataFrame(rows)
    table.attrs["collected"] = True  # nothing runs here
    return table


def kind_of(name):
    """Return the first of `KINDS` whose names an instruction's name begins with."""
    return next(kind for kind, (names, _) in KINDS.items() if not names or name.startswith(tuple(names.split())))


def plot(table):
    """Draw a square per instruction, in two blocks."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
    colors = ListedColormap([COLORS[role] for _, role in KINDS.values()])
    kinds = list(KINDS)
    what = {"for any H": "eight multiply-adds", "for H = 20": "four whole steps: eighty, and tanh"}
    for ax, (kernel, rows) in zip(axes, table.groupby("kernel", sort=False), strict=True):
        squares = np.full(-(-len(rows) // WIDE) * WIDE, np.nan)
        squares[: len(rows)] = [kinds.index(kind) for kind in rows["kind"]]
        style = {"cmap": colors, "vmin": 0, "vmax": len(kinds) - 1, "edgecolors": "white", "linewidth": 1.5}
        ax.pcolormesh(squares.reshape(-1, WIDE), **style)
        ax.set_title(f"{kernel}: {len(rows)} instructions for\n{what[kernel]}")
        ax.set_aspect("equal")
        ax.axis("off")
    axes[0].invert_yaxis()
    panels.legend(fig, panels.patches({kind: COLORS[role] for kind, (_, role) in KINDS.items()}), ncols=3)
    return fig
