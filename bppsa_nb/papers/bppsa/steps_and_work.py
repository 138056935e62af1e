"""Section 3.6: steps, work, time and space, counted from runs."""

import math

import numpy as np

from bppsa_nb.networks.layers import Conv2d
from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.scan.levels import up_levels
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline

SCALES = {
    "quick": {"links": 4096, "shared": (100, 1000, 10000), "layers": 256},
    "paper": {"links": 32768, "shared": (100, 1000, 10000, 30000), "layers": 1024},
}
H, LENGTHS = 20, (10, 30, 100, 300, 1000, 3000, 10000, 30000)  # the paper's RNN
SIZES = (4, H, 64, 256)
STYLES = {
    "linear": {"label": "linear scan", "color": COLORS["linear"], "marker": "s"},
    "blelloch": {"label": "Blelloch (BPPSA)", "color": COLORS["blelloch"], "marker": "o"},
    "truncated": {"label": "truncated", "color": COLORS["truncated"], "marker": "^"},
    "hillis_steele": {"label": "Hillis-Steele", "color": COLORS["baseline"], "marker": "D"},
}


def measure(scale, rng, progress):
    """Count steps and work, time in multiply-adds, and space: a row per chain, method, workers and size of a state."""
    links, shared, layers = SCALES[scale].values()
    points = []
    for n in 2 ** np.arange(1, links.bit_length()):
        for method in STYLES:
            k = up_levels(n.item()) // 2 if method == "truncated" else None
            points.append({"part": "steps", "n": n, "p": None, "method": method, "levels": k})
    for p in 2 ** np.arange(0, links.bit_length(), 2):
        same = {"part": "steps", "n": links, "p": p}
        points += [same | {"method": method, "levels": None} for method in STYLES if method != "truncated"]
    points += [{"part": "time", "n": n, "p": None} for n in sorted({*(2**i for i in range(1, 14)), *LENGTHS})]
    points += [{"part": "time", "n": n, "p": 2**i} for n in shared for i in range(13)]
    points += [{"part": "space", "n": layers - 1, "p": 2**i} for i in range(layers.bit_length())]
    return progress.collect(points, count, rng)


def count(point, rng):
    """Count what one point is about: rows."""
    n, p = point["n"], point["p"]
    if point["part"] == "space":
        matrices, vectors = scan_space(trace(n, "blelloch"), p)
        return [{"matrices": matrices, "vectors": vectors, "activations": pipeline_space(n + 1, p)}]
    if point["part"] == "steps":
        run = timelines.traced(n, point["method"], point["levels"])
        steps = timelines.on_workers(run, p) if p else run.steps
        return [{"steps": steps, "work": run.work, "mm": run.mm, "mv": run.mv}]
    rows, (linear, blelloch) = [], (timelines.traced(n, method) for method in ("linear", "blelloch"))
    for size in [H] if p else SIZES:
        cost = timeline.multiply_adds(size)
        ends = timelines.on_workers(blelloch, p, cost) if p else blelloch.critical_path(cost)[0]
        # The linear scan is a single chain, whatever the number of workers.
        row = {"H": size, "linear": linear.critical_path(cost)[0], "blelloch": ends}
        rows.append(row | {"fewer": linear.steps / blelloch.steps})
    return rows


