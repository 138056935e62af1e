"""Figure 8: backward latency, speedup and breakdown over T and 1/B; Tables 4 and 5."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator

from bppsa_nb.machine import backends
from bppsa_nb.papers import panels, tables
from bppsa_nb.papers.bppsa import THESIS, epochs, iterations
from bppsa_nb.papers.bppsa.iterations import RNN_BATCH, RNN_LENGTH
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, compare, where

LIMIT = {"quick": 64_000, "paper": np.inf}  # of T times B
LABELS = {"bp": ("BP", "linear"), "bppsa_alone": ("levels", "blelloch"), "chunked_alone": ("chunks", "chunked")}
PANELS = {
    "Backward pass": "ms per iteration",
    "Backward speedup": "BP's time / BPPSA's time",
    "Both passes": "time / BP's; gray: forward",
}
SWEEPS = (  # a row of panels, what varies, and the table of the paper that does the same
    ("abc", "T", "sequence length, T", 4, {"B": RNN_BATCH}),
    ("def", "1/B", "share of the machine a sample has, 1/B", 5, {"T": RNN_LENGTH}),
)
LARGEST = "{{largest[{0}][{0}]:×}} at T = {{largest[{0}][T]}}, B = {{largest[{0}][B]}}"  # in words
GAINS = {"backward": LABELS["bppsa_alone"], "backward_chunked": LABELS["chunked_alone"]}


def measure(scale, rng, progress):
    """Time all methods on this machine's GPU, or on every backend of its CPU: a row per backend, T, B and method."""
    sizes = [(T, RNN_BATCH) for T in iterations.RNN_LENGTHS[scale]]
    sizes += [(RNN_LENGTH, B) for B in iterations.RNN_BATCHES if RNN_LENGTH * B <= LIMIT[scale]]
    chosen = ["cuda"] if backends.resolve("auto") == "cuda" else ["numpy", "cpu"]  # a GPU may be lent, for minutes
    points = [{"backend": backend, "T": T, "B": B} for backend in chosen for T, B in dict.fromkeys(sizes)]
    return progress.collect(points, partial(iterations.time_rnn, seconds=iterations.RNN_SECONDS[scale]), rng)


def speedups(table):
    """Put the methods beside each other, per backend, T and B: Table 4's columns in seconds, and what is in them."""
    rows = {method: where(table, method=method).set_index(["backend", "T", "B"]) for method in iterations.METHODS}
    forward = rows["linear"]["forward"]
    both = {name: forward + rows[method]["backward"] for method, name in iterations.METHODS.items()}
    both = epochs.breakdown(pd.DataFrame({"forward": forward} | both))
    for method, name in (("blelloch", "bppsa_alone"), ("chunked", "chunked_alone")):
        both[f"{name}_std"] = rows[method]["backward_std"]
    return both.reset_index()


def per_epoch(both):
    """Return the speedups on the fastest backend, the last one, with seconds per epoch."""
    both = where(both, backend=both["backend"].iloc[-1])
    return both.assign(**{name: both[name] * epochs.SAMPLES / both["B"] for name in ("forward", "baseline", "bppsa")})


def facts(table):
    """Compare the backward passes, on every backend, and both passes on the fastest one; and epochs with the V100's."""
    both = speedups(table)
    best = per_epoch(both)
    over_T = where(best, B=RNN_BATCH).sort_values("T").set_index("T")["backward"]
    over_B = where(best, T=RNN_LENGTH).sort_values("B", ascending=False).set_index("B")["backward"]
    printed = pd.concat([epochs.breakdown(tables.published(f"table_{n}")) for n in (4, 5)])
    return {
        "speedups": {
            backend: {"levels": rows["backward"], "chunks": rows["backward_chunked"]}
            for backend, rows in both.groupby("backend", sort=False)
        },
        "usual": where(best, T=RNN_LENGTH, B=RNN_BATCH),
        "largest": {part: best.nlargest(1, part) for part in ("backward", "overall")},
        "over_T": over_T[:: max(1, len(over_T) - 1)],  # the first and the last
        "over_B": over_B[:: max(1, len(over_B) - 1)],
        "ours": best["overall"],
        "theirs": printed["overall"],
        "epochs": epochs.by_size(best, "at T = {T}, B = {B}"),
        "printed": epochs.by_size(printed, "at T = {T}, B = {B}"),
    }


