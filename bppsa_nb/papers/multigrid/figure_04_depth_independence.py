"""Figure 4 of layer-parallel training: residuals over cycles, at several depths."""

import numpy as np
from matplotlib import pyplot

from bppsa_nb import multigrid
from bppsa_nb.machine import backends
from bppsa_nb.papers import panels, words
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, grid, where

DEPTHS = {"quick": (64, 256, 1024, 4096), "paper": (64, 256, 1024, 4096, 16384)}
WIDTH, BATCH = 16, 8
# Channels, kernel, pixels on a side, batch. The paper has 7 x 7 kernels, 50 channels and 28 x 28 pixels.
CONVOLUTION = {"quick": (3, 3, 6, 1), "paper": (4, 7, 28, 1)}
T, TOL, COARSENING = 1.0, 1e-9, 4
WEIGHTS = {
    "smooth": "dense, smooth weights",
    "independent": "dense, independent weights",
    "convolution": "convolutions, independent",
}


def measure(scale, rng, progress):
    """Solve for states and gradients of every network until 1e-9: one row per cycle."""
    seed, backend = int(rng.integers(2**31)), backends.resolve("auto")
    points = grid(weights=WEIGHTS, activation=("tanh", "relu"), N=DEPTHS[scale], backend=(backend,))

    def measure_point(point, _):
        # One seed for all depths: smooth weights are then the same functions of time.
        return histories(point, CONVOLUTION[scale], np.random.default_rng(seed))

    return progress.collect(points, measure_point, rng)


def histories(point, convolution, rng):
    """Solve one network, and its adjoint at the exact states: a row per cycle of either."""
    net, first = network(point["weights"], point["activation"], point["N"], convolution, rng)
    grad_output, how = rng.standard_normal(first.shape), {"tol": TOL, "coarsening": COARSENING}
    exact = net.forward(first, point["backend"])
    solutions = {
        "states": (multigrid.solve(net, first, **how, backend=point["backend"]), exact),
        "gradients": (
            multigrid.solve_adjoint(net, exact, grad_output, **how, backend=point["backend"]),
            net.backward(exact, grad_output, point["backend"]),
        ),
    }
    rows = []
    for solved, (solution, reference) in solutions.items():
        residuals = solution.residuals
        same = {"solved": solved, "cycles": solution.cycles, "error": float(np.abs(solution.states - reference).max())}
        same["factor"] = float((residuals[-1] / residuals[0]) ** (1 / max(1, len(residuals) - 1)))
        rows += [same | {"cycle": i, "residual": float(r)} for i, r in enumerate(residuals, 1)]
    return rows


def network(weights, activation, N, convolution, rng):
    """Make a network over a time of `T`, and samples [shape=(batch, q)] or [shape=(batch, channels, height, width)]."""
    if weights == "convolution":
        channels, kernel, pixels, batch = convolution
        shape, first = (channels, channels, kernel, kernel), (batch, channels, pixels, pixels)
    else:
        shape, first = (WIDTH, WIDTH), (BATCH, WIDTH)
    u0 = rng.standard_normal(first)
    if weights == "smooth":
        t = np.arange(N)[:, None] / N
        waves = np.concatenate([np.ones_like(t), np.sin(2 * np.pi * t), np.cos(2 * np.pi * t)], axis=1)
        W = np.tensordot(waves, rng.standard_normal((3, *shape)), 1)
        b = np.sin(2 * np.pi * t) * rng.standard_normal(shape[0])
    else:
        W = rng.standard_normal((N, *shape))
        b = 0.1 * rng.standard_normal((N, shape[0]))
    return multigrid.ResidualNetwork(W / np.sqrt(np.prod(shape[1:])), b, T / N, activation), u0


