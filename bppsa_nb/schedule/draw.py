"""Draw what ran: a scan as a tree, as in the paper's Figures 1 and 3, and any schedule as a timeline."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from bppsa_nb.machine import process
from bppsa_nb.machine.arguments import Count, checked
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import Trace, Traced, span_label
from bppsa_nb.schedule.colors import COLORS, CYCLE, OPERATION_COLORS, OPERATION_NAMES
from bppsa_nb.schedule.events import Event
from bppsa_nb.schedule.traced import cleared_places

with process.explained():
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PatchCollection, PolyCollection
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.transforms import ScaledTranslation

_SIDE = 0.66  # of a square, where neighbors stand 1 apart
_MOVE = "#777777"
_INK = "#222222"


@checked
def tree(
    trace: Trace, ax: Axes | None = None, *, label: Callable[[Traced], str] = span_label,
    names: tuple[Sequence[str], Sequence[str]] | None = None, highlight: Collection[Traced] = (), legend: bool = True,
) -> Axes:  # fmt: skip
    """Draw a traced scan: the array from left to right, one row of it per level from top to bottom; return the axes.

    Squares are operands, labeled by `label` with the positions that went into them; faint ones have not changed, and
    are labeled in the last row only. Lines say where the others come from: solid blue a matrix-matrix product, solid
    orange a matrix-vector product, dashed a move. `names` are texts above the inputs and below the result, by default a
    chain's; products in `highlight` are stressed. A chunked scan cannot be drawn so, and raises ValueError.
    """
    if trace.method == "chunked":
        why = "'chunked' goes through its chunks twice and keeps products beside it"
        advice = "draw.timeline(scan_schedule(trace, workers)) shows what it does"
        raise ValueError(f"trace must be of a scan whose products stand in the array, but {why}; {advice}")
    rows, width = trace.rows(), len(trace.result)
    cleared, heights = cleared_places(trace, rows), [0.0]
    for r in range(1, len(rows)):  # a square between two rows needs room of its own
        heights.append(heights[-1] + (2.0 if r in cleared else 1.4))
    if ax is None:
        size = (max(4.4, 2.1 + 0.62 * width), 1.1 + 0.62 * heights[-1] + 0.6 * legend)
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    squares = []
    for r, row in enumerate(rows):
        if r:
            squares += _lines(ax, rows, heights, r, cleared.get(r), highlight)
        for position, operand in enumerate(row):
            fresh = not r or position >= len(rows[r - 1]) or rows[r - 1][position] is not operand
            bold = fresh and operand in highlight and operand in trace.levels[r - 1].products
            text = label(operand) if fresh or r == len(rows) - 1 else ""
            squares.append(_square(ax, position, -heights[r], operand, text, fresh, bold))
    ax.add_collection(PatchCollection(squares, match_original=True, snap=True, zorder=3))

    inputs, result = names or chain_names(trace.n)
    ax.set(xlim=(-0.6, width - 0.4), ylim=(-heights[-1] - 1.1, 0.6), aspect="equal")
    ax.set_xticks([])
    for position, name in enumerate(result):
        ax.text(position, -heights[-1] - 0.8, name, ha="center", va="center", color=_INK, size=9)
    levels = [f"{i}. {_level_name(level)}" for i, level in enumerate(trace.levels, 1)]
    ax.set_yticks([-height for height in heights], ["inputs", *levels, "moved"][: len(rows)])
    top = ax.secondary_xaxis("top")
    top.set_xticks(range(len(inputs)), inputs)
    for each in (ax, top):
        each.tick_params(length=0, colors=_INK)
        each.spines[:].set_visible(False)
    ax.grid(False)
    if legend:
        # Below the row of names, whatever the scale.
        lower = ax.transAxes + ScaledTranslation(0, -0.1, ax.get_figure().dpi_scale_trans)
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": lower}
        ax.legend(handles=legend_handles(highlight), ncols=min(3, width // 3 + 1), frameon=False, **where)
    return ax


@checked
def chain_names(n: Count) -> tuple[list[str], list[str]]:
    """Name the entries of Equation 5's array and of the result; J_t is short for d x_t / d x_(t-1)."""
    jacobians = [rf"$J_{{{t}}}^T$" for t in range(n, 0, -1)]
    gradients = [rf"$\nabla x_{{{t}}}$" for t in range(n, -1, -1)]
    return [gradients[0], *jacobians], ["$I$", *gradients]


