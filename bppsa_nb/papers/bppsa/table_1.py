"""Table 1: sparse transposed Jacobians, made analytically."""

import math
from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.networks.layers import Conv2d, MaxPool2d, ReLU
from bppsa_nb.papers import experiments, panels, tables, timing
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare

PRINTED = tables.published("table_1").rename(columns={"sparsity": "sparsity_paper", "speedup": "speedup_paper"})
SECONDS = {"quick": 0.5, "paper": 10.0}  # for one operator
SERIES = {  # label, color, marker
    "paper": ("the paper", COLORS["baseline"], "D"),
    "values": ("here: the values", COLORS["blelloch"], "o"),
    "pattern": ("here: the pattern and the values", COLORS["vector"], "s"),
}
COLUMNS = {  # of the table that is drawn, by heads
    "Operator": "{operator}",
    "Input →\noutput": "{input} →\n{output}",
    "Sparsity:\npaper / here": "{sparsity_paper:.5f} / {sparsity:.5f}",
    "MiB: dense /\nCSR values": "{dense_mib:,.0f} / {values_mib:.3g}",
    "Fill: time,\nover copy": "{microseconds:,.0f} µs, {over_copy:.1f}",
    "Speedup: paper / values /\nwith the pattern": "{speedups}",
}
OPERATORS = {
    "Convolution": partial(Conv2d("conv", 3, 64, 3, padding=1).jacobian, (3, 32, 32)),
    "ReLU": partial(ReLU("relu").jacobian, (64, 32, 32)),
    "Max-pooling": partial(MaxPool2d("pool", 2).jacobian, (64, 32, 32)),
}


def source(operator, rng):
    """Draw what an operator's values are made from: weights, or an input; float32."""
    shape = (64, 3, 3, 3) if operator == "Convolution" else (64, 32, 32)
    return rng.standard_normal(shape, np.float32)


def measure(scale, rng, progress):
    """Make each operator's pattern, time its values, and put both beside the paper's table and the recording."""
    points = [{"operator": operator} for operator in OPERATORS]
    here = progress.collect(points, partial(time_filling, seconds=SECONDS[scale]), rng)
    if not experiments.recordings("jacobian_generation"):
        raise FileNotFoundError("no recording of autograd's times; `python benchmarks/jacobians.py` makes one")
    recording = experiments.table("jacobian_generation", "paper")
    table = PRINTED.fillna({"kernel": "none"}).merge(here, on="operator").merge(speedups(recording), on="operator")
    origin, torch = recording.attrs["provenance"], recording.attrs["torch"]
    table.attrs = {"recorded": f"{origin['cpu']}, {origin['cores']} cores, PyTorch {torch}, {origin['date']}"}
    return table


def time_filling(point, rng, seconds):
    """Time filling a pattern's values, and copying as many: medians, and the median of the rounds' ratios."""
    jacobian, given = OPERATORS[point["operator"]](), source(point["operator"], rng)
    values = jacobian.fill(given)
    copy = values.copy()
    calls = [partial(np.copyto, values, copy), partial(jacobian.fill, given, values)]
    times = timing.take_turns(calls, seconds, rounds=(20, 5000))
    dense, stored = math.prod(jacobian.pattern.shape), jacobian.pattern.nnz
    row = {"sparsity": jacobian.pattern.sparsity, "values": stored}
    row |= {"dense_mib": dense * 4 / 2**20, "values_mib": stored * 4 / 2**20}
    copied, filled = np.median(times, axis=0)
    return [row | {"copy": copied, "fill": filled, "over_copy": np.median(times[:, 1] / times[:, 0])}]


def speedups(recording):
    """Divide autograd's recorded times by ours, of values alone, and of pattern and values: a row per operator."""
    seconds = recording.pivot(index="operator", columns=["name", "threads"], values="seconds").loc[[*OPERATORS]]
    found = {}
    for ours, name in (("speedup_values", "values"), ("speedup_pattern", "pattern and values")):
        ratios = pd.concat([seconds[each] / seconds[name] for each in ("autograd", "autograd, stored")], axis=1)
        found |= {ours: seconds["autograd"][1] / seconds[name][1]}
        found |= {f"{ours}_low": ratios.min(axis=1), f"{ours}_high": ratios.max(axis=1)}
    return pd.DataFrame(found).reset_index()