def facts(table):
    """Take what all rows of a solution say, cycles, factor and error, and spans of it."""
    runs = table.groupby(["weights", "activation", "N", "solved"])[["cycles", "factor", "error"]].first().reset_index()
    states = where(runs, solved="states")
    spread = states.groupby(["weights", "activation"])["cycles"].agg(np.ptp)
    every = {title: {"cycles": where(runs, weights=weights)["cycles"]} for weights, title in WEIGHTS.items()}
    return {"N": table["N"], "weights": every, "states": states, "error": states["error"].max(), "apart": spread.max()}


def plot(table):
    fig, axes = pyplot.subplots(2, 3, figsize=(9.6, 6.0), sharex=True, sharey=True, layout="constrained")
    styles, dotted = {}, {}
    roles = "vector", "identity", "chunked", "matrix", "baseline"
    for N, role, mark in zip(sorted(table["N"].unique()), roles, "osD^v", strict=False):
        styles[N] = {"color": COLORS[role], "marker": mark, "label": f"N = {N}", "ms": 5, "lw": 1.4}
        dotted[N] = {"color": COLORS[role], "ls": ":"}
    for line, (activation, name) in zip(axes, {"tanh": "tanh", "relu": "ReLU"}.items(), strict=True):
        for ax, (weights, title) in zip(line, WEIGHTS.items(), strict=True):
            said = []
            for solved, look in (("states", styles), ("gradients", dotted)):
                rows = where(table, weights=weights, activation=activation, solved=solved)
                panels.curves(ax, rows, "cycle", "residual", "N", look)
                said.append(words.fill(solved + ": {cycles} cycles, factor {factor:.3f}", rows)[0])
            ax.axhline(TOL, color="black", ls="--", lw=0.9)
            ax.set_title(f"{title}, {name}", size=10)
            style = {"ha": "right", "va": "top", "size": 9, "bbox": {"fc": "white", "ec": "none", "pad": 1}}
            ax.text(0.97, 0.96, "\n".join(said), transform=ax.transAxes, **style)
    axes[0, 0].set(yscale="log", ylim=(1e-12, 1e4), xticks=range(1, int(table["cycle"].max()) + 1))
    pyplot.setp(axes[-1], xlabel="cycle")
    pyplot.setp(axes[:, 0], ylabel="norm of the residual")
    handles = axes[0, 0].get_legend_handles_labels()[0]
    panels.legend(fig, handles + panels.lines({"gradients": COLORS["baseline"]}, ls=":"))
    return fig


FIGURE = Figure(
    origin="rounding",
    phrases={"cycles": "{cycles} cycles with {_}"},
    caption="""Residuals fall to 1e-9 in about as many cycles at any depth from {N:,} layers: {weights:each cycles;}.
    Curves: their norm (Eq. 19) after every V-cycle, coarsening by 4 down to at most 4 steps, FCF-relaxation. Dotted:
    the adjoint cycles, which solve for gradients. T = N h = 1, so deeper networks take smaller steps. Smooth weights
    change little from layer to layer; independent ones are drawn anew for each. The paper prints no numbers of its
    Figure 4, only that the curves of all depths are alike.""",
    alt="""Six plots of the residual's norm over cycles on a logarithmic axis, tanh above and ReLU below: dense layers
    with smooth weights, with independent weights, and convolutions. In each, curves of networks of {N:list} layers,
    dotted ones of gradients, and a dashed line at 1e-9. To pass it takes {weights:each cycles;}.""",
    claims=[
        Claim("§IV-A, Figure 4", "Residuals fall alike for all depths, down to 1e-9.",
              "independent of depth (no numbers printed)",
              "{states[cycles]} V-cycles to 1e-9; from {N} layers, their number differs by {apart} at most; a cycle "
              "leaves {states[factor]:.1%} of the residual", lambda f: f["apart"] <= 1, "printed"),
        Claim("§IV-A", "As the residual goes to zero, states go to those of sequential propagation.",
              "the same solution (here: to 1e-8)", "states differ from serial ones by {error:.0e} at most",
              lambda f: f["error"] < 1e-8),
    ],
)
