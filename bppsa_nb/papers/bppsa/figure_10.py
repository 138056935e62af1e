"""Figure 10: the cost of every step on a pruned VGG-11, counted and measured."""

import math
import tracemalloc

import numpy as np

from bppsa_nb.operands.pattern import CSRPattern, Pattern, Planned
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa.vgg import operators
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.timing import take_turns
from bppsa_nb.scan import scan
from bppsa_nb.scan.trace import span_label, trace
from bppsa_nb.sparse import VGG11, prune
from bppsa_nb.training.datasets.images import Images

LEVELS = 2
ROUNDS = {"quick": (2, 6), "paper": (10, 50)}
STORAGE = {"maxima": "as in the paper: maxima only", "planned": "as planned here: every entry"}
STYLES = {
    "BP": ("BP: gradient operator", COLORS["identity"], "D"),
    "mv": ("matrix × vector", COLORS["vector"], "o"),
    "mm": ("matrix × matrix", COLORS["matrix"], "s"),
}
METHODS = {"ordinary": COLORS["baseline"], "linear": COLORS["linear"], "truncated": COLORS["truncated"]}
WAYS = {"scipy": ("SciPy, same entries", "#999999"), "scipy_nonzero": ("SciPy, zeros left out", "#555555")}
WAYS |= {"planned": ("planned", COLORS["truncated"])}


def measure(scale, rng, progress):
    """Count and time: a row per product for each way to store, per gradient operator of BP, and per backward pass."""
    seeds, rounds = np.random.default_rng(rng).integers(2**32, size=2), ROUNDS[scale]
    network, images = pruned(seeds[0]), Images(rng=seeds[1], num_samples=1)
    activations = network.forward(images.batch([0])[0])
    links = network.links(activations, from_input=True)

    def measure_point(point, rng):
        if "method" in point:
            return [time_backward(network, activations, point["method"], rng, rounds)]
        if point["storage"] == "BP":
            return ordinary_costs(network)
        if point["storage"] == "maxima":
            pools = [name.startswith("pool") for name in operators()]
            few = [maxima(link) if pool else link.pattern for pool, link in zip(pools, links, strict=True)]
            return scan_costs(few, LEVELS)
        costs = scan_costs([link.pattern for link in links], LEVELS)
        return [row | took for row, took in zip(costs, time_products(links, rng, rounds), strict=True)]

    points = [{"storage": storage} for storage in (*STORAGE, "BP")] + [{"method": method} for method in METHODS]
    table = progress.collect(points, measure_point, rng)
    table.attrs["data"] = images.data
    return table


def pruned(rng):
    """Make the VGG-11 of Section 5.3: its initial weights are pruned, the same share of each layer."""
    network = VGG11(rng)
    network.masks = prune(network.params, 0.97, "class_uniform")
    return network


def without_zeros(matrix):
    """Copy a scipy.sparse matrix, but for the zeros that it stores."""
    matrix = matrix.copy()
    matrix.eliminate_zeros()
    return matrix


def maxima(link):
    """Return a link's pattern without the entries that are zero for its sample (Algorithms 8 and 9)."""
    return CSRPattern.of(without_zeros(link.pattern.matrix(link.values[0])))


def scan_costs(patterns, levels):
    """Run the truncated scan over a chain's patterns, from the image to the loss; list its products, a row each."""
    costs, run = [], trace(len(patterns), "truncated", levels)
    scan([Pattern(pattern, costs) for pattern in (None, *reversed(patterns))], "truncated", levels)
    critical = set(run.critical_path([cost.multiply_adds for cost in costs])[1])
    sizes = [patterns[-1].shape[1], *(pattern.shape[0] for pattern in reversed(patterns))]  # of x_n ... x_0
    rows = []
    for number, level in enumerate(run.levels, 1):
        for product in level.products:
            a, b = product.parents  # a stands closer to the loss: the product is b @ a
            dense = sizes[b.span[1]] * sizes[a.span[1]] * (sizes[a.span[0] - 1] if a.kind == "matrix" else 1)
            row = {"level": number, "phase": level.level.phase, "d": level.level.d, "kind": product.product}
            row |= {"left": span_label(a), "right": span_label(b), "dense": dense}
            rows.append(row | {"multiply_adds": costs[len(rows)].multiply_adds, "critical": product in critical})
    return rows


