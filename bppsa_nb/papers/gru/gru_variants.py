"""Four variants of the GRU: relative time, throughput, and what a step takes."""

from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.graphs import variants
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where
from bppsa_nb.papers.timing import quartiles, take_turns

SIZES = {"quick": (128, 256, 512, 1024, 2048), "paper": (128, 256, 512, 768, 1024, 1536, 2048)}
STEPS = {"quick": 4, "paper": 32}
SECONDS = {"quick": 0.12, "paper": 20.0}  # for one point
BATCHES = {32: "linear", 64: "vector", 128: "matrix"}
BATCH, LARGE = 128, 2048  # at which all four are timed; what the article calls very large
ENDS = ("original", "saved")
COUNTED = {"products": "products", "serial": "in series", "launches": "launches"}
COUNTED |= {"multiply_adds": "multiply-adds/BH²", "kept": "numbers kept/BH"}
_COLORS = {"original": "baseline", "concatenated": "vector", "moved": "identity", "saved": "matrix"}


def measure(scale, rng, progress):
    """Time all four at one mini-batch, the first and the last at others, and count: a row per B, H and variant."""
    points = [{"T": STEPS[scale], "B": B, "H": H} for B in BATCHES for H in SIZES[scale]]

    def measure_point(point, rng):
        return time_point(point, rng, list(variants.NAMES) if point["B"] == BATCH else ENDS, SECONDS[scale])

    counted = [{"variant": name} | count_step(name) for name in variants.NAMES]
    return progress.collect(points, measure_point, rng).merge(pd.DataFrame(counted), on="variant")


def time_point(point, rng, names, seconds):
    """Time forward and backward passes of several variants, which take turns, on inputs of size H: a row each."""
    T, B, H = point["T"], point["B"], point["H"]
    params = variants.parameters(H, H, rng)
    x, grad_hidden = (rng.standard_normal((T, B, H), dtype=np.float32) for _ in range(2))
    h0, activations = np.zeros((B, H), np.float32), None

    def go_forward(name):
        nonlocal activations
        activations = variants.forward(name, params, x, h0)

    def go_back():
        variants.backward(params, x, activations, grad_hidden)

    keep_freed_memory()
    calls = [call for name in names for call in (partial(go_forward, name), go_back)]
    rounds = take_turns(calls, seconds).reshape(-1, len(names), 2)
    both = np.sum(rounds, axis=2)
    rows = []
    for i, name in enumerate(names):
        forward, backward = np.median(rounds, axis=0)[i]
        row = {"variant": name, "forward": forward, "backward": backward}
        row |= quartiles("seconds", both[:, i]) | quartiles("relative", both[:, i] / both[:, 0])
        rows.append(row | {"rounds": len(rounds)})
    return rows


def count_step(variant):
    """Count what one more time step of a variant takes, in both passes together."""
    B, H = 2, 8
    one, two = (variants.count(variant, T, B, H, H) for T in (1, 2))
    step = {name: two[name] - one[name] for name in ("products", "serial", "launches", "multiply_adds", "kept")}
    return step | {"multiply_adds": step["multiply_adds"] / (B * H**2), "kept": step["kept"] / (B * H)}


def throughput(table):
    """Divide the useful work by the time: `gflops`, with quartiles `gflops_low` and `gflops_high`."""
    # Three products with W and three with U forward, twice as many backward; what runs is counted in the tests.
    operations = 2 * 18 * table["T"] * table["B"] * table["H"] ** 2
    return table.assign(
        gflops=operations / table["seconds"] / 1e9,
        gflops_low=operations / table["seconds_high"] / 1e9,
        gflops_high=operations / table["seconds_low"] / 1e9,
    )


def facts(table):
    """Compare times and throughput over hidden size; count a step."""
    relative = where(table, B=BATCH).pivot(index="H", columns="variant", values="relative")
    gflops = throughput(table).pivot(index="H", columns=["variant", "B"], values="gflops")
    total, last = 1 / relative["saved"], relative["moved"] / relative["saved"]
    return {
        "H": table["H"],
        "relative": relative,
        "original": gflops["original"],
        "work": gflops["saved"] / gflops["original"],
        "half": gflops["saved", 64] / gflops["original", 128],
        "total": total,
        "moved": relative["concatenated"] / relative["moved"],
        "moved_median": (relative["concatenated"] / relative["moved"]).median(),
        "large": total.loc[LARGE:],
        "usual": total[total.index < LARGE].median(),
        "last": {"first": last.iloc[0], "last": last.iloc[-1]},
        "step": table.drop_duplicates("variant").set_index("variant"),
    }


