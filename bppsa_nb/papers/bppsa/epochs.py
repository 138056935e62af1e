"""Epochs of the benchmarks as Tables 4 to 6 have them, the paper's machine beside this one."""

import numpy as np

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, compare

SAMPLES = 32000  # of the RNN's epoch
CLIPS = 6705  # of the GRU's epoch: IRMAS's training set
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


def by_size(parts, name):
    """Return the rows of `breakdown` by their sizes, put into words as `name` says."""
    return {name.format(**row): row for row in parts.to_dict("records")}


def claim(table, size, printed):
    """Make the claim of a row of Table 4, 5 or 6, held against what `facts` has `by_size` as `epochs` and `printed`."""
    row, end = f"epochs[{size}]", " without overhead" if table == 6 else ""
    found = f"{{{row}[baseline]:.3g}} s / {{{row}[bppsa]:.3g}} s: {{{row}[overall]:×}} overall, {{{row}[backward]:×}} "

    def holds(facts):
        rows = facts["epochs"][size], facts["printed"][size]
        return compare(*([each["overall"], each["backward"]] for each in rows))

    says = f"One epoch {size}: BPPSA against the baseline."
    return Claim(f"Table {table}", says, f"{printed} (V100)", f"{found}backward{end}", holds, gpu=True)


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


def draw(fig, axes, columns, machine):
    """Draw seconds per epoch, and speedups, the paper's filled, ours open; `columns` has rows, x, title and label."""
    drawn = {}
    for column, (rows, x, title, label) in zip(axes.T, columns, strict=True):
        for source, style in STYLES.items():  # the paper's rows come first, and set the order on the axis
            part = rows[rows["source"] == source]
            for ax, curves in zip(column, CURVES, strict=True):
                for quantity, (name, role) in curves.items():
                    if quantity in part:
                        ax.plot(part[x], part[quantity], color=COLORS[role], **style)
                        drawn[name] = COLORS[role]
        column[1].axhline(1, color="black", lw=1.1)
        column[0].set_title(title)
        for ax, quantity in zip(column, ("seconds per epoch", "speedup of BPPSA"), strict=True):
            panels.log_scale(ax, "y")
            ax.set(xlabel=label, ylabel=quantity)
    handles = panels.lines(drawn) + panels.lines({f"{machine} (paper)": "black"}, **STYLES["paper"])
    panels.legend(fig, handles + panels.lines({"our machine": "black"}, **STYLES["here"]), ncols=4)
