"""What the forward pass takes while a network learns: corrections by Newton's method, and steps of repaired chunks."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.tables import where
from bppsa_nb.training.datasets import Bitstream
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

TITLE = "As a network learns, its states are harder to find in parallel"
SIZES = {  # steps, iterations, and how many of these there are between two looks
    "quick": {"T": 320, "iterations": 200, "every": 25},
    "paper": {"T": 1000, "iterations": 1500, "every": 25},
}
DRAWS = {"quick": 1, "paper": 3}  # of initial weights and data
RATES = {1e-5: "identity", 1e-4: "vector", 1e-3: "linear"}  # and the colors' roles
BATCH, CHUNKS, MOST = 16, 16, 60


def measure(scale, rng, progress):
    """Train at three learning rates, and look every so many iterations: a row each."""
    points = [{"rate": rate, "draw": draw} for rate in RATES for draw in range(DRAWS[scale])]
    return progress.collect(points, lambda point, rng: _train(point["rate"], rng, **SIZES[scale]), rng)


def _train(rate, rng, T, iterations, every):
    model = networks.fresh(rng, np.float32)
    trainer = Trainer(model, Adam(lr=rate), method="linear", forward="linear")
    data, seen = Bitstream(T, BATCH * iterations, rng=rng), Bitstream(T, BATCH, rng=rng)
    x, rows = seen.batch(np.arange(BATCH))[0], []
    for start in range(0, iterations + 1, every):
        rows.append({"iteration": start, "T": T} | _look(model, x))
        for i in range(start, min(start + every, iterations)):
            trainer.step(*data.batch(np.arange(BATCH * i, BATCH * (i + 1))))
    return rows


def _look(model, x):
    """Find the states of a batch by both methods, by Newton's in double precision, to 1e-5."""
    loop = model.forward(x, backend="cpu", method="linear").hidden
    double, x_double = networks.like(model, np.float64), x.astype(np.float64)
    exact = networks.states_of(double, x_double)
    deer = double.forward(x_double, backend="cpu", method="newton", length=1, tol=1e-5, most=MOST).solved[0]
    chunks = model.forward(x, backend="cpu", method="chunked", length=-(-len(x) // CHUNKS))
    (solved,) = chunks.solved
    return {
        "corrections": deer.corrections if deer.finished == "converged" else MOST,
        "met": deer.finished == "converged",
        "steps": solved.steps / len(x),
        "work": solved.work,
        "error": float(abs(chunks.hidden - loop).max()),
        "rounding": float(abs(loop[0, 1:] - exact).max()),
    }


def summary(table, rate):
    """Return medians at a learning rate: corrections, the share of looks at which they did not suffice, steps."""
    rows = where(table, rate=rate)
    return float(rows["corrections"].median()), float(1 - rows["met"].mean()), float(rows["steps"].median())


def caption(table):
    """Say what is drawn, with medians."""
    said = []
    for rate in RATES:
        corrections, failed, steps = summary(table, rate)
        words = f"{corrections:g} corrections" + (f" ({failed:.0%} of looks: not within {MOST})" if failed else "")
        said.append(f"rate {rate:g}: {words}, {steps:.2f} T")
    return (
        f"Every {table['iteration'].unique()[1]:g} iterations of Adam, T = {table['T'].iloc[0]}: the states of "
        f"{BATCH} other samples; a line per draw of weights and data. Left: until all residuals are within 1e-5, in "
        f"double precision; crosses at the top: not within {MOST}. Right: steps that wait for each other, {CHUNKS} "
        f"chunks, until all meet, in single precision; their states are within {table['error'].max():.0e} of the "
        f"loop's, and those within {table['rounding'].max():.0e} of double precision's. Medians: {'; '.join(said)}."
    )


def alt(table):
    """Say what there is to see."""
    said = []
    for rate in RATES:
        rows = where(table, rate=rate)
        said.append(
            f"at {rate:g}, {rows['corrections'].min()} to {rows['corrections'].max()} corrections and "
            f"{rows['steps'].min():.2f} to {rows['steps'].max():.2f} T"
        )
    return (
        "Two plots over training iterations, with a line for each of three learning rates. Left, the corrections that "
        "Newton's method takes, on a logarithmic axis; right, the steps of repaired chunks that wait for each other, "
        f"as a share of T: {'; '.join(said)}. Lines of the smallest rate are flat; those of the largest rise and jump."
    )


def plot(table):
    """Draw corrections and dependent steps over iterations."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9.4, 4.0), layout="constrained")
    for (rate, draw), rows in table.groupby(["rate", "draw"]):
        look = {"color": COLORS[RATES[rate]], "lw": 1.2, "alpha": 0.8}
        label = None if draw else f"learning rate {rate:g}"
        axes[0].plot(rows["iteration"], rows["corrections"], label=label, **look)
        failed = rows[~rows["met"].astype(bool)]
        axes[0].plot(failed["iteration"], np.full(len(failed), 1.2 * MOST), "x", color=look["color"], ms=4, mew=0.8)
        axes[1].plot(rows["iteration"], rows["steps"], **look)
    panels.log_scale(axes[0], "y", ticks=None)
    axes[0].set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes[0].set(xlabel="iteration of training", ylabel="corrections", title="Newton on all states (DEER)")
    panels.legend(fig)
    axes[1].axhline(1, color=COLORS["baseline"], lw=1)
    axes[1].annotate("the loop", (0, 1), (2, 3), textcoords="offset points", size=8, color=COLORS["baseline"])
    axes[1].set(xlabel="iteration of training", ylabel="dependent steps / T", title=f"{CHUNKS} chunks, repaired")
    axes[1].set_ylim(0, 1.1)
    return fig
