"""How the lead over PyTorch moves with T, B and H: draws what `benchmarks/run.py` recorded."""

from matplotlib.lines import Line2D

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.text import listed, span

TITLE = "The lead over PyTorch, over the sizes of Figures 8 and 9"
CAPTION = (
    "PyTorch's time over ours. On a CPU it has one thread or, where a step has B × H of 4096 numbers and more, all "
    "threads if that is faster, and counts subnormal numbers as zero, as compiled code here does; on a GPU it has "
    "cuDNN. Solid: the backward pass; dashed: the whole training step with forward pass, loss and Adam. Above and in "
    "the middle the RNN, over T and over B; below the GRU, on its sets of features S, M and L (T = 259, 517 and 1034) "
    "for each batch size. Medians of one run by benchmarks/run.py in which all took turns, warm. Levels (Blelloch) are "
    "absent where their Jacobians take more than 1 GB (on a GPU, 4 GB)."
)
METHODS = ("linear", "chunked", "blelloch")
BATCH, LENGTH = 16, 1000  # of the RNN, while the other varies


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("grid")


def speedups(table):
    """Divide PyTorch's best times by ours, per machine, cell, T, B, H, I and `method`.

    `backward` is the speedup of the backward pass, `step` that of the whole training step.
    """
    keys = ["machine", "cell", "T", "B", "H", "I"]
    ours = table["name"].str.startswith("ours: ")
    best = table[~ours].groupby(keys)[["backward", "step"]].min()
    ratios = table[ours].assign(method=table["name"].str.removeprefix("ours: ")).set_index(keys)
    for part in ("backward", "step"):
        ratios[part] = best[part].reindex(ratios.index) / ratios[part]
    return ratios[["method", "backward", "step"]].reset_index()


def alt(table):
    """Say what there is to see, and by how much each method leads or trails in training steps."""
    ratios = speedups(table).groupby("method")["step"]
    texts = listed([f"{span(steps)} by the method {method}" for method, steps in ratios])
    return (
        "Plots of speedup over PyTorch on a logarithmic axis, with a line at 1, in a column for each H: the RNN over "
        "sequence length, the RNN over batch size, the GRU over its sets of features and batch sizes. A solid line for "
        "the backward pass and a dashed one for the whole step, of every method. Whole steps lead by factors of "
        f"{texts}."
    )


def plot(table):
    """Draw the RNN over T and over B, and the GRU over its sets, for every H; one block for each machine."""
    ratios = speedups(table)
    sizes = sorted(ratios["H"].unique())
    fig, parts = panels.machines(ratios, 10.5, 7.4)
    for part, of_machine in parts:
        axes = part.subplots(3, len(sizes), sharey=True, squeeze=False)
        for column, H in enumerate(sizes):
            rows = of_machine[of_machine["H"] == H]
            rnn, gru = rows[rows["cell"] == "RNN"], rows[rows["cell"] == "GRU"]
            _lines(axes[0, column], rnn[rnn["B"] == BATCH].assign(place=lambda r: r["T"].map(str)), ["T"])
            _lines(axes[1, column], rnn[rnn["T"] == LENGTH].assign(place=lambda r: r["B"].map(str)), ["B"])
            _lines(axes[2, column], gru.assign(place=lambda r: r["T"].map(str) + "\n" + r["B"].map(str)), ["B", "T"])
            for ax, label in zip(axes[:, column], ("RNN, over T", "RNN, over B", "GRU, over T and B"), strict=True):
                ax.set_title(f"{label}, H = {H}", size=10)
        for ax in axes[:, 0]:
            ax.set_ylabel("PyTorch's time / ours")
        for ax in axes[2]:
            ax.set_xlabel("T, and B below it", size=8)
    handles = panels.lines({method: COLORS[method] for method in METHODS})
    handles += [Line2D([], [], color="black", ls=ls, label=label) for ls, label in (("-", "backward"), ("--", "step"))]
    panels.legend(fig, handles)
    return fig


def _lines(ax, rows, order):
    # Levels are absent at some points; all lines share the places of those that are not.
    places = {place: number for number, place in enumerate(rows.sort_values(order)["place"].unique())}
    for method in METHODS:
        part = rows[rows["method"] == method].sort_values(order)
        look = {"color": COLORS[method], "marker": "o", "ms": 3.5}
        ax.plot(part["place"].map(places), part["backward"], ls="-", **look)
        ax.plot(part["place"].map(places), part["step"], ls="--", **look)
    ax.axhline(1, color="black", lw=1)
    panels.log_scale(ax, "y", "{x:g}×")
    ax.set_xticks(list(places.values()), list(places), size=7)
    ax.grid(axis="x", visible=False)