def plot(table):
    both = speedups(table)
    fig = panels.figure(figsize=(10.4, 8))
    above, below = fig.subfigures(2, 1, height_ratios=(5.2, 2.8))
    axes, columns = above.subplots(2, 3), []
    for row, (letters, x, over, number, fixed) in zip(axes, SWEEPS, strict=True):
        rows, size = _sorted(where(both, **fixed)), "{} = {}".format(*fixed, *fixed.values())
        _row(row, rows, x)
        for ax, letter, (title, words) in zip(row, letters, PANELS.items(), strict=True):
            ax.set_title(f"({letter}) {title}, {size}", size=10)
            ax.set(xlabel=over, ylabel=words)
        printed = tables.published(f"table_{number}")
        theirs, ours = epochs.breakdown(printed), where(per_epoch(both), **fixed)
        rows = _sorted(pd.concat([theirs.assign(source="paper"), ours.assign(source="here")]))
        columns.append((rows, x, f"Table {number}", f"{x} ({size})"))
    epochs.draw(below, below.subplots(1, 4).reshape(2, 2).T, columns, printed.attrs["gpu"])
    for ax in below.axes:
        ax.tick_params(axis="x", labelsize=5.5)
    return fig


def _sorted(rows):
    """Sort rows by T and 1/B, and put these into words."""
    rows = rows.sort_values(["T", "B"], ascending=[True, False], kind="stable")
    lengths = rows["T"].map(lambda T: f"{T // 1000}k" if T >= 10_000 else str(T))
    return rows.assign(**{"T": lengths, "1/B": rows["B"].map("1/{}".format)})


def _row(axes, rows, x):
    """Draw three panels: all backends' times and speedups, dotted but for the last one's, and the bars of that."""
    latency, speedup, breakdown = axes
    for backend in rows["backend"].unique():
        part, style = where(rows, backend=backend), "-" if backend == rows["backend"].iloc[-1] else ":"
        _lines(latency, part, LABELS, 1e3, style)
        _lines(speedup, part, GAINS, 1, style)
    speedup.axhline(1, color="black", lw=1.1)
    bars = [("forward", name) for name in LABELS]
    colors = {"forward": COLORS["baseline"]} | {name: COLORS[role] for name, (_, role) in LABELS.items()}
    list(epochs.draw_bars(breakdown, part, np.arange(len(part)), bars, colors))  # which draws as it yields
    for ax in axes:
        ax.set_xticks(range(len(part)), part[x], size=7)
        ax.set_xlim(-0.5, len(part) - (0.5 if ax is breakdown else 0.9))
        ax.grid(axis="x", visible=False)


def _lines(ax, rows, columns, scale, style):
    """Draw columns in the colors of their methods, with their standard deviations if known, and name solid lines."""
    places, lines = np.arange(len(rows)), {}
    for column, (name, role) in columns.items():
        spread = scale * rows[f"{column}_std"] if f"{column}_std" in rows else None
        ax.errorbar(places, scale * rows[column], spread, color=COLORS[role], marker="o", ms=4, ls=style)
        lines[name] = places, scale * rows[column], COLORS[role]
    panels.log_scale(ax, "y")
    ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
    if style == "-":
        panels.name_ends(ax, lines)


