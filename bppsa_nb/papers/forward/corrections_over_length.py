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
KINDS = {  # words, color, marker
    "rnn": ("RNN, H = 20, DEER", "vector", "o"),
    "quasi": ("RNN, H = 20, quasi-DEER", "linear", "s"),
    "gru": ("GRU, H = 20, DEER", "identity", "^"),
    "example": ("GRU, H = 2, B = 16, DEER", "matrix", "D"),
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
    """Draw corrections over length."""
    fig, ax = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for i, (kind, (words, role, marker)) in enumerate(KINDS.items()):  # later ones lie on earlier ones
        for dtype, dash in zip(RIGHT, ("--", "-"), strict=True):
            found = where(table, network=kind, dtype=dtype).groupby("T")["corrections"].median()
            style = {"color": COLORS[role], "marker": marker, "ms": 10 - 2 * i, "lw": 3 - 0.6 * i, "fillstyle": "none"}
            label = f"{words}, {'single' if dtype == 'float32' else 'double'} precision"
            ax.plot(found.index, found, dash, label=label, **style)
    panels.log_scale(ax, "x", "{x:,g}", ticks=sorted(table["T"].unique()))
    panels.log_scale(ax, "y", ticks=(1, 2, 3, 5, 10, 20, 50))
    ax.set(xlabel="length of the sequence, T", ylabel="corrections", ylim=(0.9, 500))
    ax.legend(loc="upper left", fontsize=8, ncols=2)
    return fig