def facts(table):
    """Give the columns by operator, and speedups as the paper writes them."""
    rows = table.set_index("operator")
    return dict(rows) | {f"by_{name}": rows[f"speedup_{name}"].map(scientific) for name in ("values", "pattern")}


def plot(table):
    fig, (above, below) = panels.subplots(2, 1, figsize=(9, 6), height_ratios=[1, 1.3])
    above.axis("off")
    words = table[[f"speedup_{name}" for name in SERIES]].map(scientific).agg(" / ".join, axis=1)
    shown = table.assign(microseconds=1e6 * table["fill"], speedups=words).to_dict("records")
    lines = [[form.format(**row) for form in COLUMNS.values()] for row in shown]
    widths = [0.13, 0.15, 0.18, 0.15, 0.14, 0.25]
    drawn = above.table(lines, colLabels=list(COLUMNS), loc="center", cellLoc="center", colWidths=widths)
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8.5)
    drawn.scale(1, 2.2)
    for cell in drawn.get_celld().values():
        cell.set(edgecolor="#bbbbbb", linewidth=0.6)
    places = np.arange(len(table))[::-1]
    for shift, (name, (label, color, marker)) in zip((0.22, 0, -0.22), SERIES.items(), strict=True):
        speedup = table[f"speedup_{name}"]
        if name != "paper":
            low, high = (table[f"speedup_{name}_{end}"] for end in ("low", "high"))
            below.hlines(places + shift, low, high, color=color, lw=2, alpha=0.5)
        below.plot(speedup, places + shift, marker, color=color, label=label, ms=7)
        for value, place in zip(speedup, places + shift, strict=True):
            below.annotate(scientific(value), (value, place), (0, 6), textcoords="offset points", ha="center", size=8)
    below.set(xscale="log", xlabel="times faster than autograd, one column at a time")
    below.set(yticks=places, yticklabels=table["operator"], ylim=(-0.6, len(table) - 0.3))
    below.set_title(f"Speedup, recorded on {table.attrs['recorded']}", size=10)
    below.grid(axis="y", visible=False)
    panels.legend(fig, below.get_legend_handles_labels()[0])
    return fig


def scientific(value):
    """Write a number with two digits, as the paper does: 8.3e3."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


FIGURE = Figure(
    origin="timed", backend="cpu", needs=("jacobian_generation.paper", "paper/table_1"),
    caption="""Filling in a Jacobian's values is {speedup_values:,.0f} times as fast as autograd, and takes
    {over_copy:.2g} times as long as copying as many. Sparsity: the share of guaranteed zeros. Fill: into a pattern that
    exists. Speedup: over one autograd.grad per output, on one thread, recorded by benchmarks/jacobians.py from a sample
    of columns. Lines: ranges with all threads, and with dense columns stored. The paper's: Threadripper 1950X, PyTorch
    2019.""",
    alt="""A table of convolution, ReLU and max-pooling of VGG-11. Below, speedups on a logarithmic axis: the paper's
    8.3e3, 1.2e6 and 1.5e5 beside ours, with the values alone and, at {speedup_pattern:,.0f (_)}, with the pattern.""",
    claims=[
        *(Claim("Table 1", f"{operator}, VGG-11's first: the share of guaranteed zeros.", f"{printed}",
                f"{{sparsity[{operator}]:.5f}}",
                lambda f, operator=operator, printed=printed: round(f["sparsity"][operator], 5) == printed, "printed")
          for operator, printed in zip(PRINTED["operator"], PRINTED["sparsity_paper"], strict=True)),
        Claim("§3.3", "The first convolution's Jacobian, dense and in CSR.", "768 MB, 6.5 MB",
              "{dense_mib[Convolution]:.0f} MiB dense, {values_mib[Convolution]:.1f} MiB the values",
              lambda f: f["dense_mib"]["Convolution"] == 768 and round(f["values_mib"]["Convolution"], 1) == 6.5,
              "printed"),
        *(Claim("Table 1", f"{operator}: analytical generation over autograd, one column at a time.",
                f"{scientific(printed)} (Threadripper 1950X)",
                f"{{by_values[{operator}]}}, the pattern being there; {{by_pattern[{operator}]}} with the pattern made "
                "anew",
                lambda f, operator=operator, printed=printed: compare(f["speedup_values"][operator], printed),
                recorded_by="python benchmarks/jacobians.py")
          for operator, printed in zip(PRINTED["operator"], PRINTED["speedup_paper"], strict=True)),
    ],
)
