"""The lead over PyTorch, over the sizes of Figures 8 and 9."""

from bppsa_nb.papers import experiments, panels
from bppsa_nb.papers.experiment import COLORS, Figure, where

METHODS = ("linear", "chunked", "blelloch")


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return experiments.collect("grid")


def speedups(table):
    """Divide PyTorch's best times by ours, per machine, cell, T, B, H, I and `method`: `backward` and `step`."""
    keys = ["machine", "cell", "T", "B", "H", "I"]
    ours = table["name"].str.startswith("ours: ")
    best = table[~ours].groupby(keys)[["backward", "step"]].min()
    ratios = table[ours].assign(method=table["name"].str.removeprefix("ours: ")).set_index(keys)
    for part in ("backward", "step"):
        ratios[part] = best[part].reindex(ratios.index) / ratios[part]
    return ratios[["method", "backward", "step"]].reset_index()


def facts(table):
    """Return the lead of whole steps by every method."""
    return {"lead": dict(iter(speedups(table).groupby("method", sort=False)["step"]))}


def plot(table):
    fig, parts = panels.machines(speedups(table), 10.5, lambda rows: 0.4 + 2.35 * rows["H"].nunique())
    for part, of_machine in parts:
        sizes = sorted(of_machine["H"].unique())
        axes = part.subplots(len(sizes), 3, sharey=True, squeeze=False)
        for row, H in zip(axes, sizes, strict=True):
            rows = where(of_machine, H=H)
            rnn = where(rows, cell="RNN")
            _lines(row[0], where(rnn, B=16), ["T"])
            _lines(row[1], where(rnn, T=1000), ["B"])
            _lines(row[2], where(rows, cell="GRU"), ["B", "T"])
            for ax, label in zip(row, ("RNN, over T", "RNN, over B", "GRU, over T and B"), strict=True):
                ax.set_title(f"{label}, H = {H}", size=10)
            row[0].set_ylabel("PyTorch's time / ours")
            row[2].set_xlabel("T, and B below it", size=8)
    handles = panels.lines({method: COLORS[method] for method in METHODS} | {"backward": "black"})
    panels.legend(fig, handles + panels.lines({"step": "black"}, ls="--"))
    return fig


def _lines(ax, rows, order):
    # Levels are absent at some points; all lines share the places of those that are not.
    rows = rows.sort_values(order)
    rows["place"] = rows.groupby(order).ngroup()
    styles = {method: {"color": COLORS[method]} for method in METHODS}
    for part, line in (("backward", "-"), ("step", "--")):
        panels.curves(ax, rows, "place", part, "method", styles, marker="o", ms=3.5, ls=line)
    ax.axhline(1, color="black", lw=1)
    panels.log_scale(ax, "y", "{x:g}×", ticks=(0.1, 1, 10, 100))
    names = rows.drop_duplicates("place")[order[::-1]].astype(str).agg("\n".join, axis=1)
    ax.set_xticks(range(len(names)), names, size=7)
    ax.grid(axis="x", visible=False)


FIGURE = Figure(
    origin="collected", needs=["grid.paper"],
    caption="""A whole training step takes PyTorch {lead:.3g (method _)} times as long as ours. Solid lines are the
    backward pass. Dashed lines are the whole step, with forward pass, loss and Adam. PyTorch has one thread; from B × H
    = 4096 on, the better of one and all. On a GPU it runs cuDNN, by CUDA graphs where these are faster. Levels are
    missing where Jacobians take more than 1 GB (GPU: 4 GB).""",
    alt="""Lines of speedup over PyTorch on a logarithmic axis, a row for each machine and H: the RNN over sequence
    length and over batch size, the GRU over its feature sets. Whole steps (dashed) take PyTorch {lead:.3g (method _)}
    times as long as ours; solid: backward passes.""",
)
