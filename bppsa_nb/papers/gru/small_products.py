"""Small products are slow."""

from contextlib import nullcontext

import numpy as np

from bppsa_nb.machine.workers import one_blas_thread
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.timing import quartiles, take_turns

SIZES = (128, 256, 512, 1024, 2048)
BATCHES = (1, 4, 16, 32, 64, 128, 512)
COMPARED = (32, 64, 128)  # mini-batches on the right
FEW = 32  # rows, the smallest mini-batch whose throughput is compared
SECONDS = {"quick": 0.02, "paper": 5.0}  # for one point
ROUNDS = (5, 1000)
LARGE = {"matrix": 2048, "vector": 3 * 2048**2}  # the square product, and the array that is read


def measure(scale, rng, progress):
    """Time the machine's limits, then every product: one row each."""
    points = [{"threads": "one", "H": H, "B": B} for H in SIZES for B in BATCHES]
    points += [{"threads": "all", "H": H, "B": B} for H in SIZES for B in COMPARED]
    machine = progress.collect([{"what": "limits"}], lambda point, rng: [limits(rng)], rng)
    table = progress.collect(points, lambda point, rng: [time_product(point, rng, SECONDS[scale])], rng)
    return table.assign(**machine.drop(columns="what").iloc[0])


def limits(rng):
    """Measure what one core allows, the best of some rounds each."""
    n = LARGE["matrix"]
    square = rng.standard_normal((n, n), dtype=np.float32)
    product, vector = np.empty_like(square), np.ones(LARGE["vector"], np.float32)
    one, tiny = np.ones((1, 1), np.float32), np.empty((1, 1), np.float32)

    def best(run):
        return take_turns([run], 0.3, ROUNDS).min()

    with one_blas_thread():
        return {
            "peak": 2e-9 * n**3 / best(lambda: np.matmul(square, square, out=product)),
            "bandwidth": 1e-9 * vector.nbytes / best(vector.max),
            "launch": best(lambda: np.matmul(one, one, out=tiny)),
        }


def time_product(point, rng, seconds):
    """Time one product for three gates, and three for one each, taking turns."""
    B, H = point["B"], point["H"]
    h, U = (rng.standard_normal(shape, dtype=np.float32) for shape in ((B, H), (3 * H, H)))
    out = np.empty((B, 3 * H), np.float32)
    gates = [(U[i * H : (i + 1) * H].T, out[:, i * H : (i + 1) * H]) for i in range(3)]

    def separate():
        for weights, product in gates:
            np.matmul(h, weights, out=product)

    with one_blas_thread() if point["threads"] == "one" else nullcontext():
        one, three = take_turns([lambda: np.matmul(h, U.T, out=out), separate], seconds, ROUNDS).T
    return {"seconds": np.median(one)} | quartiles("ratio", three / one)


def roofline(table):
    """Compare every product with what the machine allows.

    `gflops`; `intensity`, operations per byte if every number is read or written once; `roof`, the GFLOP/s that memory
    and processor allow at this intensity; and what is the `bound`, "memory" or "processor".
    """
    B, H = table["B"], table["H"]
    operations = 2 * B * H * 3 * H
    intensity = operations / (4 * (3 * H**2 + B * H + 3 * B * H))
    memory = intensity * table["bandwidth"]
    return table.assign(
        gflops=1e-9 * operations / table["seconds"],
        intensity=intensity,
        roof=np.minimum(memory, table["peak"]),
        bound=np.where(memory < table["peak"], "memory", "processor"),
    )


def facts(table):
    """Compare products with the machine's limits, on one core; and three products with one."""
    one = roofline(where(table, threads="one"))
    few, largest = one[one["B"] <= FEW], one[one["H"] == one["H"].max()]
    waiting = where(largest, bound="memory").set_index("B")
    ratio = table[table["B"].isin(COMPARED)].groupby("threads")["ratio"]
    return {
        "ratio": dict(iter(ratio)),
        "ratios": table.loc[table["B"].isin(COMPARED), "ratio"],
        "few": few["gflops"] / few["peak"],
        "waiting": waiting["gflops"] / waiting["roof"],
        "largest": largest["H"],
        "free": where(largest, bound="processor")["B"].min(),
    }


def plot(table):
    fig, (left, right) = panels.subplots(1, 2, figsize=(9.6, 4.2))
    table = roofline(table)
    bandwidth, peak = table["bandwidth"].iloc[0], table["peak"].iloc[0]
    intensity = np.geomspace(0.35, 400, 200)
    limits = f"{bandwidth:.0f} GB/s,\n{peak:.0f} GFLOP/s"
    left.plot(intensity, np.minimum(bandwidth * intensity, peak), color="black", lw=2, label=limits)
    roles = dict(zip(SIZES, ("linear", "vector", "identity", "chunked", "matrix"), strict=True))
    for H, role in roles.items():
        rows = where(table, H=H, threads="one")
        left.plot(rows["intensity"], rows["gflops"], "o-", ms=4, color=COLORS[role], label=f"H = {H}", lw=1.4)
    panels.log_scale(left)
    left.set(xlabel="operations per byte", ylabel="GFLOP/s", title="On one core, B from 1 to 512")
    left.legend(loc="lower right")
    compared = table[table["B"].isin(COMPARED)]
    for threads, style in (("all", {"fmt": "o-"}), ("one", {"fmt": "s:", "fillstyle": "none"})):
        styles = {
            B: {"color": COLORS[role], "label": f"B = {B}, {threads} core{'s' * (threads == 'all')}"}
            for B, role in zip(COMPARED, ("linear", "vector", "matrix"), strict=True)
        }
        rows = where(compared, threads=threads)
        panels.curves(right, rows, "H", "ratio", "B", styles, ms=4.5, elinewidth=1, **style)
    right.axhline(1, color="black", lw=1.1)
    panels.sizes_axis(right, SIZES)
    right.set(xlabel="hidden size, H", ylabel="time of three products / of one", title="Three products or one")
    right.set_ylim(0, 1.35 * compared["ratio_high"].max())
    right.legend(loc="upper right", ncols=2)
    return fig


FIGURE = Figure(
    origin="timed", backend="numpy",
    caption="""Three products, a gate each, take {ratios:.2f} times as long as one. Right, their times: medians of
    rounds in which both took turns, with quartiles. Left, the speed of one product on one core over operations per
    byte, every number read or written once. The roof is what this core's memory (reading 50 MB) and arithmetic (a
    square product of size 2048) allow, measured in the same run. Weights that stay in a cache may lie above the slanted
    part. Products are of hidden states (B, H) and the weights of three gates (H, 3H), float32, NumPy.""",
    alt="""Left, on logarithmic axes, GFLOP per second over operations per byte for hidden sizes from 128 to 2048, each
    a line over mini-batches from 1 to 512. A roof rises with memory bandwidth and is flat at the processor's peak.
    Right, the time of three separate products over that of one, over hidden size, for mini-batches of 32, 64 and 128:
    {ratio[one]:.2f} on one core and {ratio[all]:.2f} on all cores.""",
    claims=[
        Claim("principles", "The products of single time steps run far below the processor's potential.",
              "“substantially slower” (here: half)", f"{{few:.0%}} of the peak at B ≤ {FEW}",
              lambda f: f["few"].max() < 0.5),
        # Where memory's limit is below the processor's, with weights too large to cache.
        Claim("principles", "They do because they wait for memory.", "“bandwidth bound” (here: to 80 %)",
              "of what memory allows, {waiting:.0% at B = _} (H = {largest}); from B = {free} on, the processor allows "
              "less", lambda f: f["waiting"].min() >= 0.8),
    ],
)
