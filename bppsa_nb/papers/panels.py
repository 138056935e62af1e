"""What the figures of several experiments have in common: scales, ranges, legends, panels for machines."""

import io
from functools import partial

import numpy as np

from bppsa_nb.machine import process

with process.explained():
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import NullLocator

# What figures are made by: their parts make room for labels.
figure, subplots = (partial(make, layout="constrained") for make in (pyplot.figure, pyplot.subplots))


def log_scale(ax, which="xy", shown="{x:g}", ticks=None):
    """Make axes logarithmic, with plain numbers; those of the first one at `ticks` only, if there are any."""
    for axis in which:
        ax.set(**{f"{axis}scale": "log"})
        getattr(ax, f"{axis}axis").set_major_formatter(shown)
    if ticks is not None:
        axis = getattr(ax, f"{which[0]}axis")
        axis.set_ticks(ticks, [shown.format(x=tick) for tick in ticks])
        axis.set_minor_locator(NullLocator())


def sizes_axis(ax, sizes):
    """Make the axis of x logarithmic to base 2, with every size named."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])


def with_quartiles(ax, x, rows, name, **style):
    """Draw a column of rows, with bars from its quartiles `<name>_low` to `<name>_high`."""
    middle = rows[name]
    return ax.errorbar(x, middle, [middle - rows[f"{name}_low"], rows[f"{name}_high"] - middle], **style)


def curves(ax, table, x, y, by, styles, dodge=0, **style):
    """Draw a column over another, a line for each value of a third that `styles` has one for, {value: style}.

    There are bars where the table has quartiles. Lines are `dodge` octaves of x apart, so that bars do not hide bars.
    """
    for i, (value, own) in enumerate(styles.items()):
        rows = table[table[by] == value]
        own, at = style | own, rows[x] * 2 ** (dodge * (i - (len(styles) - 1) / 2))
        if f"{y}_low" in rows:
            with_quartiles(ax, at, rows, y, **own)
        else:
            ax.plot(at, rows[y], **own)


def name_end(ax, x, y, name, color, up=0):
    """Write the name of a line at its end."""
    end, style = (list(x)[-1], list(y)[-1]), {"va": "center", "size": 9, "annotation_clip": False}
    ax.annotate(name, end, (6, up), textcoords="offset points", color=color, **style)


def name_ends(ax, lines, apart=10.5):
    """Write names at the ends of lines, {name: (x, y, color)}, so many points apart; what is drawn is complete."""
    ax.autoscale_view()
    lowest = -np.inf
    for name, (x, y, color) in sorted(lines.items(), key=lambda line: list(line[1][1])[-1]):
        at = 72 / ax.figure.dpi * ax.transData.transform((list(x)[-1], list(y)[-1]))[1]
        lowest = max(at, lowest + apart)
        name_end(ax, x, y, name, color, lowest - at)


def patches(colors):
    """Return handles for a legend: a patch per label, {label: color}."""
    return [Patch(color=color, label=label) for label, color in colors.items()]


def lines(colors, **style):
    """Return handles for a legend: a line per label, {label: color}."""
    return [Line2D([], [], color=color, label=label, **style) for label, color in colors.items()]


def legend(fig, handles=None, **style):
    """Explain a figure above it: handles, or whatever its first axes have labels for."""
    handles = fig.axes[0].get_legend_handles_labels()[0] if handles is None else handles
    fig.legend(handles=handles, **{"loc": "outside upper center", "ncols": len(handles)} | style)


def png(fig):
    """Return a figure as a PNG, for a notebook's widget."""
    file = io.BytesIO()
    fig.savefig(file, format="png", dpi=90, bbox_inches="tight")
    return file.getvalue()


def machines(table, width, height):
    """Make a figure with a part for each machine of `table`; return it, and (part, rows) of each.

    Each is so high, or as high as `height` says of its rows.
    """
    groups = dict(list(table.groupby("machine", sort=False)))
    heights = [height(rows) if callable(height) else height for rows in groups.values()]
    fig = figure(figsize=(width, sum(heights)))
    parts = fig.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, name in zip(parts, groups, strict=True):
        part.suptitle(name, size=10)
    return fig, list(zip(parts, groups.values(), strict=True))
