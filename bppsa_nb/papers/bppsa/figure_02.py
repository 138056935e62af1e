"""Figure 2: a network as a chain, spread over devices."""

import pandas as pd
from matplotlib.patches import Rectangle

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Figure

# Operator, channels out (None: as many as come in), device.
LAYERS = (
    ("conv 3×3", 16, 1),
    ("ReLU", None, 1),
    ("max-pool", None, 1),
    ("conv 3×3", 32, 2),
    ("ReLU", None, 2),
    ("max-pool", None, 3),
    ("linear", 10, 3),
)
IMAGE = (3, 32, 32)

_PITCH = 1.75  # from one x to the next


def measure(scale, rng, progress):
    """List the layers: what each maps to what, on which device, with how many parameters."""
    (channels, height, width), size, rows = IMAGE, 0, []
    for number, (operator, wanted, device) in enumerate([("input", None, 1), *LAYERS]):
        row = {"layer": number, "operator": operator, "device": device, "parameters": 0, "jacobian_rows": size}
        if operator == "conv 3×3":
            row["parameters"], channels = wanted * (channels * 9 + 1), wanted
        elif operator == "max-pool":
            height, width = height // 2, width // 2
        elif operator == "linear":
            row["parameters"], channels, height, width = wanted * (size + 1), wanted, 1, 1
        size = channels * height * width
        rows.append(row | {"channels": channels, "height": height, "width": width, "size": size})
    return pd.DataFrame(rows)


def plot(table):
    fig, ax = panels.subplots(figsize=(11, 3.9))
    layers = list(table.itertuples())
    last = layers[-1].layer
    for device, group in table.groupby("device"):
        left = _PITCH * (group["layer"].min() - 1) + 0.57 if device > 1 else -0.6
        right = _PITCH * group["layer"].max() + 0.5
        ax.add_patch(Rectangle((left, -3.0), right - left, 4.3, fc="#F1F1F1", ec="#BBBBBB", lw=0.8, zorder=0))
        ax.text((left + right) / 2, 1.1, f"device {device}", ha="center", va="center", weight="bold", size=9)
    for x in layers:
        at = _PITCH * x.layer
        _maps(ax, at, x)
        shape = f"{x.channels}" if x.height == 1 else f"{x.channels}×{x.height}×{x.width}"
        _text(ax, at, -0.72, f"$x_{x.layer}$\n{shape}")
        _box(ax, at, -1.75, "vector", rf"$\nabla x_{x.layer}$", "black")
        if x.layer:
            middle = at - _PITCH / 2
            _arrow(ax, (middle - 0.2, 0.2), (middle + 0.34, 0.2), "#222222")
            name = x.operator.replace(" ", "\n")
            _text(ax, middle + 0.12, 0.38, f"$f_{x.layer}$\n{name}", va="bottom", size=7)
            _arrow(ax, (at - 0.26, -1.75), (at - _PITCH + 0.28, -1.75), COLORS["vector"])
            _box(ax, middle, -1.75, "matrix", f"$J_{x.layer}^T$", "white")
            _text(ax, middle, -2.1, f"{x.jacobian_rows:,}\n×\n{x.size:,}", va="top", size=6.5)
        if x.parameters:
            _arrow(ax, (at, -2.03), (at, -2.5), "#222222")
            _text(ax, at, -2.53, rf"$\nabla \theta_{x.layer}$" + f"\n{x.parameters:,}", va="top", size=7.5)
    end = _PITCH * last + 1.2
    _arrow(ax, (_PITCH * last + 0.3, 0.2), (end - 0.3, 0.2), "#222222")
    _text(ax, end, 0.2, "loss $l$", size=9)
    ax.plot([end, end], [0.0, -1.75], color=COLORS["vector"], lw=1.6)
    _arrow(ax, (end, -1.75), (_PITCH * last + 0.32, -1.75), COLORS["vector"])
    _text(ax, -0.8, 0.2, "forward", ha="right", size=9)
    _text(ax, -0.8, -1.75, "backward", ha="right", size=9)
    ax.set(xlim=(-1.9, end + 0.45), ylim=(-3.1, 1.4), aspect="equal")
    ax.axis("off")
    return fig


def _maps(ax, at, x):
    side = 0.22 + 0.6 * x.height / IMAGE[1]
    count = {3: 3, 16: 4, 32: 5}.get(x.channels, 1)
    width = 0.12 if x.height == 1 else side * 0.72
    side = 1.0 if x.height == 1 else side
    for layer in reversed(range(count)):
        shift = 0.05 * (layer - (count - 1) / 2)
        corner = (at - width / 2 + shift, 0.2 - side / 2 + shift)
        ax.add_patch(Rectangle(corner, width, side, fc="#D5DCE4", ec="#5A6570", lw=0.8, zorder=2))


def _box(ax, x, y, role, text, ink):
    ax.add_patch(Rectangle((x - 0.26, y - 0.26), 0.52, 0.52, fc=COLORS[role], ec="none", zorder=3))
    ax.text(x, y, text, ha="center", va="center_baseline", size=8.5, color=ink, zorder=4)


def _arrow(ax, start, end, color):
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style)


def _text(ax, x, y, text, *, ha="center", va="center", size=8):
    ax.text(x, y, text, ha=ha, va=va, size=size, linespacing=1.15)


FIGURE = Figure(
    origin="counted",
    caption="""Going back, only the last device can start: every gradient is the next one times a transposed Jacobian
    (Equation 3). Gradients of parameters (Equation 2) hang off that chain. Going forward, every layer maps x to the
    next x (Equation 1). Below squares: rows and columns of Jacobians. At the bottom: numbers of parameters.""",
    alt="""Seven layers of a small convolutional network in a row, on three devices. Underneath, from right to left, the
    chain of gradients and transposed Jacobians, with parameter gradients below convolutions and the linear layer.""",
)
