"""What the forward pass takes while a network learns: corrections by Newton's method, and steps of repaired chunks."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.training.datasets import Bitstream
from bppsa_nb.training.optimizers import Adam
from bppsa_nb.training.trainer import Trainer

# Steps, iterations, and how many of these there are between two looks at the states.
SIZES = {"quick": {"T": 320, "iterations": 200, "every": 25}, "paper": {"T": 1000, "iterations": 1500, "every": 25}}
DRAWS = {"quick": 1, "paper": 3}  # of initial weights and data
RATES = {1e-5: "identity", 1e-4: "vector", 1e-3: "linear"}  # and the colors' roles
BATCH, CHUNKS, MOST = 16, 16, 60


def measure(scale, rng, progress):
    """Train at three learning rates, and inspect the states every so many iterations: a row each."""
    points = [{"rate": rate, "draw": draw} for rate in RATES for draw in range(DRAWS[scale])]
    return progress.collect(points, lambda point, rng: _train(point["rate"], rng, **SIZES[scale]), rng)


def _train(rate, rng, T, iterations, every):
    model = networks.fresh(rng, np.float32)
    trainer = Trainer(model, Adam(lr=rate), method="linear", forward="linear")
    data, seen = Bitstream(T, BATCH * iterations, rng=rng), Bitstream(T, BATCH, rng=rng)
    x, rows = seen.batch(np.arange(BATCH))[0], []
    for start in range(0, iterations + 1, every):
        rows.append({"iteration": start, "T": T} | _inspect(model, x))
        for i in range(start, min(start + every, iterations)):
            trainer.step(*data.batch(np.arange(BATCH * i, BATCH * (i + 1))))
    return rows


def _inspect(model, x):
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


def plot(table):
    """Draw corrections and dependent steps over iterations."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9.4, 4.0), layout="constrained")
    for (rate, draw), rows in table.groupby(["rate", "draw"]):
        style = {"color": COLORS[RATES[rate]], "lw": 1.2, "alpha": 0.8}
        label = None if draw else f"learning rate {rate:g}"
        axes[0].plot(rows["iteration"], rows["corrections"], label=label, **style)
        failed = rows[~rows["met"].astype(bool)]
        axes[0].plot(failed["iteration"], np.full(len(failed), 1.2 * MOST), "x", color=style["color"], ms=4, mew=0.8)
        axes[1].plot(rows["iteration"], rows["steps"], **style)
    panels.log_scale(axes[0], "y", ticks=(1, 2, 5, 10, 20, 50))
    axes[0].set(xlabel="iteration of training", ylabel="corrections", title="Newton on all states (DEER)")
    panels.legend(fig)
    axes[1].axhline(1, color=COLORS["baseline"], lw=1)
    axes[1].annotate("the loop", (0, 1), (2, 3), textcoords="offset points", size=8, color=COLORS["baseline"])
    axes[1].set(xlabel="iteration of training", ylabel="dependent steps / T", title=f"{CHUNKS} chunks, repaired")
    axes[1].set_ylim(0, 1.1)
    return fig
