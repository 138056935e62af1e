"""Figure 7: training by BPTT and by BPPSA."""

import numpy as np

import bppsa_nb as bp
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import training_curves as curves
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.training.loss import cross_entropy

# The paper trains for 80 epochs of 2000 iterations; in the first, the curves show how they relate.
SCALES = {"quick": {"T": 100, "iterations": 300}, "paper": {"T": 1000, "iterations": 2000}}


def measure(scale, rng, progress):
    """Train by both methods on every backend (paper scale: the fastest): one row per backend and iteration."""
    fastest = backends.resolve("auto")
    chosen = dict.fromkeys([fastest, "cpu", "numpy"] if scale == "quick" else [fastest])
    seed = int(rng.integers(2**31))  # one for all backends: the same model, the same samples
    points = [{"backend": backend} | SCALES[scale] for backend in chosen]
    return progress.collect(points, lambda point, _: train(point, seed), rng)


def train(point, seed):
    """Train the paper's RNN by both methods: rows of `training_curves.side_by_side`, with losses of fixed samples."""
    backend, samples = point["backend"], bp.Bitstream(point["T"], 32000, rng=seed)
    x, y = samples.batch(np.arange(1000))

    def watch(model):
        return {"fixed_loss": cross_entropy(model.forward(x, backend=backend).logits, y)[0]}

    def new():
        return bp.RNN(1, 20, 10, rng=seed), bp.Adam(lr=1e-5)

    batch = curves.batches(samples, curves.BATCH, seed)
    return curves.side_by_side(new, curves.METHODS, batch, range(point["iterations"]), backend, watch)


def facts(table):
    """Compare gradients and losses, and times on the fastest backend."""
    first = where(table, backend=table["backend"].iloc[0])
    return curves.differences(table)[["gradient", "loss"]].max().to_dict() | {
        "seconds": {method: first[f"seconds_{method}"].median() for method in curves.METHODS},
        "iterations": table["iteration"].nunique(),
        "T": table["T"].max(),
        "backends": table["backend"],
    }


def plot(table):
    fig, (left, middle, right) = curves.three_panels("BPTT")
    first, lines = table["backend"].iloc[0], {}
    left.set(title="Per iteration", ylabel="training loss, 1000 fixed samples")
    middle.set(title=f"Per second (backend {first})", xlabel="seconds")
    curves.draw_curves(left, where(table, backend=first), "fixed_loss", curves.METHODS)
    curves.draw_curves(middle, where(table, backend=first), "fixed_loss", curves.METHODS, over_seconds=True)
    for backend, rows in table.groupby("backend", sort=False):
        worst, style = curves.worst_of_ten(rows), {"numpy": ":", "cpu": "-", "cuda": "--"}[backend]
        lines[f"gradients, {backend}"] = worst["gradient"], "black", style
        lines[f"losses, {backend}"] = worst["loss"], COLORS["baseline"], style
    curves.draw_differences(right, lines)
    right.set_ylim(top=1e-2)
    for ax in (left, middle, right):
        ax.legend(loc="upper right")
    return fig


FIGURE = Figure(
    origin="timed",
    caption="""The gradients of both methods differ by at most {gradient:.1e}. An iteration takes
    {seconds[linear]:.2g ms} by BPTT and {seconds[blelloch]:.2g ms} by BPPSA. Gradients are compared at every iteration
    at the same parameters, max |difference| / max |BPTT's gradient|. Loss curves would hide a wrong one.""",
    alt="""The RNN learning to tell bitstreams apart: loss over iterations and over seconds, a line for BPTT and dots
    for BPPSA. On a logarithmic axis, losses differ by at most {loss:.1e} (line: 1e-5).""",
    claims=[
        Claim("§3.5", "BPPSA reconstructs BP: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)",
              "{gradient:.1e} at most, in {iterations} iterations at T = {T} ({backends})",
              lambda f: f["gradient"] <= curves.LIMIT, "rounding"),
        Claim("§3.5, Figure 7", "Per iteration, the loss curves of BPPSA and BP overlap (RNN).",
              "curves coincide (here: to 1e-5)",
              "{loss:.1e} at most, in {iterations} iterations at T = {T} ({backends})",
              lambda f: f["loss"] <= curves.LIMIT, "rounding"),
    ],
)