def ordinary_costs(network):
    """Count the multiply-adds of ordinary back-propagation's operators, which know no pruning: a row each."""
    rows = []
    for name, operator in zip(operators(), network.linked(from_input=True), strict=True):
        jacobian = network.jacobian(operator.name)
        inputs, outputs = math.prod(jacobian.input_shape), math.prod(jacobian.output_shape)
        # A convolution's weights are all used at every output position; others touch each input once.
        weights = math.prod(operator.param_shapes["weight"]) if operator.param_shapes else 0
        multiply_adds = weights * math.prod(jacobian.output_shape[1:]) if weights else inputs
        row = {"kind": "BP", "left": name, "multiply_adds": multiply_adds, "dense": inputs * outputs}
        rows.append(row | {"critical": True})  # one after the other
    return rows


class Timed:
    """An operand of one sample that logs, of each product, the seconds that all `WAYS` take, and the bytes it keeps."""

    def __init__(self, operand, log, rounds):
        self.operand, self.log, self.rounds = operand, log, rounds

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            self.log.append({})
            return self.operand @ other
        left, right = (each.operand.pattern.matrix(each.operand.values[0]) for each in (self, other))
        few_left, few_right = without_zeros(left), without_zeros(right)
        product, plan = self.operand @ other.operand, self.operand.pattern.times(other.operand.pattern)
        planned = lambda: plan(self.operand.values, other.operand.values, "cpu", product.values)  # noqa: E731
        seconds = take_turns([lambda: left @ right, lambda: few_left @ few_right, planned], 0.5, self.rounds)
        took = dict(zip(WAYS, np.median(seconds, axis=0), strict=True))
        self.log.append(took | {"kept": plan.pattern.indices.nbytes})
        return Timed(product, self.log, self.rounds)


def time_products(links, rng, rounds):
    """Run the truncated scan over links, and time its products of two matrices: a row for each product."""
    log, gradient = [], rng.standard_normal((1, links[-1].shape[1])).astype(np.float32)
    operands = [Timed(Planned(link.pattern, link.values, "cpu"), log, rounds) for link in links]
    scan([gradient, *reversed(operands)], "truncated", LEVELS)
    return log


def time_backward(network, activations, method, rng, rounds):
    """Time a backward pass, and measure the most memory that it takes, and that of the links' patterns."""
    grad_logits = rng.standard_normal(activations.logits.shape).astype(np.float32)
    how = {"method": method, "backend": "cpu", "levels": LEVELS if method == "truncated" else None}

    def backward():
        network.backward(activations, grad_logits, **how)

    seconds = np.median(take_turns([backward], 1.5, rounds))
    tracemalloc.start()
    backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = 0 if method == "ordinary" else sum(pattern.indices.nbytes for pattern in network.patterns())
    return {"seconds": seconds, "bytes": peak, "kept": kept, "critical": True}  # True and False leave no gaps


def up_levels(table):
    """Sum up each up-sweep level's planned products of two matrices: seconds of each way, and multiply-adds."""
    return where(table, storage="planned", kind="mm").groupby("level")[[*WAYS, "multiply_adds"]].sum()


