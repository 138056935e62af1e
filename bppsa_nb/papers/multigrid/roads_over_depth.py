"""Four ways to train in parallel, over depth and workers: time, critical path, work, memory and error of each."""

from matplotlib import pyplot

from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.multigrid import methods
from bppsa_nb.papers.tables import where
from bppsa_nb.schedule import events as timeline

DEPTHS = {"quick": (64, 256, 1024), "paper": (64, 256, 1024, 4096)}
WORKERS = {"quick": (1, 4, 16, 64, 256), "paper": (1, 4, 16, 64, 256, 1024)}
CYCLES, WIDTHS, BATCHES = (1, 2, 4), (2, 8, 32), (4, 32)
WIDTH, BATCH = 8, 32
STYLES = {
    "pipeline 32": ("pipeline, 32 samples", COLORS["pipeline"], "s-"),
    "pipeline 4": ("pipeline, 4 samples", COLORS["pipeline"], "s:"),
    "multigrid 1": ("multigrid, 1 cycle", COLORS["multigrid"], "o-"),
    "multigrid 2": ("multigrid, 2 cycles", COLORS["multigrid"], "o--"),
    "multigrid 4": ("multigrid, 4 cycles", COLORS["multigrid"], "o:"),
    "scan 2": ("scan, q = 2", COLORS["blelloch"], "^:"),
    "scan 8": ("scan, q = 8", COLORS["blelloch"], "^-"),
    "scan 32": ("scan, q = 32", COLORS["blelloch"], "^--"),
    "serial": ("back-propagation", COLORS["linear"], "-"),
}
STARTS = {
    "layers": ("first state on all layers", COLORS["multigrid"], "o"),
    "skip": ("skip_downcycle", COLORS["chunked"], "v"),
    "nested": ("nested iteration", COLORS["truncated"], "D"),
}


def measure(scale, rng, progress):
    """Schedule every method at every depth on every number of workers, and measure errors: one row each."""
    points = [{"depth": depth, "workers": None} for depth in DEPTHS[scale]]
    points += [{"depth": n, "workers": p} for n in DEPTHS[scale] for p in WORKERS[scale] if p <= n]
    return progress.collect(points, _measure_point, rng)


def _measure_point(point, rng):
    depth, workers = point["depth"], point["workers"]
    if workers is None:
        errors = methods.errors(depth, WIDTH, BATCH, CYCLES, rng)
        return [{"part": "error", "start": start, "cycles": k, "error": error} for (start, k), error in errors.items()]
    steps = {"serial": methods.pipeline(depth, workers)}
    steps |= {f"pipeline {b}": methods.pipeline(depth, workers, methods.best_split(depth, workers, b)) for b in BATCHES}
    steps |= {f"scan {q}": methods.scan(depth, workers, q) for q in WIDTHS}
    rows = [_row(name, step, depth) for name, step in steps.items()]
    for start in STARTS:
        for k in CYCLES:
            step = methods.layer_parallel(depth, workers, k, start)
            rows.append(_row(f"multigrid {k}", step, depth) | {"start": start, "cycles": k})
    return rows


def _row(name, step, depth):
    timeline.check(step.events, step.needs)
    row = {"part": "road", "road": name, "time": step.time, "speedup": 3 * depth / step.time, "steps": step.steps}
    if not name.startswith("pipeline"):  # whose passes overlap
        row |= {"backward": step.backward, "backward_speedup": 2 * depth / step.backward}
    return row | {"work": step.work / (3 * depth), "memory": step.memory}


def with_errors(table):
    """Join what was counted with what was measured: a row per method, depth and number of workers.

    The gradient's error is zero for back-propagation and pipelines, which do the same sums.
    """
    counted = table[table["part"] == "road"].drop(columns="error").astype({"workers": int})
    counted["start"] = counted["start"].fillna("-")
    counted.loc[counted["road"].str.startswith("scan"), "start"] = "scan"
    counted["cycles"] = counted["cycles"].fillna(0)
    measured = table.loc[table["part"] == "error", ["depth", "start", "cycles", "error"]]
    joined = counted.merge(measured, how="left", on=["depth", "start", "cycles"])
    return joined.assign(error=joined["error"].fillna(0.0))