def plot(table):
    fig = panels.figure(figsize=(10.4, 5.8))
    upper, lower = fig.subfigures(2, 1, height_ratios=(3, 1.4))
    left, right = upper.subplots(1, 2)
    styles = {
        name: {"color": COLORS[_COLORS[name]], "label": f"{i} {shown}"}
        for i, (name, shown) in enumerate(variants.NAMES.items(), 1)
    }
    panels.curves(left, where(table, B=BATCH), "H", "relative", "variant", styles, dodge=0.03, marker="o", ms=5)
    left.set(ylim=(0, 1.1 * table["relative_high"].max()), xlabel="hidden size, H", ylabel="time / original's")
    left.set_title(f"Relative time of {table['T'].iloc[0]} steps, mini-batch {BATCH}")
    left.legend(loc="lower left")
    gflops = throughput(table)
    for B, role in BATCHES.items():
        rows, color = where(gflops, B=B), COLORS[role]
        first, last = (where(rows, variant=name) for name in ENDS)
        right.fill_between(first["H"], first["gflops"], last["gflops"].to_numpy(), color=color, alpha=0.25, lw=0)
        styles = {"original": {"marker": "o", "label": f"mini-batch {B}"}, "saved": {"ls": "none"}}
        panels.curves(right, rows, "H", "gflops", "variant", styles, color=color, ms=4, elinewidth=1)
    right.set(ylim=(0, 1.2 * gflops["gflops_high"].max()), xlabel="hidden size, H", ylabel="useful work, GFLOP/s")
    right.set_title("From 1 (line) to 4 (edge of the band)")
    right.legend(loc="upper left", ncols=3, columnspacing=1)
    for ax in (left, right):
        panels.sizes_axis(ax, sorted(table["H"].unique()))
    names, axes = list(variants.NAMES), lower.subplots(1, len(COUNTED), sharey=True)
    step = table.drop_duplicates("variant").set_index("variant").loc[names[::-1]]
    for ax, (quantity, title) in zip(axes, COUNTED.items(), strict=True):
        labels = [f"{variants.NAMES[name]} {names.index(name) + 1}" for name in step.index]
        bars = ax.barh(labels, step[quantity], color=[COLORS[_COLORS[name]] for name in step.index], height=0.7)
        ax.bar_label(bars, fmt="{:g}", padding=3, fontsize=9)
        ax.set_title(title, fontsize=9)
        ax.margins(x=0.25)
        ax.tick_params(axis="x", labelbottom=False)
        ax.grid(False)
    return fig


FIGURE = Figure(
    origin="timed", backend="numpy",
    caption="""A forward and a backward pass of the fourth variant take {relative[saved]:.2f} of the original's time.
    Upper left, time over the original's in the same round. Upper right, useful work per second: the multiply-adds of
    the original's products, two operations each; lines are the original, upper edges of the bands the fourth variant.
    Medians over rounds in which all took turns, bars from quartile to quartile. Float32, NumPy with as many BLAS
    threads as it chooses, input size = hidden size. Below, counted while running, per time step, both passes together;
    products outside the time loop are left out. The third variant has fewer products than the second, and computes one
    of them twice.""",
    alt="""Upper left, relative time over hidden sizes from {H} for four variants of the GRU at a mini-batch of 128. The
    original is at 1, the second {relative[concatenated]:.2f}, the third {relative[moved]:.2f} and the fourth
    {relative[saved]:.2f}. Upper right, GFLOP per second, for mini-batches of 32, 64 and 128: a solid line for the
    original, which does {original:.0f at mini-batches of _}, and a shaded band up to the fourth variant, which does
    {work:.2f} times that. Below, bars for every variant: products 9, 4, 3 and 2; products in series 4, 4, 2 and 2;
    launches 44, 30, 30 and 31; multiply-adds 18, 18, 19 and 18 B H²; numbers kept 4, 4, 4 and 5 B H.""",
    claims=[
        Claim("variants", "With the reset gate moved, no recurrent product of a step waits for another.",
              "“they can then all be concatenated”",
              "in series {step[serial][original]} per step, then {step[serial][moved]}; in all "
              "{step[products][original]}, then {step[products][saved]} by variant 4, a forward and a backward one",
              lambda f: f["step"]["serial"]["moved"] == 2 == f["step"]["products"]["saved"], "printed"),
        Claim("variants", "Other saved activations spare variant 3 the product that it computes twice.",
              "“without additional memory consumption”",
              "{step[products][saved]} instead of {step[products][moved]} products per step, {step[kept][saved]:g} "
              "instead of {step[kept][moved]:g} B H numbers kept: W x must stay",
              lambda f: f["step"]["kept"]["saved"] <= f["step"]["kept"]["moved"], "printed"),
        Claim("timings", "Variant 4 at a mini-batch of 64 is about as good as the original at 128.", "≈ 1× (TitanX)",
              "{half:×} the original's throughput, H from {H}", lambda f: compare(f["half"], 1), gpu=True),
        Claim("timings", "All three optimizations together, at a mini-batch of 128.", "20 to 40 % (TitanX)",
              "{total:×}, H from {H}",
              lambda f: compare([f["total"].min() - 1, f["total"].max() - 1], [0.2, 0.4]), gpu=True),
        Claim("timings", "At very large sizes, the optimizations help less.", f"less at {LARGE} (TitanX)",
              f"{{large:×}} at H = {LARGE}, median {{usual:×}} at smaller sizes",
              lambda f: f["large"].iloc[0] < f["usual"], gpu=True),
        Claim("timings", "The last optimization, variant 4 over 3, gives more at larger sizes.", "rises (TitanX)",
              "{last[first]:×} to {last[last]:×}, H from {H}",
              lambda f: f["last"]["last"] > f["last"]["first"], gpu=True),
        Claim("takeaways", "The reset gate after the recurrent product, variant 3 over 2.", "≈ 10 % (TitanX)",
              "{moved:×}, median {moved_median:×}, H from {H}",
              lambda f: compare(f["moved_median"] - 1, 0.1), gpu=True),
    ],
)
