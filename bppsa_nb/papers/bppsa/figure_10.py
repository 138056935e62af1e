"""Figure 10: what every step of the scan costs on a pruned VGG-11, counted by running it on sparsity patterns."""

import math

from matplotlib import pyplot

from bppsa_nb.operands.counted import Pattern
from bppsa_nb.operands.pattern import CSRPattern
from bppsa_nb.papers import panels
from bppsa_nb.papers.bppsa import vgg
from bppsa_nb.papers.bppsa.vgg import LEVELS, operators
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan import scan

STORAGE = {"maxima": "as in the paper: maxima only", "planned": "as planned here: every entry"}
STYLES = {
    "BP": ("BP: gradient operator", COLORS["identity"], "D"),
    "mv": ("matrix × vector", COLORS["vector"], "o"),
    "mm": ("matrix × matrix", COLORS["matrix"], "s"),
}


def measure(scale, rng, progress):
    """Count every step: a row per product for each way to store, and one per gradient operator of BP."""
    network, images, _, links = vgg.on_an_image(rng)

    def count(point, rng):
        if point["storage"] == "BP":
            return ordinary_costs(network)
        left_out = [point["storage"] == "maxima" and name.startswith("pool") for name in operators()]
        return scan_costs([maxima(x) if few else x.pattern for few, x in zip(left_out, links, strict=True)], LEVELS)

    table = progress.collect([{"storage": storage} for storage in (*STORAGE, "BP")], count, rng)
    table.attrs["data"] = images.data
    return table


def maxima(link):
    """Return a link's pattern without the entries that are zero for its sample (Algorithms 8 and 9)."""
    return CSRPattern.of(vgg.without_zeros(link.pattern.matrix(link.values[0])))


def scan_costs(patterns, levels):
    """Run the truncated scan over patterns: `vgg.products`' rows, with `multiply_adds`, and which are `critical`."""
    costs = []
    scan([Pattern(pattern, costs) for pattern in (None, *reversed(patterns))], "truncated", levels)
    run, rows = vgg.products(patterns, levels)
    critical = set(run.critical_path([cost.multiply_adds for cost in costs])[1])
    for row, cost, product in zip(rows, costs, run.products, strict=True):
        row |= {"multiply_adds": cost.multiply_adds, "critical": product in critical}
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


def values(table):
    """Work out how the costliest products compare with the costliest gradient operator, and where they are."""
    costliest = table.groupby(["storage", "kind"])["multiply_adds"].agg(["max", "idxmax"])
    ratios = {storage: costliest["max"][storage, "mm"] / costliest["max"]["BP", "BP"] for storage in STORAGE}
    return {"ratios": ratios, "costliest": table["level"][costliest["idxmax"]["planned", "mm"]]}


def plot(table):
    """Draw the products as the paper does, for both ways to store, and the costliest of each level."""
    fig, axes = pyplot.subplots(1, 3, figsize=(11.2, 4.4), width_ratios=(1, 1, 0.9), layout="constrained")
    baseline = table[table["storage"] == "BP"]
    for ax, (storage, title) in zip(axes, STORAGE.items(), strict=False):
        rows = table[table["storage"] == storage]
        for kind, part in (("BP", baseline), *rows.groupby("kind", sort=False)):
            name, color, marker = STYLES[kind]
            on = part["critical"].astype(bool)
            ax.plot(part["dense"][on], part["multiply_adds"][on], marker, color=color, ms=6, label=name, zorder=3)
            ax.plot(part["dense"][~on], part["multiply_adds"][~on], marker, color=color, mfc="white", ms=6, zorder=2)
        costliest, style = rows.loc[rows["multiply_adds"].idxmax()], {"ha": "right", "va": "center", "size": 9}
        at, text = costliest[["dense", "multiply_adds"]], f"{costliest['multiply_adds'] / 1e6:.0f} M"
        ax.annotate(text, at, (-8, 0), textcoords="offset points", color=COLORS["matrix"], **style)
        ax.set(title=title, xlabel="multiply-adds if matrices were dense", xscale="log", yscale="log")
        ax.sharey(axes[0])
    axes[0].set_ylabel("multiply-adds")
    axes[0].plot([], [], "o", color="#777777", mfc="white", label="not on the critical path")
    panels.legend(fig, ncols=4)
    _levels(axes[2], table, baseline)
    axes[2].sharey(axes[0])
    return fig


def _levels(ax, table, baseline):
    for storage, style in (("maxima", {"mfc": "white"}), ("planned", {})):
        rows = table[table["storage"] == storage]
        for kind in ("mm", "mv"):
            costliest = rows[rows["kind"] == kind].groupby("level")["multiply_adds"].max()
            ax.plot(costliest.index, costliest, STYLES[kind][2], color=STYLES[kind][1], ms=6, **style)
    ax.axhline(baseline["multiply_adds"].max(), color=STYLES["BP"][1], lw=1.2, ls="--", zorder=1)
    phases = table[table["storage"] == "planned"].groupby("level")["phase"].first()
    spans = []
    for phase in ("up", "linear", "down"):
        numbers = phases.index[phases == phase].astype(int)
        spans.append(f"{numbers.min()}-{numbers.max()} {phase}")
        if phase == "linear":
            ax.axvspan(numbers.min() - 0.5, numbers.max() + 0.5, color="#f0f0f0", zorder=0)
    ax.set(title="costliest of each level", xlabel=f"level: {', '.join(spans)}", yscale="log")
    ax.set_xticks(phases.index)
    ax.grid(False, axis="x")