def values(table):
    """Return what words need beside the table: the rows of some methods at the largest depth on the most workers."""
    joined = with_errors(table)
    depths = sorted(joined["depth"].unique())[-3:]
    rows = where(joined, workers=joined["workers"].max(), depth=depths[-1])
    rows = rows[rows["start"].isin(("-", "scan", "layers"))].set_index("road")
    whole = ["pipeline 32", "pipeline 4", "multigrid 1", "multigrid 2", "scan 8"]
    backward = ["scan 2", "scan 8", "scan 32", "multigrid 1", "multigrid 2"]
    return {"deepest": depths, "whole": rows.loc[whole].reset_index(), "backward": rows.loc[backward].reset_index()}


def plot(table):
    """Draw speedups over workers for every depth, the backward pass, errors, and critical paths over depth."""
    joined = with_errors(table)
    depths, most = sorted(joined["depth"].unique())[-3:], joined["workers"].max()
    shown = joined[joined["start"].isin(("-", "scan", "layers"))]
    fig = pyplot.figure(figsize=(10.4, 7.6), layout="constrained")
    axes = fig.subplot_mosaic([[f"N{depth}" for depth in depths], ["backward", "error", "steps"]])
    for depth in depths:
        rows = where(shown, depth=depth)
        names = [name for name in STYLES if name not in ("scan 2", "scan 32", "multigrid 4")]
        _draw_speedup(axes[f"N{depth}"], rows, names, "speedup")
        axes[f"N{depth}"].set(title=f"{depth:,} layers", ylim=(0.15, 50), xlim=(0.8, 1.25 * most))
    axes[f"N{depths[0]}"].set_ylabel("speedup, whole step")
    names = ["multigrid 1", "multigrid 2", "scan 2", "scan 8", "scan 32", "serial"]
    _draw_speedup(axes["backward"], where(shown, depth=depths[-1]), names, "backward_speedup")
    axes["backward"].set(title=f"Backward alone, {depths[-1]:,} layers", ylabel="speedup, backward pass")
    _draw_errors(axes["error"], where(joined, depth=depths[-1], workers=most))
    _draw_steps(axes["steps"], shown)
    handles = [pyplot.plot([], [], style, color=color, ms=4, label=label)[0] for label, color, style in STYLES.values()]
    panels.legend(fig, handles, ncols=5)
    return fig


def _draw_lines(ax, rows, names, across, quantity):
    for name in names:
        part = rows[rows["road"] == name]
        _, color, style = STYLES[name]
        ax.plot(part[across], part[quantity], style, color=color, ms=4)


def _draw_speedup(ax, rows, names, quantity):
    _draw_lines(ax, rows, names, "workers", quantity)
    ax.axhline(1, color="black", lw=0.8)
    panels.log_scale(ax)
    ax.set_xlabel("workers")


def _draw_errors(ax, rows):
    multigrid = rows[rows["road"].str.startswith("multigrid")]
    for start, (words, color, marker) in STARTS.items():
        part = multigrid[multigrid["start"] == start].sort_values("cycles")
        ax.plot(part["speedup"], part["error"], marker + "-", color=color, ms=5, lw=1.0, label=words)
        for _, row in part.iterrows():
            where = {"textcoords": "offset points", "xytext": (5, 2), "size": 8, "color": color}
            ax.annotate(f"{row['cycles']:.0f}", (row["speedup"], row["error"]), **where)
    ax.set(yscale="log", xlabel="speedup, whole step", ylabel="error of the gradient, relative")
    ax.set_title(f"Accuracy, {rows['workers'].max():,} workers")
    ax.legend(loc="lower right", fontsize=8)


def _draw_steps(ax, rows):
    steps = rows[rows["workers"] == rows["workers"].min()]
    _draw_lines(ax, steps, ("serial", "scan 8", "multigrid 1", "multigrid 2", "multigrid 4"), "depth", "steps")
    panels.log_scale(ax, shown="{x:,.0f}", ticks=sorted(rows["depth"].unique()))
    ax.set(xlabel="layers", ylabel="steps that wait for each other", title="Critical path")
