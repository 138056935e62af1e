"""Draw a differentiable graph as a circuit: forward up and to the right, backward down and to the left."""

import itertools
from typing import Literal

from bppsa_nb.graphs.graph import Graph
from bppsa_nb.graphs.nodes import SOURCES
from bppsa_nb.machine import process
from bppsa_nb.machine.arguments import checked

with process.explained():
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, FancyBboxPatch

# The article's red: Okabe and Ito's vermilion, with a thick border for those who do not see it.
NEEDS = "#D55E00"
INKS = {"forward": "#222222", "backward": "#0072B2"}

_RADIUS = 0.27  # of an operation, where places are about 1 apart
_DOT = 0.08
_SYMBOLS = {"sum": "+", "multiply": r"$\odot$", "matmul": "×", "one_minus": "1−"}
_SYMBOLS |= {"sigmoid": "σ", "tanh": "tanh", "relu": "relu"}
_SLOPES = {"one_minus": "−1", "sigmoid": "σ′", "tanh": "tanh′", "relu": "relu′"}
_SIZES = {"+": 12, "×": 13, r"$\odot$": 12, "σ": 10, "σ′": 10}  # of symbols, in points
_SMALL = 6  # of longer ones


@checked
def draw(graph: Graph, ax: Axes, direction: Literal["forward", "backward"] = "forward") -> Axes:
    """Draw a graph whose nodes have places, ``"forward"`` or, as the graph derived from it, ``"backward"``.

    Circles are elementwise operations, squares matrix products; parameters are gray. A dot, where a wire splits, is a
    copy; wires that cross without one have nothing to do with each other. Operations that read activations on the way
    back have a thick orange border, and backward these activations below them. `Graph.label` says what is written.
    """
    drawn = [node for node in graph.nodes if node.op != "repeat"]  # a bias goes straight to its sum
    missing = [node.name for node in drawn if node.name not in graph.places]
    if missing:
        raise ValueError(f"to draw {graph.name!r}, all its nodes need places; not placed: {', '.join(missing)}")
    back = graph.backward()
    for node in drawn:
        _draw_wires(ax, graph, routes(graph, node), direction)
        _draw_node(ax, graph, node, back.needs.get(node.name, ()), direction)
    ends = [_end(graph, name, node) for name, node in graph.outputs.items()]
    for (x, y), name in zip(ends, graph.outputs, strict=True):
        ax.text(x + 0.1, y, _text(graph, name, direction), ha="left", va="center", size=9)
    xs, ys = zip(*ends, *(graph.places[node.name][:2] for node in drawn), strict=True)
    ax.set(xlim=(min(xs) - 0.9, max(xs) + 0.8), ylim=(min(ys) - 0.6, max(ys) + 0.5), aspect="equal")
    ax.axis("off")
    return ax


def legend_handles() -> list[Line2D]:
    """Return what a legend needs to explain `draw`."""
    ring = {"ls": "", "marker": "o", "ms": 10, "mfc": "white", "mec": INKS["forward"]}
    thick = ring | {"mec": NEEDS, "mew": 2.2, "mfc": "#FCE5D8"}
    return [
        Line2D([], [], **ring, label="elementwise"),
        Line2D([], [], **ring | {"marker": "s"}, label="matrix product"),
        Line2D([], [], **thick, label="reads activations on the way back"),
        Line2D([], [], color=INKS["forward"], marker="o", ms=5, lw=1.3, label="copy, forward"),
        Line2D([], [], color=INKS["backward"], marker="o", ms=5, lw=1.3, label="copy, backward"),
    ]


def routes(graph, node):
    """Return the corners of an activation's wires: right, up at the consumer's column or the wire's rise, and right."""
    x0, y0, *rise = graph.places[node.name]
    wires = []
    for x1, y1 in _uses(graph, node):
        column = rise[0] if rise else x1
        corners = [(x0, y0), (column, y0), (column, y1), (x1, y1)]
        wires.append([corner for i, corner in enumerate(corners) if not i or corner != corners[i - 1]])
    return wires


def pieces(wires):
    """Cut wires at all of their corners, so that what they share is there once: pairs of points, in their direction."""
    corners, found = {corner for wire in wires for corner in wire}, set()
    for wire in wires:
        for start, end in itertools.pairwise(wire):
            on_it = [each for each in corners if all(a <= b <= c for a, b, c in zip(start, each, end, strict=True))]
            found |= set(itertools.pairwise(sorted(on_it)))  # wires run right and up
    return sorted(found)


def junctions(wires):
    """Find the points where the wires of one activation part, and the directions in which they go on from there."""
    leaving = {}
    for start, end in pieces(wires):
        leaving.setdefault(start, set()).add(_heading(start, end))
    return {point: found for point, found in leaving.items() if len(found) > 1 and point != wires[0][0]}


def _heading(start, end):
    return tuple((b > a) - (b < a) for a, b in zip(start, end, strict=True))


