"""Roads to parallel depth: one step of training by back-propagation, pipeline, multigrid and scan."""

from functools import partial

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.multigrid import methods
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline

DEPTH, WORKERS, WIDTH, BATCH = 128, 16, 8, 32
DEPTHS = {"quick": (64, 256, 1024), "paper": (64, 256, 1024, 4096)}
MORE_WORKERS = {"quick": (1, 4, 16, 64, 256), "paper": (1, 4, 16, 64, 256, 1024)}
KINDS = draw.OPERATION_COLORS | {"F coarse": "#0072B2", "δO coarse": "#D55E00", "J": "#CC79A7"}
NAMES = {  # timeline, time and worker at which a kind is named
    "F": ("forward F", 0, 50, 3),
    "δO": ("backward δO", 0, 170, 5),
    "δW": ("weight gradient δW", 0, 215, 12),
    "F coarse": ("coarse levels,\nforward", 2, 128, 4),
    "δO coarse": ("coarse levels,\nbackward", 2, 170, 4),
    "J": ("Jacobians made,\nmultiplied", 4, 232, 4),
}
COUNTS = {"steps": "steps in\na row", "work": "times\nthe work", "memory": "memory,\nstates"}
WAYS = {  # how a step is scheduled on so many layers and workers; a color's role, a marker, a dash
    "pipeline, 32 samples": (partial(methods.pipeline, micro_batches=32), "pipeline", "s", "-"),
    "pipeline, 4 samples": (partial(methods.pipeline, micro_batches=4), "pipeline", "s", ":"),
    "multigrid, 1 cycle": (partial(methods.layer_parallel, cycles=1), "multigrid", "o", "-"),
    "multigrid, 2 cycles": (partial(methods.layer_parallel, cycles=2), "multigrid", "o", "--"),
    "scan, q = 2": (partial(methods.scan, width=2), "blelloch", "^", ":"),
    "scan, q = 8": (partial(methods.scan, width=8), "blelloch", "^", "-"),
    "scan, q = 32": (partial(methods.scan, width=32), "blelloch", "^", "--"),
    "back-propagation": (methods.pipeline, "linear", "", "-"),
}


def measure(scale, rng, progress):
    """Schedule all methods: a row for each and one per event; then over depth, and on more workers: a row each."""
    error = methods.errors(DEPTH, WIDTH, BATCH, (1, 2), rng)
    chosen = {
        "Back-propagation, layers on 16 workers": (methods.pipeline(DEPTH, WORKERS), 0.0),
        f"Pipeline of {BATCH} micro-batches": (methods.pipeline(DEPTH, WORKERS, BATCH), 0.0),
        "Multigrid, 1 cycle": (methods.layer_parallel(DEPTH, WORKERS, 1), error[1]),
        "Multigrid, 2 cycles": (methods.layer_parallel(DEPTH, WORKERS, 2), error[2]),
        "Scan of Jacobians": (methods.scan(DEPTH, WORKERS, WIDTH), error["scan"]),
    }
    rows = []
    for name, (step, off) in chosen.items():
        timeline.check(step.events, step.needs)
        counts = {"time": step.time, "backward": step.backward, "steps": step.steps}
        counts |= {"work": step.work / (3 * DEPTH), "memory": step.memory, "error": off}
        rows.append({"part": "road", "road": name} | counts)
        drawn = [event for event in step.events if event.worker < WORKERS and event.duration]
        rows += [{"part": "event", "road": name} | event._asdict() | {"label": "-"} for event in drawn]
    *depths, deepest = DEPTHS[scale]
    points = [{"depth": depth, "workers": 1} for depth in depths]
    points += [{"depth": deepest, "workers": workers} for workers in MORE_WORKERS[scale]]
    return pd.concat([pd.DataFrame(rows), progress.collect(points, _schedule, rng)], ignore_index=True)


def _schedule(point, rng):
    depth, rows = point["depth"], []
    for name, (way, *_) in WAYS.items():
        step = way(**point)
        timeline.check(step.events, step.needs)
        row = {"part": "over depth", "road": name, "speedup": 3 * depth / step.time, "steps": step.steps}
        if not name.startswith("pipeline"):  # whose passes overlap
            row["backward_speedup"] = 2 * depth / step.backward
        rows.append(row)
    return rows


def facts(table):
    """Tell when all is done and how far off gradients are; what most workers gain; and steps in a row, by depth."""
    roads, over = where(table, part="road").set_index("road"), where(table, part="over depth")
    most = where(over, workers=over["workers"].max()).set_index("road")
    return {
        "time": roads["time"], "error": roads["error"], "workers": int(over["workers"].max()),
        "depth": int(over["depth"].max()), "whole": most.drop(["back-propagation", "scan, q = 2", "scan, q = 32"]),
        "backward": most.drop(["back-propagation", "pipeline, 32 samples", "pipeline, 4 samples"]),
        "steps": where(over, road="multigrid, 2 cycles", workers=1).astype({"depth": int}).set_index("depth")["steps"],
    }