def facts(table):
    """Name the costliest steps, and compare planned products with SciPy's, and methods of a backward pass."""
    most = table.groupby(["storage", "kind"])["multiply_adds"].max()
    products, sums = where(table, storage="planned", kind="mm"), up_levels(table)
    top, seconds = products.nlargest(1, "multiply_adds"), table.dropna(subset="method").set_index("method")["seconds"]
    return {
        "costliest": table.groupby("storage")["multiply_adds"].max() / 1e6,
        "ratio": most.xs("mm", level="kind") / most["BP", "BP"],
        "level": top["level"],
        "dense": top["dense"] / 1e12,
        "saved": top["dense"] / top["multiply_adds"],
        "levels": sums[["scipy", "scipy_nonzero"]].div(sums["planned"], axis=0),
        "passes": seconds / seconds.get("ordinary", np.nan),
    }


def plot(table):
    fig, axes = panels.subplots(2, 3, figsize=(11.2, 8.6), width_ratios=(1, 1, 0.9))
    baseline = where(table, storage="BP")
    for ax, (storage, title) in zip(axes[0], STORAGE.items(), strict=False):
        rows = where(table, storage=storage)
        for kind, part in (("BP", baseline), *rows.groupby("kind", sort=False)):
            name, color, marker = STYLES[kind]
            on = part["critical"].astype(bool)
            ax.plot(part["dense"][on], part["multiply_adds"][on], marker, color=color, ms=6, label=name, zorder=3)
            ax.plot(part["dense"][~on], part["multiply_adds"][~on], marker, color=color, mfc="white", ms=6, zorder=2)
        costliest, style = rows.loc[rows["multiply_adds"].idxmax()], {"ha": "right", "va": "center", "size": 9}
        at, text = costliest[["dense", "multiply_adds"]], f"{costliest['multiply_adds'] / 1e6:.0f} M"
        ax.annotate(text, at, (-8, 0), textcoords="offset points", color=COLORS["matrix"], **style)
        ax.set(title=title, xlabel="multiply-adds if matrices were dense", xscale="log", yscale="log")
    axes[0, 0].set_ylabel("multiply-adds")
    axes[0, 0].plot([], [], "o", color="#777777", mfc="white", label="not on the critical path")
    panels.legend(fig, ncols=4)
    _draw_levels(axes[0, 2], table, baseline)
    for ax in axes[0, 1:]:
        ax.sharey(axes[0, 0])
    _draw_seconds(axes[1, 0], up_levels(table))
    _draw_passes(*axes[1, 1:], table)
    return fig


def _draw_levels(ax, table, baseline):
    for storage, style in (("maxima", {"mfc": "white"}), ("planned", {})):
        rows = where(table, storage=storage)
        for kind in ("mm", "mv"):
            costliest = rows[rows["kind"] == kind].groupby("level")["multiply_adds"].max()
            ax.plot(costliest.index, costliest, STYLES[kind][2], color=STYLES[kind][1], ms=6, **style)
    ax.axhline(baseline["multiply_adds"].max(), color=STYLES["BP"][1], lw=1.2, ls="--", zorder=1)
    phases = where(table, storage="planned").groupby("phase", sort=False)["level"].agg(["min", "max"]).astype(int)
    first, last = phases.loc["linear"]
    ax.axvspan(first - 0.5, last + 0.5, color="#f0f0f0", zorder=0)
    spans = ", ".join(f"{first}-{last} {phase}" for phase, first, last in phases.itertuples())
    ax.set(title="costliest of each level", xlabel=f"level: {spans}", yscale="log")
    ax.set_xticks(range(1, phases["max"].max() + 1))
    ax.grid(False, axis="x")


def _draw_seconds(ax, sums):
    places = np.arange(len(sums))
    for i, (way, (name, color)) in enumerate(WAYS.items()):
        bars = ax.bar(places + 0.27 * (i - 1), sums[way], 0.25, color=color, label=name)
        ratios = (sums[way] / sums["planned"]).map("{:.2g}×".format)
        texts = (1e3 * sums[way]).map("{:.3g} ms".format) if way == "planned" else ratios
        ax.bar_label(bars, texts, size=8, padding=2)
    counts = [f"level {level:.0f}\n{n / 1e6:.3g} M multiply-adds" for level, n in sums["multiply_adds"].items()]
    ax.set_xticks(places, counts)
    ax.set(title="products of each up-sweep level", ylabel="seconds", yscale="log", ymargin=0.25)
    ax.legend(loc="upper left")
    ax.grid(False, axis="x")