FIGURE = Figure(
    origin="timed", needs=["paper/table_4", "paper/table_5"],
    caption="""BPPSA goes back at {speedups:each speedup;}. Below 1 it is slower: it multiplies matrices where BP
    multiplies vectors, and needs many workers. It is the paper's RNN (H = 20, float32); BP is BPTT in one loop on the
    same backend. Levels (Blelloch, as in the paper) include the assembly of Jacobians; chunks need none. Medians of
    warm rounds in turns; bars at points: standard deviation. Dotted: a backend that is not the fastest. (c, f) Forward
    pass (gray) and backward pass, over BP's. Bottom: an epoch, {theirs:.3g} times as fast by BPPSA's levels on the
    V100, and {ours:.2g} times on ours. Filled: the paper's Tables 4 and 5 (baseline: cuDNN in PyTorch 1.2). Open:
    seconds per iteration times 32000 / B, on the fastest backend; baseline: BP. Compare speedups across machines, not
    seconds.""",
    alt="""Six plots, three over sequence length T and three over the fraction 1/B of the machine per sample. (a, d)
    Milliseconds of a backward pass by BP, levels and chunks. (b, e) Speedups over BP, with a line at 1:
    {speedups:each speedup;}. (c, f) Bars of forward and backward pass over the baseline's total. At the bottom, seconds
    per epoch, and speedups, over T and over 1/B. On the V100, BPPSA lies between forward pass and baseline, and its
    backward speedup rises to about 50.""",
    phrases={"speedup": "{levels:.2g}× BP's speed by levels, {chunks:.2g}× by chunks on {_}"},
    claims=[
        Claim("§5.1, Figure 7", "Training the RNN at T = 1000, B = 16 is faster overall.", "2.73× (RTX 2070)",
              "{usual[overall]:×}", lambda f: compare(f["usual"]["overall"], 2.73), gpu=True),
        Claim("§5.1, Figure 7", "Its backward pass alone, Jacobians included.", "16× (RTX 2070)",
              "{usual[backward]:×}", lambda f: compare(f["usual"]["backward"], 16), gpu=True),
        Claim("§5.1, Figure 8", "The largest backward speedup over T and B.", "108× (RTX 2080 Ti)",
              LARGEST.format("backward"), lambda f: compare(f["largest"]["backward"]["backward"], 108), gpu=True),
        Claim("§5.1, Figure 8", "The largest overall speedup over T and B.", "2.75× (RTX 2070)",
              LARGEST.format("overall"), lambda f: compare(f["largest"]["overall"]["overall"], 2.75), gpu=True),
        Claim("§5.1, Figure 8b", "The backward speedup grows with T, even where n is far beyond p.", "rises",
              "{over_T:× at T = _}", lambda f: f["over_T"].iloc[-1] > f["over_T"].iloc[0], gpu=True),
        Claim("§5.1, Figure 8e", "BPPSA scales with the share of the GPU that a sample has: as B falls.", "rises",
              "{over_B:× at B = _}", lambda f: f["over_B"].iloc[-1] > f["over_B"].iloc[0], gpu=True),
        epochs.claim(4, "at T = 10, B = 16", "4.49 s / 4.24 s: 1.06× overall, 1.09× backward"),
        epochs.claim(4, "at T = 1000, B = 16", "53.33 s / 29.29 s: 1.82× overall, 8.01× backward"),
        epochs.claim(4, "at T = 30000, B = 16", "1557.94 s / 764.31 s: 2.04× overall, 52.8× backward"),
        epochs.claim(5, "at T = 1000, B = 256", "4.02 s / 3.72 s: 1.08× overall, 1.19× backward"),
        epochs.claim(5, "at T = 1000, B = 2", "409.33 s / 227.13 s: 1.8× overall, 7.88× backward"),
        Claim("§5.1, Figure 5.1", "Training the RNN at T = 1000, B = 16 is faster overall.", "2.17× (RTX 2070)",
              "{usual[overall]:×}", lambda f: compare(f["usual"]["overall"], 2.17), gpu=True, heading=THESIS),
        Claim("§5.1, Figure 5.1", "Its backward pass alone.", "4.53× (RTX 2070)",
              "{usual[backward]:×}", lambda f: compare(f["usual"]["backward"], 4.53), gpu=True, heading=THESIS),
        Claim("§5.1, Figure 5.2", "The largest backward speedup over T and B.", "8.8× (RTX 2080 Ti)",
              LARGEST.format("backward"), lambda f: compare(f["largest"]["backward"]["backward"], 8.8), gpu=True,
              heading=THESIS),
    ],
)