def legend_handles(highlight=()):
    """Return what a legend needs to explain the colors and lines of `tree`."""
    square = {"marker": "s", "ls": "", "ms": 9}
    handles = [
        Line2D([], [], color=COLORS["matrix"], label="transposed Jacobian(s)", **square),
        Line2D([], [], color=COLORS["vector"], label="gradient", **square),
        Line2D([], [], color=COLORS["identity"], label="identity, a symbol", **square),
        *(Line2D([], [], color=COLORS[kind], label=f"matrix × {kind}") for kind in ("matrix", "vector")),
        Line2D([], [], color=_MOVE, ls="--", label="data moves"),
    ]
    if highlight:
        handles.append(Line2D([], [], color=_INK, mfc="none", mew=2, label="critical path", **square))
    return handles


def _level_name(level):
    phase, d, _ = level.level
    return "linear" if phase == "linear" else f"{phase}-sweep, $d={d}$"


def _square(ax, x, y, operand, text, fresh=True, bold=False, side=_SIDE):
    fill = COLORS["identity" if operand is IDENTITY else operand.kind]
    edge = {"ec": _INK, "lw": 2.2} if bold else {"ec": "none"}
    alpha = 1.0 if fresh else 0.2
    style = {"family": "serif", "style": "italic"} if operand is IDENTITY else {}
    style |= {"size": min(8, 32 / max(4, len(text))), "color": _readable_on(fill) if fresh else "#777777"}
    if text:
        ax.text(x, y, text, ha="center", va="center_baseline", zorder=4, **style)
    return Rectangle((x - side / 2, y - side / 2), side, side, fc=(*to_rgb(fill), alpha), **edge)


def _lines(ax, rows, heights, r, cleared, highlight):
    place = {operand: position for position, operand in enumerate(rows[r - 1])}
    above, below = -heights[r - 1] - _SIDE / 2, -heights[r] + _SIDE / 2
    squares, segments, styles = [], [], []
    if cleared is not None:
        middle, side = (above + below) / 2, 0.42
        squares.append(_square(ax, cleared, middle, IDENTITY, "I", side=side))
    for position, operand in enumerate(rows[r]):
        if operand in place and place[operand] != position:
            segments.append([(place[operand], above), (position, below)])
            styles.append((_MOVE, "--", 1.2))
        elif operand is IDENTITY and cleared is not None:
            segments.append([(cleared, middle - side / 2), (position, below)])
            styles.append((_MOVE, "--", 1.2))
        elif operand is not IDENTITY and operand not in place:
            role = "matrix" if operand.product == "mm" else "vector"
            segments += [[(place[parent], above), (position, below)] for parent in operand.parents]
            styles += [(COLORS[role], "-", 3.2 if operand in highlight else 1.6)] * 2
    if segments:
        colors, dashes, widths = zip(*styles, strict=True)
        ax.add_collection(LineCollection(segments, colors=colors, linestyles=list(dashes), linewidths=widths, zorder=2))
    return squares


def _readable_on(fill):
    red, green, blue = to_rgb(fill)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.4 else "white"


@checked
def timeline(
    events: Sequence[Event], ax: Axes | None = None, *, colors: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None, unit: str = "time", worker: str | Sequence[str] = "worker",
    thin: Collection[int] = (), until: Annotated[float, ">= 0"] | None = None, legend: bool = True,
) -> Axes:  # fmt: skip
    """Draw a schedule: one lane per worker, one bar per event, colored by kind; return the axes.

    `colors` and `names` have what each kind looks like and is called, in the order of the legend; by default, those of
    products and of training's operations, or colors that color-blind readers can tell apart. `worker` is what a worker
    is called, or a list of what each of them is; lanes of workers in `thin`, such as links, are half as high. `until`
    is where the axis of time ends, for schedules drawn below each other. Raises ValueError if there are more kinds than
    colors, or a worker has no name.
    """
    kinds = list(dict.fromkeys(event.kind for event in events))
    if colors is None:
        colors = _default_colors(kinds)
    names = {"mm": "matrix × matrix", "mv": "matrix × vector"} | OPERATION_NAMES | dict(names or {})
    lanes = 1 + max((event.worker for event in events), default=0)
    if not isinstance(worker, str):
        if lanes > len(worker):
            raise ValueError(f"worker must name all {lanes} workers of the events, got {len(worker)} names: {worker!r}")
        lanes = len(worker)
    heights = np.where(np.isin(np.arange(lanes), list(thin)), 0.5, 1.0)
    middles = np.cumsum(heights) - heights / 2 - heights[0] / 2  # the first lane's is 0
    foot = middles[-1] + heights[-1] / 2
    end = until or max((event.end for event in events), default=0) or 1
    if ax is None:
        ax = plt.subplots(figsize=(7.2, 1.3 + 0.34 * heights.sum()), layout="constrained")[1]
    width, height = _points(ax)
    _bars(ax, events, colors, middles, heights, width / end, height / (heights.sum() + 0.2))
    ax.set(xlim=(0, end), ylim=(foot + 0.1, -heights[0] / 2 - 0.1), xlabel=unit)
    called = [f"{worker} {i}" for i in range(lanes)] if isinstance(worker, str) else worker
    ax.set_yticks(middles, called if lanes <= 16 else [""] * lanes)
    if lanes > 16:
        ax.set_ylabel(f"{lanes} {worker}s" if isinstance(worker, str) else f"{worker[0]} to {worker[-1]}")
    ax.tick_params(axis="y", length=0)
    ax.grid(False)
    if legend and len(colors) > 1:
        handles = [Patch(color=fill, label=names.get(kind, kind)) for kind, fill in colors.items()]
        columns = min(len(handles), 6)
        ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False)
    return ax


