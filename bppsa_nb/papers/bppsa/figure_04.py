"""Figure 4: the primitives of the up-sweep and the down-sweep."""

import pandas as pd

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import Figure
from bppsa_nb.scan.blelloch import down_sweep, up_sweep
from bppsa_nb.scan.trace import Traced, record
from bppsa_nb.schedule import draw


def primitive(phase):
    """Run the step of a phase, "up" or "down", on operands A and B; return it, and what to write on its operands."""
    log = []
    # Going down, B holds everything up to A's block.
    sweep, b = {"up": (up_sweep, ("matrix", (2, 2))), "down": (down_sweep, ("vector", (0, 0)))}[phase]
    a = [Traced("matrix", (1, 1), log), Traced(*b, log)]
    letters = dict(zip(a, "AB", strict=True))
    return record(a, sweep(a, 1, 1), phase), lambda x: letters.get(x) or "⋄".join(letters[p] for p in x.parents)


def measure(scale, rng, progress):
    """Run both primitives: one row per phase and position."""
    rows = []
    for phase in ("up", "down"):
        trace, label = primitive(phase)
        before, after = trace.rows()
        for place, old, new in zip("lr", before, after, strict=True):
            rows.append({"phase": phase, "position": place, "before": label(old), "after": label(new)})
    return pd.DataFrame(rows)


def plot(table):
    fig, axes = panels.subplots(1, 2, figsize=(7.6, 2.5))
    for ax, (phase, rows) in zip(axes, table.groupby("phase", sort=False), strict=True):
        trace, label = primitive(phase)
        before, after = list(rows["before"]), list(rows["after"])
        changed = [i for i in range(2) if before[i] != after[i]]
        left, right = (", ".join(side[i] for i in changed).replace("⋄", " ⋄ ") for side in (before, after))
        draw.tree(trace, ax, label=label, names=(["$l$", "$r$"], []), legend=False)
        ax.set_yticks(ax.get_yticks(), ["before", "after"])
        ax.set_title(f"{phase.capitalize()}-sweep:  {left} ← {right}")
    axes[0].legend(handles=draw.legend_handles()[3:], loc="center left", bbox_to_anchor=(1.02, 0.5))
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""A ⋄ B = B A, and the order matters. Up-sweep: A is closer to the loss, so it comes first. Down-sweep: B,
    from above, holds everything closer to the loss than A's block. B moves to the left, and multiplies A from the
    loss's side: B ⋄ A. Blelloch's own scan would take A ⋄ B.""",
    alt="""Two drawings of positions l and r before and after a step. Up-sweep: A at l stays, r becomes A ⋄ B, a
    matrix-matrix product. Down-sweep: B moves to l along a dashed line, and r becomes B ⋄ A, a matrix-vector
    product.""",
)