def _draw_passes(left, right, table):
    rows, colors = table.dropna(subset="method"), [*METHODS.values()]
    bars = left.bar(rows["method"], rows["seconds"], 0.6, color=colors)
    left.bar_label(bars, [f"{seconds:.2g} s" for seconds in rows["seconds"]], size=9, padding=2)
    left.set(title="one backward pass", ylabel="seconds")
    values, kept = rows["bytes"] / 2**20, rows["kept"] / 2**20
    kept += np.where(rows["method"] == "truncated", where(table, storage="planned")["kept"].sum() / 2**20, 0)
    right.bar(rows["method"], values, 0.6, color=colors)
    bars = right.bar(rows["method"], kept, 0.6, bottom=values, color="white", edgecolor=colors, hatch="///")
    right.bar_label(bars, [f"{total:.0f} MiB" for total in values + kept], size=9, padding=2)
    right.set(title="its memory", ylabel="MiB (hatched: patterns, kept)")
    for ax in (left, right):
        ax.margins(y=0.12)
        ax.grid(False, axis="x")


FIGURE = Figure(
    origin="timed",
    caption="""The costliest matrix product takes {ratio[maxima]:.1f} times the multiply-adds of BP's costliest operator
    if only this image's maxima of max-pooling are stored, as in the paper. It takes {ratio[planned]:.1f} times if every
    window entry is stored, so that patterns hold for all images. Right, hollow marks: maxima only. Dashed green: the
    costliest gradient operator of BP, which skips nothing. 97 % of the weights are pruned. 2 levels up and down, a
    linear scan between. Below, measured. SciPy takes {levels[scipy]:.2g} times as long as planned products for the same
    stored entries. For this image's non-zeros alone it takes {levels[scipy_nonzero]:.2g} times as long. Planned
    products fill values into a pattern that was made once. Left, matrix-matrix products of the up-sweep. Right, the
    most memory of a backward pass beyond weights and activations: values, and patterns, which are kept.""",
    alt="""Above, two scatter plots of multiply-adds, all axes logarithmic: those of each product over those of dense
    matrices, from a million to tens of trillions. Right, the costliest of each level; that of level
    {level:.0f} tops all. Below, bar charts of seconds per up-sweep level, and of seconds and memory of a
    backward pass by three methods. The linear scan takes {passes[linear]:.1f} times as long as ordinary
    back-propagation, the truncated scan {passes[truncated]:.1f} times and far more memory.""",
    phrases={"level": "level {_:.0f}: {scipy:×} ({scipy_nonzero:×})"},
    claims=[
        Claim("§3.3", "With patterns known ahead of time, sparse products are significantly faster.",
              "“significantly better performance”",
              "over SciPy (over SciPy without the sample's zeros): {levels:each level}",
              lambda f: f["levels"]["scipy"].min() > 1),
        Claim("§5.3, Figure 10", "On a pruned VGG-11, steps of BPPSA take about as much as BP's operators.",
              "“similar” (here: within 2×)",
              "costliest step {costliest[maxima]:.0f} M multiply-adds, BP's costliest {costliest[BP]:.0f} M; "
              "{costliest[planned]:.0f} M with a pattern that holds for all images",
              lambda f: f["costliest"]["maxima"] <= 2 * f["costliest"]["BP"], "printed"),
        Claim("§5.3, Figure 10", "Sparse formats lower the cost of steps by orders of magnitude.",
              "“reduces the per-step complexity”",
              "costliest product: {costliest[planned]:.0f} M multiply-adds, dense {dense:.1f} T",
              lambda f: f["saved"].min() > 1000, "printed"),
    ],
)