def _points(ax):
    """Estimate the size of axes in points; what surrounds them is laid out only when all is drawn."""
    size, place = ax.get_figure().get_size_inches(), ax.get_position()
    return 72 * 0.7 * size[0] * place.width / 0.775, 72 * 0.7 * size[1] * place.height / 0.77


def _bars(ax, events, colors, middles, heights, across, down):
    """Draw the bars, as one collection, and labels where they fit; `across` and `down` are points per unit."""
    corners, edges = [], []
    for event in events:
        half = 0.4 * heights[event.worker]
        top, bottom = middles[event.worker] - half, middles[event.worker] + half
        corners.append([(event.start, top), (event.end, top), (event.end, bottom), (event.start, bottom)])
        edges.append(min(0.6, 0.15 * event.duration * across))  # where bars are narrow, edges would hide them
        fill = colors[event.kind]
        size = min(8, event.duration * across / (0.68 * max(1, _letters(event.label))), 2 * half * down / 1.1)
        if event.label and size >= 6:
            look = {"ha": "center", "va": "center_baseline", "fontsize": size, "color": _readable_on(fill)}
            ax.text(event.start + event.duration / 2, middles[event.worker], event.label, **look)
    fills = [colors[event.kind] for event in events]
    ax.add_collection(PolyCollection(corners, facecolors=fills, edgecolors="white", linewidths=edges), autolim=False)


def _letters(label):
    """Count the letters of a label; in mathtext, those of an index are smaller."""
    if label.count("$") != 2:
        return len(label)
    label = re.sub(r"\\[A-Za-z]+", "x", label.replace("$", ""))
    small = sum(len(index.strip("{}")) for index in re.findall(r"[_^](\{[^{}]*\}|.)", label))
    return len(re.sub(r"[_^](\{[^{}]*\}|.)", "", label)) + 0.7 * small


def operation_label(layer, micro_batch, micro_batches):
    """Label an operation of training: its layer, ``"3"``, or of several micro-batches ``"$3_{A}$"`` (Figure 13)."""
    if micro_batches == 1:
        return str(layer)
    return f"${layer}_{{{chr(ord('A') + micro_batch) if micro_batches <= 26 else micro_batch}}}$"


def labelled(timeline):
    """Return the events of a `Timeline`, each with the label of its operation."""
    ops = timeline.operations
    numbers = zip(ops.layer.tolist(), ops.micro_batch.tolist(), strict=True)
    labels = [operation_label(layer, m, ops.micro_batches) for layer, m in numbers]
    return [event._replace(label=label) for event, label in zip(timeline.events, labels, strict=True)]


def _default_colors(kinds):
    known = {"mm": COLORS["matrix"], "mv": COLORS["vector"]} | OPERATION_COLORS
    if set(kinds) <= known.keys():
        return {kind: color for kind, color in known.items() if kind in kinds}
    if len(kinds) > len(CYCLE):
        raise ValueError(f"colors must be given for more than {len(CYCLE)} kinds of events, got {len(kinds)} kinds")
    return dict(zip(kinds, CYCLE, strict=False))