def scan_space(run, p):
    """Count the matrices, and the vectors, that the fullest of p devices holds at any time while a scan runs."""
    owner = [min(i, run.n) * p // (run.n + 1) for i in range(run.n + 2)]
    rows, most = run.rows(), {"matrix": 0, "vector": 0}
    for r, row in enumerate(rows):
        held = {kind: [0] * p for kind in most}
        place = {operand: owner[position] for position, operand in enumerate(row)}
        for operand, device in zip(row, owner, strict=False):  # rows grow
            if operand is not IDENTITY:
                held[operand.kind][device] += 1
        products = run.levels[r].products if r < run.steps else ()
        ends = [[place[parent] for parent in product.parents] for product in products if product.product == "mm"]
        for device in {right for left, right in ends if left != right}:  # a matrix arrives, one at a time
            held["matrix"][device] += 1
        most = {kind: max(most[kind], *held[kind]) for kind in most}
    return most["matrix"], most["vector"]


def pipeline_space(layers, devices):
    """Count the activations that the fullest device holds at any time, with as many micro-batches as devices."""
    events, needs = timelines.gpipe(devices, devices, backward=True)
    timeline.check(events, needs)
    changes, again = [], layers // devices  # what lies between a device's ends is computed again
    for event in events:
        forward = event.kind.startswith("F")
        changes.append((event.start, 1, event.worker, 1 if forward else again))
        changes += [] if forward else [(event.end, 0, event.worker, -again - 1)]
    held, most = [0] * devices, 0
    for _, _, device, change in sorted(changes):  # at the same time, what leaves makes room first
        held[device] += change
        most = max(most, held[device])
    return most


def facts(table):
    """Compare counts with what Section 3.6 says of them, constants left out; of time, say where BPPSA is faster."""
    steps, time, space = (where(table, part=part) for part in ("steps", "time", "space"))
    alone = steps[steps["p"].isna()].pivot(index="n", columns="method")
    shared = where(steps, method="blelloch").query("p < n")
    time = time[time["p"].isna()]
    promised = time[time["n"] / np.log2(time["n"]) > time["H"]]
    return {
        "links": steps["n"].max(),
        "steps": alone["steps"],
        "most": alone["steps"].tail(1),
        "work": alone["work"].div(alone.index, axis=0),
        "mm": alone["mm"].div(alone.index, axis=0),
        "on_workers": shared["steps"] / (shared["n"] / shared["p"] + np.log2(shared["p"])),
        "workers": shared["p"].max(),
        "gains": promised["linear"] / promised["blelloch"],
        "cases": len(promised),
        "first": time.loc[(time["H"] == H) & (time["blelloch"] < time["linear"]), "n"].min(),
        "matrices": space["matrices"] / np.maximum(space["n"] / space["p"], 1),
        "fewest": space["matrices"].tail(1),
        "activations": space["activations"] / (space["n"] / space["p"] + space["p"]),
        "devices": space["p"].max(),
        "layers": space["n"].max() + 1,
    }


def plot(table):
    fig = panels.figure(figsize=(10.2, 12.2))
    axes = fig.subplot_mosaic("aabbcc;dddeee;fffggg")
    _draw_steps([axes[letter] for letter in "abc"], where(table, part="steps"))
    _draw_time(axes["d"], axes["e"], where(table, part="time"))
    _draw_space(axes["f"], axes["g"], where(table, part="space"))
    for letter, ax in axes.items():
        ax.set_title(f"({letter}) {ax.get_title()}", size=10)
    return fig


def _draw_steps(axes, table):
    alone, shared, largest = table[table["p"].isna()], table[table["p"].notna()], table["n"].max()
    drawn = (alone, "n", "steps"), (alone, "n", "work"), (shared, "p", "steps")
    for ax, (rows, x, y) in zip(axes, drawn, strict=True):
        panels.curves(ax, rows, x, y, "method", STYLES, ls="", ms=5, zorder=3)
        for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
            scale("log", base=2)
            axis.set_major_formatter("{x:,.0f}")
        ax.set_xticks(2 ** np.arange(0, np.log2(largest) + 1, 4))
        ax.grid(False, axis="x")
        ax.set_xlabel("links in the chain, $n$" if x == "n" else "workers, $p$")
    n, p = 2 ** np.linspace(1, np.log2(largest), 60), 2 ** np.linspace(0, np.log2(largest), 60)
    for ax, x, y, method, name, up in (
        (axes[0], n, n, "linear", "$n$", 0), (axes[0], n, 2 * np.log2(n), "blelloch", r"$2\log_2 n$", 4),
        (axes[0], n, np.log2(n), "hillis_steele", r"$\log_2 n$", -3), (axes[1], n, n, "linear", "$n$", -4),
        (axes[1], n, 2 * n, "blelloch", "$2n$", 4), (axes[1], n, n * np.log2(n), "hillis_steele", r"$n\log_2 n$", 0),
        (axes[2], p, largest + 0 * p, "linear", "$n$", 0),
        (axes[2], p, 2 * largest / p + 2 * np.log2(p), "blelloch", r"$2n/p$" + "\n" + r"$+\,2\log_2 p$", 8),
        (axes[2], p, largest * np.log2(largest) / p, "hillis_steele", r"$n\log_2 n\,/\,p$", -10),
    ):
        ax.plot(x, y, "--", color=STYLES[method]["color"], lw=1.1, zorder=2)
        panels.name_end(ax, x, y, name, STYLES[method]["color"], up)
    axes[0].set(title="Steps, as many workers as ⋄", ylabel="steps (levels)")
    axes[1].set(title="Work", ylabel="work (⋄)")
    axes[2].set(title=f"Steps on $p$ workers, $n$ = {largest}", ylabel="steps (⋄ one after another)")
    axes[0].legend(loc="upper left")


def _draw_time(left, right, table):
    alone, shared = table[table["p"].isna()], table[table["p"].notna()]
    fewer = alone.groupby("n")["fewer"].first()
    ratio = alone.assign(ratio=alone["blelloch"] / alone["linear"] * alone["fewer"])
    left.fill_between(fewer.index, 0.5, fewer, color="#EEF3E6", lw=0)
    left.plot(fewer.index, fewer, color="black", lw=2.2, label="steps, linear / Blelloch, counted")
    n = np.geomspace(4, fewer.index.max(), 50)
    left.plot(n, n / np.log2(n), "--", color="black", lw=1.1, label=r"$n\,/\,\log_2 n$")
    shades = [COLORS[role] for role in ("identity", "blelloch", "truncated", "linear")]
    for (size, rows), shade in zip(ratio.groupby("H"), shades, strict=True):
        left.plot(rows["n"], rows["ratio"], color=shade)
        panels.name_end(left, rows["n"], rows["ratio"], f"H = {size:g}", shade)
    paper = ratio[(ratio["H"] == H) & ratio["n"].isin(LENGTHS)]
    left.plot(paper["n"], paper["ratio"], "*", color="black", ms=9, zorder=4, label="the paper's RNN, T = n")
    left.text(7000, 55, "BPPSA wins", ha="center", style="italic", size=9)
    left.text(11, 38, "linear wins", ha="center", style="italic", size=9)
    left.set(xscale="log", ylim=(0.5, 4000), xlim=(2, 1.4e5), title="A step's cost, as many workers as ⋄")
    left.set(xlabel="links in the chain, $n$", ylabel="mean step, Blelloch / linear")
    left.legend(loc="upper left", bbox_to_anchor=(0, 1.03))
    for (length, rows), shade in zip(shared.groupby("n"), shades, strict=False):
        speedup = rows["linear"] / rows["blelloch"]
        right.plot(rows["p"], speedup, "o-", color=shade, ms=4)
        panels.name_end(right, rows["p"], speedup, f"T = {length}", shade)
    right.axhline(1, color="black", lw=1.1)
    right.text(1, 1.1, "as fast as linear", va="bottom", size=9)
    right.set_xscale("log", base=2)
    right.set(xlabel="workers, $p$", ylabel="speedup over the linear scan", title=f"Time on $p$ workers, H = {H}")
    for ax in (left, right):
        panels.log_scale(ax, "y")
        ax.xaxis.set_major_formatter("{x:,.0f}")


def _draw_space(left, right, table):
    n, p = table["n"].max() + 1, table["p"]
    pattern = Conv2d("conv", 3, 64, 3, padding=1).jacobian((3, 32, 32)).pattern
    activation = 4 * pattern.shape[1]  # bytes, in float32
    sizes = {"dense": 4 * math.prod(pattern.shape), "sparse": 4 * pattern.nnz}
    blue, sky, gray = COLORS["blelloch"], COLORS["chunked"], COLORS["baseline"]
    smooth = np.geomspace(1, p.max(), 100)
    left.plot(smooth, np.maximum(n / smooth, 1), "--", color=blue, lw=1.1, label=r"$\max(n/p,\,1)$")
    left.plot(p, table["matrices"], "o", color=blue, label="BPPSA, Jacobians")
    left.plot(smooth, n / smooth + smooth, "--", color=gray, lw=1.1, label="$n/p + p$")
    left.plot(p, table["activations"], "D", color=gray, ms=5, label="GPipe, activations")
    left.set(ylabel="held by the fullest device", title=f"Space, {n} layers")
    for kind, color, marker in (("dense", sky, "s"), ("sparse", blue, "o")):
        total = table["matrices"] * sizes[kind] + table["vectors"] * activation
        right.plot(p, total / 2**20, marker=marker, color=color, ms=5, label=f"BPPSA, {kind} Jacobians")
    right.plot(p, table["activations"] * activation / 2**20, "-D", color=gray, ms=5, label="GPipe")
    right.set(ylabel="MiB per sample on the fullest device", title="Layers like VGG-11's first convolution")
    for ax in (left, right):
        panels.log_scale(ax, shown="{x:,.0f}", ticks=4 ** np.arange(np.log2(n) // 2 + 1))
        ax.set_xlabel("devices, $p$")
    left.legend(loc="upper center", ncols=2)
    left.set_ylim(top=2e4)
    right.legend(loc="upper right")


FIGURE = Figure(
    origin="counted",
    caption="""For twice the work, the Blelloch scan takes 2 log n steps where the linear scan takes n (a, b). Marks are
    counted from runs over tracing operands; dashed lines are Equations 6 and 7 with constants, and the paper's formulas
    of space. The truncated scan stops half-way up the tree. (c) Whoever is free takes a product that is ready, one step
    each; moving data is free. (d, e) Costs are multiply-adds: H³ for two matrices, H² for a matrix and a gradient.
    BPPSA wins where its mean step lies below the black line: the paper's RNN beyond about T = 100 if each ⋄ has a
    worker, and with fewer, by list scheduling, from about 20 on. (f) What the fullest device holds: BPPSA's Jacobians
    fall to two, one of which just arrived; activations of a GPipe pipeline rise again beyond the square root of n. (g)
    In bytes: layers as large as VGG-11's first convolution, products as sparse as the Jacobians, as the paper's bound
    has it.""",
    alt="""Seven plots on logarithmic axes. (a, b) Over n, steps grow as n, 2 log n (Blelloch), log n (Hillis-Steele)
    and the root of n (truncated); work as n, 2 n and n log n. (c) Over workers p, Blelloch's steps fall as 2 n / p, to
    2 log p. (d) Over n, the ratio of mean steps rises for each H, and levels off near H / 2. (e) Speedup over workers
    starts near one twentieth; it passes 1 for all chains but the shortest. (f) Over devices p, BPPSA falls as n / p
    down to two Jacobians; the pipeline's activations are fewest where p is the square root of n. (g) In bytes, dense
    Jacobians take most.""",
    claims=[
        Claim("§3.6, Eq. 6", "With a worker for every ⋄, BPPSA takes logarithmically many steps.", "Θ(log n)",
              "2⌈log₂(n + 1)⌉ − 1 levels: {most[blelloch]} at n = {links}",
              lambda f: (f["steps"]["blelloch"] == 2 * np.ceil(np.log2(f["steps"].index + 1)) - 1).all()),
        Claim("§3.6", "The linear scan, like BP, takes as many steps as there are layers.", "Θ(n)",
              "{most[linear]} steps at n = {links}", lambda f: (f["steps"]["linear"] == f["steps"].index).all()),
        Claim("§3.6, Eq. 7", "BPPSA's work is linear; only the up-sweep multiplies matrices.", "Θ(n)",
              "{work[blelloch]:.2f} ⋄ per link for n up to {links}",
              lambda f: f["work"]["blelloch"].max() <= 2 and f["mm"]["blelloch"].max() < 1),
        Claim("§3.6, Eq. 6", "On p ≤ n workers, the steps are shared out up to a logarithm.", "Θ(n/p + log p)",
              "{on_workers:.2f} times n/p + log₂ p, n = {links}, p up to {workers:.0f}",
              lambda f: f["on_workers"].max() <= 3 * f["on_workers"].min()),
        Claim("§3.6", "BPPSA is faster where n / log n exceeds the dimension of x, though its steps cost more.",
              "P_Blelloch / P_Linear < n / log n",
              f"true for all {{cases}} counted cases; at H = {H} from n = {{first}} on",
              lambda f: (f["gains"] > 1).all()),
        Claim("§3.6", "A worker's space falls with p, down to a constant number of Jacobians.",
              "Θ(max(n/p, 1)) M_Jacob", "{matrices:.2f} times that; {fewest:.0f} at p = {devices:.0f}",
              lambda f: f["matrices"].max() <= 3 * f["matrices"].min()),
        Claim("§3.6, Appendix B", "A pipeline's space per device grows again with its length.", "Θ(L/K + K)",
              "{activations:.2f} times L/K + K, L = {layers}",
              lambda f: f["activations"].max() <= 3 * f["activations"].min()),
    ],
)
