"""How hard states are to find in parallel, over how fast nearby states part: the largest Lyapunov exponent."""

from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.forward import networks
from bppsa_nb.papers.tables import where

SIZES = {
    "quick": {"radii": (0.3, 0.6, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5), "seeds": 3},
    "paper": {"radii": (0.3, 0.5, 0.7, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 4, 5), "seeds": 5},
}
T, CHUNKS, RIGHT = 300, 10, 1e-8
BASINS = "a latch: two basins"


def measure(scale, rng, progress):
    """Scale the weights of random networks to several spectral radii, and solve each: a row each."""
    size = SIZES[scale]
    points = [{"radius": radius, "draw": draw} for radius in (*size["radii"], 0) for draw in range(size["seeds"])]
    return progress.collect(points, lambda point, rng: [solve(point["radius"], rng)], rng)


def solve(radius, rng):
    """Count what a network takes whose weights have a spectral radius; 0 stands for a latch that a pulse switches."""
    model = networks.scaled(networks.fresh(rng), radius) if radius else networks.latch()
    x = networks.inputs(T, 1, rng) if radius else networks.pulses(T)
    exact = networks.states_of(model, x)
    found = {
        "newton": _first_right(networks.newton(model, x, T), exact),
        "repairs": _first_right(networks.chunks(model, x, T // CHUNKS, CHUNKS), exact),
    }
    kind = "random weights" if radius else BASINS
    return {"network": kind, "exponent": networks.exponent(model, x, rng)} | found


def _first_right(iterates, exact):
    """Return after how many iterations all states are right."""
    for iteration, states in enumerate(iterates):
        if abs(states - exact).max() < RIGHT:
            return iteration
    return iteration


def medians(table):
    """Return medians by spectral radius, of networks with random weights."""
    return where(table, network="random weights").groupby("radius")[["exponent", "newton", "repairs"]].median()


def plot(table):
    """Draw corrections and repairs over the exponent."""
    fig, axes = pyplot.subplots(1, 2, figsize=(9.2, 4.0), layout="constrained")
    limits = {"newton": T, "repairs": CHUNKS - 1}
    words = {"newton": f"a loop's steps, {T}", "repairs": f"a loop of {CHUNKS} chunks"}
    for ax, (what, limit) in zip(axes, limits.items(), strict=True):
        for network, marker, role in (("random weights", "o", "blelloch"), (BASINS, "s", "linear")):
            rows = where(table, network=network)
            style = {"ms": 5 if marker == "o" else 8, "alpha": 0.7, "label": network}
            ax.plot(rows["exponent"], rows[what], marker, color=COLORS[role], **style)
        ax.axvline(0, ls="--", color=COLORS["baseline"], lw=1)
        ax.axhline(limit, color=COLORS["baseline"], lw=1)
        left = table["exponent"].min()
        ax.annotate(words[what], (left, limit), (0, 3), textcoords="offset points", size=8, color=COLORS["baseline"])
        ax.set_xlabel("largest Lyapunov exponent, per step")
    panels.log_scale(axes[0], "y", ticks=(2, 5, 10, 20, 50, 100, 200))
    axes[0].set_ylim(1.5, 500)
    axes[0].set(ylabel="corrections", title="Newton on all states (DEER)")
    axes[1].set(ylabel="repairs", title=f"{CHUNKS} chunks, repaired", ylim=(0, CHUNKS + 0.5))
    axes[0].legend(loc="center left", bbox_to_anchor=(0, 0.35))
    return fig