def _uses(graph, node):
    """Yield the places that an activation goes to."""
    for user in graph.nodes:
        for taken in user.inputs:
            if taken is node and user.op == "repeat":
                yield from _uses(graph, user)
            elif taken is node:
                yield graph.places[user.name][:2]
    for name, out in graph.outputs.items():
        if out is node:
            yield _end(graph, name, out)


def _end(graph, name, node):
    """Return where the wire of an output ends: in its own place, or right of its node."""
    if name != node.name and name in graph.places:
        return graph.places[name][:2]
    x, y, *_ = graph.places[node.name]
    return (x + 0.8, y)


def _draw_wires(ax, graph, wires, direction):
    ink = INKS[direction]
    # How far from a place the wire ends: at the rim of what stands there.
    rims = {graph.places[node.name][:2]: _rim(node, direction) for node in graph.nodes if node.name in graph.places}
    lines = LineCollection(pieces(wires), colors=ink, linewidths=1.3, zorder=1, capstyle="projecting")
    ax.add_collection(lines, autolim=False)
    for wire in wires:
        tail, tip = (wire[-2], wire[-1]) if direction == "forward" else (wire[1], wire[0])
        _arrowhead(ax, tip, _heading(tail, tip), rims.get(tip, 0), ink)
    for place, leaving in junctions(wires).items():
        if direction == "forward":
            ax.add_patch(Circle(place, _DOT, color=ink, lw=0, zorder=3))
            continue
        ax.add_patch(Circle(place, 0.19, fc="white", ec="#222222", lw=1.0, zorder=3))
        ax.text(*place, "+", ha="center", va="center_baseline", size=9, zorder=4)
        for dx, dy in leaving:
            _arrowhead(ax, place, (-dx, -dy), 0.19, ink)


def _rim(node, direction):
    if node.op == "sum" and direction == "backward":
        return None  # a dot: wires pass through
    return {"input": 0, "saved": 0, "parameter": 0.21}.get(node.op, _RADIUS)


def _arrowhead(ax, place, heading, rim, ink):
    if rim is not None:
        tip = [at - rim * step for at, step in zip(place, heading, strict=True)]
        tail = [at - 0.2 * step for at, step in zip(tip, heading, strict=True)]
        style = {"arrowstyle": "-|>,head_width=0.15,head_length=0.3", "color": ink, "lw": 0.6, "mutation_scale": 12}
        ax.annotate("", tip, tail, arrowprops=style | {"shrinkA": 0, "shrinkB": 0}, zorder=2)


def _draw_node(ax, graph, node, read, direction):
    x, y, *_ = graph.places[node.name]
    upward = all(_heading(*wire[:2]) == (0, 1) for wire in routes(graph, node))
    text, center = _text(graph, node.name, direction), {"ha": "center", "va": "center_baseline", "zorder": 4}
    if node.op in SOURCES:
        if node.op == "parameter":
            style = {"boxstyle": "round,pad=0,rounding_size=0.06", "fc": "#E4E4E4", "ec": "#777777", "lw": 0.8}
            ax.add_patch(FancyBboxPatch((x - 0.27, y - 0.21), 0.54, 0.42, zorder=3, **style))
            ax.text(x, y, text, size=8, **center)
        elif upward:
            ax.text(x, y - 0.1, text, ha="center", va="top", size=9)
        else:
            ax.text(x - 0.1, y, text, ha="right", va="center", size=9)
        return
    if node.op == "sum" and direction == "backward":
        ax.add_patch(Circle((x, y), _DOT, color=INKS[direction], lw=0, zorder=3))
    else:
        look = {"fc": "#FCE5D8", "ec": NEEDS, "lw": 2.2} if read else {"fc": "white", "ec": "#222222", "lw": 1.0}
        corner, side = (x - _RADIUS, y - _RADIUS), 2 * _RADIUS
        square = FancyBboxPatch(corner, side, side, boxstyle="round,pad=0,rounding_size=0.06", zorder=3, **look)
        ax.add_patch(square if node.op == "matmul" else Circle((x, y), _RADIUS, zorder=3, **look))
        symbol = (_SLOPES if direction == "backward" and node.op in _SLOPES else _SYMBOLS)[node.op]
        ax.text(x, y, symbol, size=_SIZES.get(symbol, _SMALL if len(symbol) > 2 else 8.5), **center)
    if read and direction == "backward":
        listed = ", ".join(_text(graph, name, "forward") for name in read)
        ax.text(x + 0.12, y - _RADIUS - 0.08, listed, ha="left", va="top", size=7.5, color=NEEDS)
    if node.name in graph.labels and node.name not in graph.outputs:
        at = (x + 0.1, y + _RADIUS + 0.12) if upward else (x + _RADIUS + 0.08, y + 0.09)
        ax.text(*at, text, ha="left", va="bottom", size=8.5)


def _text(graph, name, direction):
    tex = graph.labels.get(name, name)
    return f"${tex}$" if direction == "forward" else rf"$\delta_{{{tex}}}$"
