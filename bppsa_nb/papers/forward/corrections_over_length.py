"""On fresh networks, Newton's method takes as many corrections at any length; as they learn, it takes more."""

from functools import partial

import numpy as np
import pandas as pd

import bppsa_nb as bp
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, grid, where
from bppsa_nb.papers.forward import networks

SIZES = {"quick": (100, 300, 1000, 3000), "paper": (100, 300, 1000, 3000, 10000, 30000)}
DRAWS = {"quick": 1, "paper": 5}  # of weights and inputs
RIGHT, MOST = {"float32": 1e-5, "float64": 1e-10}, 100
KINDS = {"rnn": "RNN, H = 20, DEER", "gru": "GRU, H = 20, DEER", "example": "GRU, H = 2, B = 16, DEER"}
KINDS |= {"quasi": "RNN, H = 20, quasi-DEER"}
LEARNING = "learning"  # the kind of a network that is looked at every so many iterations
TRAINING = {"quick": {"T": 320, "iterations": 200, "every": 25}, "paper": {"T": 1000, "iterations": 1500, "every": 25}}
RUNS = {"quick": 1, "paper": 3}  # from other weights and data
RATES = {1e-5: "identity", 1e-4: "vector", 1e-3: "linear"}  # and the colors' roles
BATCH, CHUNKS, MOST_LATER = 16, 16, 60


def measure(scale, rng, progress):
    """Solve fresh networks, a row per kind, length, dtype and draw; look at networks that learn, a row per look."""
    points = grid(network=[LEARNING], rate=RATES, draw=range(RUNS[scale]))
    learning = progress.collect(points, lambda point, rng: _train(point["rate"], rng, **TRAINING[scale]), rng)
    points = grid(network=KINDS, T=SIZES[scale], dtype=RIGHT, draw=range(DRAWS[scale]))
    fresh = progress.collect(points, lambda point, rng: [_solve(rng=rng, **point)], rng)
    return pd.concat([fresh, learning], ignore_index=True)


def _solve(network, T, dtype, draw, rng):
    dtype, right = np.dtype(dtype), RIGHT[dtype]
    x = networks.inputs(T, 16 if network == "example" else 1, rng, dtype)
    if network == "quasi":
        model = networks.fresh(rng, dtype)
        exact = networks.states_of(model, x)
        errors = (float(abs(states - exact).max()) for states in networks.newton(model, x, MOST, diagonal=True))
        corrections, error = next(pair for pair in enumerate(errors) if pair[1] < right or pair[0] == MOST)
        return {"corrections": corrections, "met": error < right, "error": error}
    if network == "rnn":
        model = networks.fresh(rng, dtype)
    else:
        hidden, classes = (2, 2) if network == "example" else (networks.H, networks.CLASSES)
        model = bp.GRU(1, hidden, classes, rng=rng, dtype=dtype)
    exact = model.forward(x, method="linear", backend="cpu").hidden
    newton = partial(model.forward, x, method="newton", length=1, most=MOST, backend="cpu")
    (solved,), states = newton(tol=right).solved, newton().hidden  # which goes on until the package is content
    found = {"corrections": solved.corrections, "met": solved.finished == "converged"}
    return found | {"error": float(abs(states - exact).max())}


