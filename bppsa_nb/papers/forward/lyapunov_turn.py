"""Newton's method turns where the largest Lyapunov exponent does; two basins are enough, too."""

import numpy as np

from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.forward import networks

SIZES = {
    "quick": {"radii": (0.3, 0.6, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 3, 5), "seeds": 3},
    "paper": {"radii": (0.3, 0.5, 0.7, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 4, 5), "seeds": 5},
}
T, CHUNKS, RIGHT = 300, 10, 1e-8
RANDOM, BASINS = "random weights", "a latch: two basins"


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
    row = {"network": RANDOM if radius else BASINS, "exponent": networks.exponent(model, x, rng)}
    newton, chunks = networks.newton(model, x, T), networks.chunks(model, x, T // CHUNKS, CHUNKS)
    for what, most, iterates in (("newton", T, newton), ("repairs", CHUNKS, chunks)):  # until all states are right
        row[what] = next((i for i, states in enumerate(iterates) if abs(states - exact).max() < RIGHT), most)
    return row


def facts(table):
    """Take medians over networks of a spectral radius, below and above an exponent of 0."""
    found = where(table, network=RANDOM).groupby("radius")[["exponent", "newton"]].median()
    exponent, newton = found["exponent"], found["newton"]
    return {
        "below": newton[exponent < 0],
        "above": newton[exponent > 0],
        "calm": newton[exponent < -0.1],
        "wild": newton[exponent > 0.1],
        "latch": where(table, network=BASINS)[["exponent", "newton"]].median(),
        "most": table["newton"].max(),
        "repairs": table["repairs"].max(),
    }


def plot(table):
    fig, axes = panels.subplots(1, 2, figsize=(9.2, 4.0))
    limits = {"newton": (T, f"a loop's steps, {T}"), "repairs": (CHUNKS - 1, f"a loop of {CHUNKS} chunks")}
    styles = {
        RANDOM: {"label": RANDOM, "color": COLORS["blelloch"], "marker": "o", "ms": 5},
        BASINS: {"label": BASINS, "color": COLORS["linear"], "marker": "s", "ms": 8},
    }
    for ax, (what, (limit, words)) in zip(axes, limits.items(), strict=True):
        panels.curves(ax, table, "exponent", what, "network", styles, ls="", alpha=0.7)
        ax.axvline(0, ls="--", color=COLORS["baseline"], lw=1)
        ax.axhline(limit, color=COLORS["baseline"], lw=1)
        place = {"xytext": (0, 3), "textcoords": "offset points"}
        ax.annotate(words, (table["exponent"].min(), limit), **place, size=8, color=COLORS["baseline"])
        ax.set_xlabel("largest Lyapunov exponent, per step")
    panels.log_scale(axes[0], "y", ticks=(2, 5, 10, 20, 50, 100, 200))
    axes[0].set(ylabel="corrections", title="Newton on all states (DEER)", ylim=(1.5, 500))
    axes[1].set(ylabel="repairs", title=f"{CHUNKS} chunks, repaired", ylim=(0, CHUNKS + 0.5))
    axes[0].legend(loc="center left", bbox_to_anchor=(0, 0.35))
    return fig


FIGURE = Figure(
    origin="iterations",
    caption="""Newton's method takes {below} corrections in the median where the largest Lyapunov exponent is below 0,
    and {above} above. A loop takes 300 steps; chunks never took more than {repairs} repairs. A dot is a network: H =
    20, one sample, double precision, to 1e-8. Right of the dashed line nearby states part. Square: a latch at
    {latch[exponent]:.2f}, {latch[newton]:.0f} corrections.""",
    alt="""Two plots over the largest Lyapunov exponent. Left, corrections by Newton's method, on a logarithmic axis: a
    few where it is well below 0, tens just below, and nearly as many as there are steps above. A square far to the
    left, a latch, is high up as well. Right, repairs of chunks: they rise to nearly as many as there are chunks, and
    stay there.""",
    claims=[
        Claim("DEER, proposition on convergence", "After as many iterations as there are steps, all is right.",
              "at most T iterations", f"{{most}} at most, T = {T}, in chaos too", lambda f: f["most"] <= T),
        Claim("Predictability, abstract", "Few iterations where the largest Lyapunov exponent is below 0.",
              "O((log T)²) below 0 (here: (log₂ T)² = 68 below −0.1, and T / 3 at least above 0.1)",
              f"medians below −0.1: {{calm:.0f}} corrections; above 0.1: {{wild:.0f}} of {T}; but a latch with two "
              "basins, at {latch[exponent]:.2f}, takes {latch[newton]:.0f}",
              lambda f: f["calm"].max() <= np.log2(T) ** 2 and f["wild"].min() >= T / 3),
    ],
)
