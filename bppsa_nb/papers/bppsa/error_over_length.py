"""Error of each method as the chain grows."""

import numpy as np

import bppsa_nb as bp
from bppsa_nb.chains.runs import jacobians_T
from bppsa_nb.machine import backends
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, grid, where
from bppsa_nb.scan.levels import up_levels

SCALES = {"quick": (1, 3, 10, 30, 100, 300, 1000, 3000), "paper": (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)}
BATCH, HIDDEN = 8, 20
CHAINS = {"norm-preserving": "Norm-preserving chain", "rnn": "The RNN's own Jacobians"}
METHODS = {"linear": "linear scan", "blelloch": "Blelloch scan (BPPSA)", "truncated": "truncated half-way up"}


def measure(scale, rng, progress):
    """Scan both kinds of chain by every method on every backend: one row each."""
    return progress.collect(grid(chain=CHAINS, T=SCALES[scale]), errors, rng)


def errors(point, rng):
    """Compare every method and backend in float32 with the linear scan in float64, on the `chain` of `point`."""
    T = point["T"]
    if point["chain"] == "rnn":
        model, x = bp.RNN(1, HIDDEN, 10, rng=rng), bp.Bitstream(T, BATCH, rng=rng).batch(np.arange(BATCH))[0]
        links = jacobians_T(model.chain(model.forward(x, backend="numpy"), backend="numpy"))
    else:
        links = rotations(T, rng)
    grad_output = rng.standard_normal((BATCH, HIDDEN)).astype(np.float32)
    exact = bp.backprop(links.astype(float), grad_output.astype(float), method="linear", backend="numpy")
    rows = []
    for backend in dict.fromkeys(["numpy", "cpu", backends.resolve("auto")]):
        for method in METHODS:
            levels = up_levels(T) // 2 if method == "truncated" else None
            gradients = bp.backprop(links, grad_output, method=method, backend=backend, levels=levels)
            error = float(np.abs(gradients - exact).max() / np.abs(exact).max())
            rows.append({"method": method, "backend": backend, "error": error})
    return rows


def rotations(T, rng):
    """Draw matrices that preserve norms."""
    return np.linalg.qr(rng.standard_normal((T, BATCH, HIDDEN, HIDDEN)))[0].astype(np.float32)


def facts(table):
    """Find the largest errors."""
    longest = where(table, T=table["T"].max())
    return {
        "T": table["T"].max(),
        "largest": longest.groupby("chain")["error"].max(),
        "of_rnn": where(table, chain="rnn")["error"].max(),
        "of_method": where(longest, chain="norm-preserving").groupby("method")["error"].max(),
    }


def plot(table):
    fig, axes = panels.subplots(1, 2, figsize=(9.2, 4.0), sharey=True)
    dots = {"ls": "", "fillstyle": "none"}
    styles = {"cpu": dots | {"marker": "o"}, "cuda": dots | {"marker": "x"}}
    sizes = {"linear": (3.4, 10), "blelloch": (2.0, 7), "truncated": (0.9, 4)}  # all stay visible under each other
    for ax, (chain, rows) in zip(axes, table.groupby("chain", sort=False), strict=True):
        for (method, backend), part in rows.groupby(["method", "backend"], sort=False):
            width, size = sizes[method]
            style = styles[backend] | {"ms": size} if backend in styles else {"lw": width, "label": METHODS[method]}
            ax.plot(part["T"], part["error"], color=COLORS[method], **style)
        ax.set(title=CHAINS[chain], xlabel="length of the chain, T", xscale="log", yscale="log", ylim=(1.2e-8, 2e-5))
        ax.yaxis.set_tick_params(labelleft=True)
    T = np.array([1, table["T"].max()])
    axes[0].plot(T, np.sqrt(T) / 2**24, ":", color=COLORS["baseline"], label=r"$2^{-24}\sqrt{T}$")
    axes[0].set_ylabel("relative error")
    axes[0].legend(loc="upper left")
    shown = []
    for backend in table["backend"].unique():
        shown += axes[1].plot([], [], color=COLORS["baseline"], label=f"backend {backend}", **styles.get(backend, {}))
    axes[1].legend(handles=shown, loc="upper left")
    return fig


FIGURE = Figure(
    origin="rounding",
    caption="""At T = {T}, errors are at most {largest[norm-preserving]:.0e} where nothing fades, and {largest[rnn]:.0e}
    on the paper's untrained RNN. That RNN forgets gradients, and errors with them. An error is max |difference| /
    max |gradient| over the chain, the worst of 8 samples. Float32, against the linear scan in float64.""",
    alt="""Two plots of relative error over chain length T on logarithmic axes; lines are NumPy's, marks those of
    compiled backends. Left, errors grow along a dotted square root of T, to at most {largest[norm-preserving]:.0e}.
    Right, they do not grow, and are at most {of_rnn:.0e}.""",
    claims=[
        Claim("§3.5", "Numerical differences come from the order of the products alone, and do not matter.",
              "“negligible impact”",
              "error against float64 at T = {T}: {of_method[blelloch]:.1e}, the linear scan's {of_method[linear]:.1e}",
              lambda f: f["of_method"]["blelloch"] <= 4 * f["of_method"]["linear"]),
    ],
)