def _train(rate, rng, T, iterations, every):
    model = networks.fresh(rng, np.float32)
    trainer = bp.Trainer(model, bp.Adam(lr=rate), method="linear", forward="linear")
    data, seen = bp.Bitstream(T, BATCH * iterations, rng=rng), bp.Bitstream(T, BATCH, rng=rng)
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
    deer = double.forward(x_double, backend="cpu", method="newton", length=1, tol=1e-5, most=MOST_LATER).solved[0]
    chunks = model.forward(x, backend="cpu", method="chunked", length=-(-len(x) // CHUNKS))
    (solved,) = chunks.solved
    met = deer.finished == "converged"
    return {
        "dtype": "float64", "corrections": deer.corrections if met else MOST_LATER, "met": met,
        "steps": solved.steps / len(x), "work": solved.work, "error": float(abs(chunks.hidden - loop).max()),
        "rounding": float(abs(loop[0, 1:] - exact).max()),
    }


def facts(table):
    """Count corrections of fresh networks and along training; compare states with those of the loop."""
    fresh, learning = table[table["network"] != LEARNING], where(table, network=LEARNING)
    longest = where(fresh, network="example", dtype="float32", T=fresh["T"].max())
    first, later = learning[learning["iteration"] == 0], learning[learning["iteration"] > 0]
    return {
        "lengths": fresh["T"],
        "draws": fresh["draw"].nunique(),
        "newton": fresh[fresh["network"] != "quasi"]["corrections"],
        "counts": {kind: dict(iter(rows.groupby("dtype")["corrections"])) for kind, rows in fresh.groupby("network")},
        "longest": longest,
        "most": longest["corrections"].max(),
        "rates": learning.groupby("rate").agg({"corrections": "median", "met": "mean", "steps": "median"}),
        "few": {most: (learning["corrections"] <= most).groupby(learning["rate"]).mean() for most in (3, 19)},
        "first": first["corrections"].max(),
        "first_met": first["met"].all(),
        "failed": 1 - where(later, rate=later["rate"].max())["met"].mean(),
        "fastest": later["rate"].max(),
        "every": later["iteration"].min(),
        "T": learning["T"],
        "error": learning["error"].max(),
        "rounding": learning["rounding"].max(),
    }


def plot(table):
    fig = panels.figure(figsize=(10.4, 7.2))
    above, below = fig.subfigures(2, 1, height_ratios=(1, 1.1))
    _draw_fresh(above.subplots(1, len(KINDS), sharey=True), table[table["network"] != LEARNING])
    _draw_learning(below.subplots(1, 2), where(table, network=LEARNING))
    panels.legend(below, below.axes[0].get_legend_handles_labels()[0])
    return fig


def _draw_fresh(axes, table):
    """Draw medians, and from the fewest to the most."""
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


def _draw_learning(axes, table):
    for (rate, draw), rows in table.groupby(["rate", "draw"]):
        style = {"color": COLORS[RATES[rate]], "lw": 1.2, "alpha": 0.8}
        label = None if draw else f"learning rate {rate:g}"
        axes[0].plot(rows["iteration"], rows["corrections"], label=label, **style)
        failed = rows[~rows["met"]]["iteration"]
        axes[0].plot(failed, [1.2 * MOST_LATER] * len(failed), "x", color=style["color"], ms=4, mew=0.8)
        axes[1].plot(rows["iteration"], rows["steps"], **style)
    panels.log_scale(axes[0], "y", ticks=(1, 2, 5, 10, 20, 50))
    axes[0].set(xlabel="iteration of training", ylabel="corrections", title="Newton on all states (DEER)")
    axes[1].axhline(1, color=COLORS["baseline"], lw=1)
    axes[1].annotate("the loop", (0, 1), (2, 3), textcoords="offset points", size=8, color=COLORS["baseline"])
    axes[1].set(xlabel="iteration of training", ylabel="dependent steps / T", title=f"{CHUNKS} chunks, repaired")
    axes[1].set_ylim(0, 1.1)


FIGURE = Figure(
    origin="iterations",
    phrases={"rate": "at rate {_}, {corrections} corrections ({met:.0%} within 60) and {steps:.2f} T steps"},
    caption="""Fresh networks take as many corrections at any length, {lengths:,}: {newton} by Newton's method (DEER).
    With the diagonal of the Jacobian alone (quasi-DEER) it is {counts[quasi][float32]} in single and
    {counts[quasi][float64]} in double precision. Lines: medians over draws of weights ({draws}); bands: from the fewest
    to the most. Residuals (quasi-DEER: errors) end within 1e-5 in single and 1e-10 in double precision; one sample, if
    nothing else is said. Below, states are harder to find as a network learns; medians over training: {rates:each
    rate;}. A line is a draw of weights and data, T = {T}, looked at every {every:g} iterations of Adam on 16 other
    samples. Left, residuals within 1e-5, in double precision; crosses at the top: not within 60. Right, steps that wait
    for each other, 16 chunks, in single precision: states are within {error:.0e} of the loop's, and those within
    {rounding:.0e} of double precision's.""",
    alt="""Four plots of corrections over the length of a sequence, axes logarithmic, one for each network, with a line
    for single and one for double precision. All lines are flat or nearly so; those of quasi-DEER lie highest. Below,
    two plots over training iterations, with lines for three learning rates: flat at the smallest, rising and jumping at
    the largest. Left, the corrections that Newton's method takes, on a logarithmic axis. Right, the steps of repaired
    chunks that wait for each other, as a share of T. Medians: {rates:each rate;}.""",
    claims=[
        Claim("DEER, README's example", "States of a GRU differ little from the loop's (H = 2, B = 16).",
              "2.384e-07 at T = 10,000, single precision (here: within twice that)",
              "{longest[error]:.1e} at T = {longest[T]:,}, after {most} corrections at most",
              lambda f: compare(2 * 2.384e-7, f["longest"]["error"].median()), "rounding"),
        Claim("DEER, the author's slides", "Newton's method typically needs few iterations.",
              "“typically only requires <20 iterations” (here: in nine of ten checks at any rate)",
              "{first} at most on fresh networks; along training, of all checks: {few[19]:.0% at rate _}",
              lambda f: f["few"][19].min() >= 0.9),
        Claim("DEER, the author's slides", "Untrained networks converge, some trained ones do not.",
              "“non-convergence after some training steps”",
              "all fresh networks met; later, at rate {fastest}, {failed:.0%} of checks did not within 60 corrections",
              lambda f: f["first_met"] and f["failed"] > 0),
        Claim("quasi-DEER, abstract", "With the diagonal of Jacobians alone, it converges comparably.",
              "“comparably” to Newton (here: within twice the corrections)",
              "the diagonal takes {counts[quasi][float32]} and {counts[quasi][float64]} corrections (single and double "
              "precision), the whole Jacobian {counts[rnn][float32]} and {counts[rnn][float64]}",
              lambda f: f["counts"]["quasi"]["float32"].median() <= 2 * f["counts"]["rnn"]["float32"].median()),
        Claim("ParaRNN, code", "Three Newton iterations suffice.",
              "`max_its = 3`, for its own cells (here: in nine of ten checks at any rate)",
              "{first} at most on fresh networks; along training, of all checks: {few[3]:.0% at rate _}",
              lambda f: f["few"][3].min() >= 0.9),
    ],
)