def plot(table):
    counts = where(table, part="road").set_index("road")
    events = where(table, part="event").astype({"worker": int})
    fig = pyplot.figure(figsize=(10.4, 11.2), layout="constrained")
    grid = fig.add_gridspec(len(counts) + 1, 3, height_ratios=[*[1] * len(counts), 2])
    axes = [fig.add_subplot(grid[row, :]) for row in range(len(counts))]
    style = {"colors": KINDS, "unit": "", "until": 1.02 * counts["time"].max(), "legend": False}
    for ax, (name, road) in zip(axes, counts.iterrows(), strict=True):
        draw.timeline(timelines.events(where(events, road=name), label=""), ax, **style)
        ax.set_yticks([])
        ax.axvline(road["time"], color="black", lw=1.0)
        off = "exact" if road["error"] < 1e-12 else f"off by {100 * road['error']:.1g} %"
        ax.set_title(f"{name}: done at {road['time']:.1f}, gradient {off}", loc="left", size=10)
        for place, (count, words) in enumerate(COUNTS.items()):
            column = {"transform": ax.transAxes, "ha": "center", "size": 9.5}
            ax.text(1.05 + 0.09 * place, 0.4, f"{road[count]:.{2 if road[count] < 10 else 3}g}", **column)
            if ax is axes[0]:
                ax.text(1.05 + 0.09 * place, 1.06, words, **column)
    for kind, (words, row, time, worker) in NAMES.items():
        axes[row].text(time, worker, words, color=KINDS[kind], weight="bold", size=9.5, va="center")
    pyplot.setp(axes[:-1], xticklabels=[])
    axes[-1].set_xlabel(f"time in layer steps; on one worker, the step takes {3 * DEPTH}")
    below = [fig.add_subplot(grid[-1, column]) for column in range(3)]
    _draw_more(below, where(table, part="over depth"))
    below[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return fig


def _draw_more(axes, rows):
    """Draw speedups of the deepest network over workers, and the critical path over depth."""
    deepest = where(rows, depth=rows["depth"].max())
    path = where(rows, workers=1)
    styles = {
        name: {"color": COLORS[role], "marker": mark, "ls": dash, "label": name}
        for name, (_, role, mark, dash) in WAYS.items()
    }
    panels.curves(axes[0], deepest, "workers", "speedup", "road", styles, ms=4)
    panels.curves(axes[1], deepest, "workers", "backward_speedup", "road", styles, ms=4)
    panels.curves(axes[2], path, "depth", "steps", "road", styles, ms=4)
    for ax, across in zip(axes, (deepest["workers"], deepest["workers"], path["depth"]), strict=True):
        panels.log_scale(ax, shown="{x:,g}", ticks=across.unique())
        ax.set_xlabel(across.name)
    axes[0].set(title=f"{deepest['depth'].iloc[0]:,.0f} layers, whole step", ylabel="speedup")
    axes[1].set(title="Backward pass alone", ylabel="speedup")
    axes[2].set(title="Critical path", xlabel="layers", ylabel="steps that wait for each other")


FIGURE = Figure(
    origin="rounding",
    phrases={"whole": "{_}: {speedup:.2g}", "backward": "{_}: {backward_speedup:.2g}"},
    caption="""On 16 workers a pipeline ends first, but needs a batch to split. Multigrid needs nothing but workers, and
    is approximate. The scan is exact, but cannot go forward; it multiplies Jacobians, 8 layer steps each, already while
    the forward pass goes on. Above, a lane is a worker, with 8 of 128 dense residual layers of 8 units, and a batch of
    32 samples, scheduled by the code that runs. A layer step (a batch times one layer's weights) takes 1, a message
    0.25, and 0.25 for a batch of states. Work is relative to one worker's 384 layer steps. Memory: states, gradients
    and Jacobians on the fullest worker, in states of the batch. The error is that of the parameters' gradient on a
    random network with tanh and T = 1. Coarse blocks of multigrid reach over several workers, which MPI ranks refuse.
    Below, with the same costs, on {workers:,} workers one step of training of {depth:,} layers is this many times as
    fast as on one: {whole:each whole;}. Left, this speedup; middle, that of the backward pass alone, with Jacobians;
    pipelines split the batch into single samples. Right, steps or products that wait for each other, with unlimited
    workers and free messages. Layers have 8 units unless a width q is given.""",
    alt="""Five timelines of 16 workers on one axis of time. A pipeline of 32 micro-batches is a dense block that ends
    first, at {time[Pipeline of 32 micro-batches]:.1f} layer steps. Multigrid with one cycle has all workers busy at
    once, fewer on coarser levels, forward and then backward. It ends at {time[Multigrid, 1 cycle]:.1f} with a gradient
    off by {error[Multigrid, 1 cycle]:.1g percent}; with two cycles at {time[Multigrid, 2 cycles]:.1f}, off by
    {error[Multigrid, 2 cycles]:.1g percent}. The scan goes forward as a staircase, multiplies Jacobians behind it, and
    ends at {time[Scan of Jacobians]:.1f} with the exact gradient. Back-propagation, one worker at a time, ends last, at
    {time[Back-propagation, layers on 16 workers]:g}. Below, three plots. Left and middle, speedup over workers, on
    logarithmic axes; of the backward pass alone it is, on most workers: {backward:each backward;}. Right, the critical
    path over depth: with each fourfold depth, the scan's and back-propagation's grow fourfold, multigrid's by as many
    steps.""",
    claims=[
        Claim("§I, §IV-A", "Given enough resources, time does not depend on the number of layers.",
              "“constant asymptotic execution time”", "two cycles forward and backward, steps in a row: {steps: at _} "
              "layers; it grows with the logarithm of depth", lambda f: f["steps"].nunique() == 1, "printed"),
    ],
)
