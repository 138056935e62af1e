"""Where states are right, iteration after iteration."""

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib.colors import LogNorm

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import Figure, where
from bppsa_nb.papers.forward import networks

SIZES = {"quick": {"iterations": 300}, "paper": {"iterations": 1000}}
T, LENGTH, MOST, SHOWN = 320, 20, 16, 10
CHUNKS = T // LENGTH
KINDS = {"fresh": "a fresh network", "trained": "trained", "latch": "two basins", "chaos": "chaos"}
METHODS = {"newton": "Newton (DEER)", "chunks": "chunks, repaired"}
RIGHT, WRONG = 1e-10, 1.0


def measure(scale, rng, progress):
    """Find the states of each network by both methods: a row per iteration and stretch of time, its worst error."""
    points = [{"network": name} for name in KINDS]

    def measure_point(point, rng):
        model = networks.make(point["network"], rng, **SIZES[scale])
        return errors(model, networks.pulses(T) if point["network"] == "latch" else networks.inputs(T, 1, rng), rng)

    return progress.collect(points, measure_point, rng)


def errors(model, x, rng):
    """Find a network's states by both methods; return rows of `method`, `iteration`, `t`, `error` and `exponent`."""
    exact, least, rows = networks.states_of(model, x), networks.exponent(model, x, rng), []
    iterates = {"newton": networks.newton(model, x, MOST), "chunks": networks.chunks(model, x, LENGTH, MOST)}
    for method, found in iterates.items():
        for iteration, states in enumerate(found):
            error = abs(states - exact).max(axis=(1, 2)).reshape(-1, SHOWN).max(axis=1)
            error = np.where(np.isfinite(error), error, WRONG)
            same = {"method": method, "iteration": iteration, "exponent": least}
            rows += [same | {"t": SHOWN * i, "error": float(each)} for i, each in enumerate(error)]
    return rows


def picture(radius, seed=0):
    """Draw both maps for a network whose recurrent weights have a spectral radius: a slider's picture, as a PNG."""
    rng = np.random.default_rng(seed)
    model, x = networks.scaled(networks.fresh(rng), radius), networks.inputs(T, 1, rng)
    table = pd.DataFrame(errors(model, x, rng))
    fig = figure.Figure(figsize=(9, 2.8), layout="constrained")
    axes = fig.subplots(1, 2, sharey=True)
    for ax, (method, words) in zip(axes, METHODS.items(), strict=True):
        _draw(ax, where(table, method=method), method)
        ax.set(title=words, xlabel="time step")
    axes[0].set_ylabel("corrections, repairs")
    fig.suptitle(f"spectral radius {radius:.1f}, largest Lyapunov exponent {table['exponent'][0]:+.2f}", size=10)
    return panels.png(fig)


def facts(table):
    """Tell of each network after how many iterations all is right, where that is among those shown."""
    worst = table.groupby(["network", "method", "iteration"])["error"].max().reset_index()
    right = worst[worst["error"] < 100 * RIGHT].groupby(["network", "method"])["iteration"].min()
    exponents, found = table.groupby("network")["exponent"].first(), {}
    for kind, name in KINDS.items():
        found[name] = {"exponent": exponents[kind]}
        for method in METHODS:
            needed = right.get((kind, method))
            found[name][method] = f"not within {MOST}" if needed is None else f"after {needed}"
    return {"right": right, "networks": found}


def plot(table):
    fig, axes = panels.subplots(2, 4, figsize=(11.4, 5.4), sharex=True, sharey=True)
    exponents = table.groupby("network")["exponent"].first()
    for column, (kind, name) in enumerate(KINDS.items()):
        for row, method in enumerate(METHODS):
            shown = _draw(axes[row, column], where(table, network=kind, method=method), method)
        axes[0, column].set_title(f"{name}, λ = {exponents[kind]:+.2f}".replace("-", "−"))
        axes[1, column].set_xlabel("time step")
    for ax, words, what in zip(axes[:, 0], METHODS.values(), ("corrections", "repairs"), strict=True):
        ax.set_ylabel(f"{words}\n{what}")
    fig.colorbar(shown, ax=axes, label="largest error", shrink=0.8)
    return fig


def _draw(ax, rows, method):
    """Draw errors over time and iterations, and what must be right by then."""
    shown = rows.pivot(index="iteration", columns="t", values="error").clip(RIGHT, WRONG)
    extent = (0, T, -0.5, MOST + 0.5)
    style = {"origin": "lower", "aspect": "auto", "cmap": "magma_r", "interpolation": "nearest", "extent": extent}
    image = ax.imshow(shown, norm=LogNorm(RIGHT, WRONG), **style)
    exact = np.minimum((np.arange(MOST + 1) + 1) * (1 if method == "newton" else LENGTH), T)
    for color, width in (("white", 3), ("#333333", 1)):
        ax.step(exact, np.arange(MOST + 1), where="mid", color=color, lw=width)
    ax.grid(visible=False)
    return image


FIGURE = Figure(
    origin="iterations",
    phrases={"right": "{_} ({exponent:+.2f}): {newton} by Newton's method, {chunks} by chunks"},
    caption="""All states are right after so many iterations: {networks:each right;}. In brackets: the largest Lyapunov
    exponent. Maps show the largest error of 10 steps, in double precision; one sample, T = 320, 16 chunks of 20. White
    line: what must be right by then, a step more per iteration, or a chunk.""",
    alt="""Eight heat maps of error over time steps and iterations: Newton's method above, chunks below, for four
    networks. Where Newton's method is not done, errors stay large right of a steep white line that gains one step per
    iteration. Below, the line gains a whole chunk, and no error is left after as many repairs as chunks.""",
)
