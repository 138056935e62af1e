"""How many corrections Newton's method takes as sequences grow, on networks that have learned nothing yet."""

from functools import partial

import numpy as np
from matplotlib import pyplot

from bppsa_nb.cells.gru import GRU
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.progress import grid
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import span

SIZES = {"quick": (100, 300, 1000, 3000), "paper": (100, 300, 1000, 3000, 10000, 30000)}
DRAWS = {"quick": 1, "paper": 5}  # of weights and inputs
RIGHT = {"float32": 1e-5, "float64": 1e-10}
MOST = 100
KINDS = {
    "rnn": "RNN, H = 20, DEER",
    "gru": "GRU, H = 20, DEER",
    "example": "GRU, H = 2, B = 16, DEER",
    "quasi": "RNN, H = 20, quasi-DEER",
}


def measure(scale, rng, progress):
    """Solve fresh networks by Newton's method: a row per network, length, dtype and draw."""
    points = grid(network=KINDS, T=SIZES[scale], dtype=RIGHT, draw=range(DRAWS[scale]))
    return progress.collect(points, lambda point, rng: [_solve(rng=rng, **point)], rng)


def _solve(network, T, dtype, draw, rng):
    batch = 16 if network == "example" else 1
    x, right = networks.inputs(T, batch, rng, np.dtype(dtype)), RIGHT[dtype]
    if network == "quasi":
        model = networks.fresh(rng, dtype)
        exact = networks.states_of(model, x)
        errors = (float(abs(states - exact).max()) for states in networks.newton(model, x, MOST, diagonal=True))
        corrections, error = next(pair for pair in enumerate(errors) if pair[1] < right or pair[0] == MOST)
        return {"corrections": corrections, "error": error}
    if network == "rnn":
        model = networks.fresh(rng, np.dtype(dtype))
    else:
        hidden, classes = (2, 2) if network == "example" else (networks.H, networks.CLASSES)
        model = GRU(1, hidden, classes, rng=rng, dtype=np.dtype(dtype))
    exact = model.forward(x, method="linear", backend="cpu").hidden
    newton = partial(model.forward, x, method="newton", length=1, most=MOST, backend="cpu")
    (solved,), states = newton(tol=right).solved, newton().hidden  # which goes on until the package is content
    return {"corrections": solved.corrections, "error": float(abs(states - exact).max())}


def span_of(table, kind):
    """Return from how many to how many corrections a network takes, in single and in double precision, in words."""
    return " and ".join(span(where(table, network=kind, dtype=dtype)["corrections"], "{}") for dtype in RIGHT)


def plot(table):
    """Draw corrections over length, a panel per network: medians, and from the fewest to the most."""
    fig, axes = pyplot.subplots(1, len(KINDS), figsize=(10.4, 3.4), sharey=True, layout="constrained")
    lengths, color = sorted(table["T"].unique()), COLORS["newton"]
    for ax, (kind, words) in zip(axes, KINDS.items(), strict=True):
        for dtype, precision, dash in zip(RIGHT, ("single", "double"), ("--", "-"), strict=True):
            found = where(table, network=kind, dtype=dtype).groupby("T")["corrections"]
            ax.fill_between(lengths, found.min(), found.max(), color=color, alpha=0.25, lw=0)
            ax.plot(found.median(), "o", ls=dash, ms=4, color=color)
            at = ("top", found.min().min() / 1.1) if dtype == "float32" else ("bottom", 1.1 * found.max().max())
            ax.text(lengths[0], at[1], f"{precision} precision", va=at[0], size=9)
        panels.log_scale(ax, "x", "{x:,g}", ticks=[T for T in lengths if np.log10(T) % 1 == 0])
        panels.log_scale(ax, "y", ticks=(1, 2, 3, 5, 10, 20, 50))
        ax.set_title(words, size=10)
        ax.set(xlabel="length of the sequence, T", ylim=(0.9, 110))
    axes[0].set_ylabel("corrections")
    return fig
