"""How the lead over PyTorch moves with T, B and H: draws what `benchmarks/run.py` recorded."""

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

METHODS = ("linear", "chunked", "blelloch")
BATCH, LENGTH = 16, 1000  # of the RNN, while the other varies


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("grid")


def speedups(table):
    """Divide PyTorch's best times by ours, per machine, cell, T, B, H, I and `method`: `backward` and `step`."""
    keys = ["machine", "cell", "T", "B", "H", "I"]
    ours = table["name"].str.startswith("ours: ")
    best = table[~ours].groupby(keys)[["backward", "step"]].min()
    ratios = table[ours].assign(method=table["name"].str.removeprefix("ours: ")).set_index(keys)
    for part in ("backward", "step"):
        ratios[part] = best[part].reindex(ratios.index) / ratios[part]
    return ratios[["method", "backward", "step"]].reset_index()


def plot(table):
    """Draw the RNN over T and over B, and the GRU over its sets, for every H; a row for each H of a machine."""
    ratios = speedups(table)
    fig, parts = panels.machines(ratios, 10.5, lambda rows: 0.4 + 2.35 * rows["H"].nunique())
    for part, of_machine in parts:
        sizes = sorted(of_machine["H"].unique())
        axes = part.subplots(len(sizes), 3, sharey=True, squeeze=False)
        for row, H in zip(axes, sizes, strict=True):
            rows = of_machine[of_machine["H"] == H]
            rnn, gru = rows[rows["cell"] == "RNN"], rows[rows["cell"] == "GRU"]
            _lines(row[0], rnn[rnn["B"] == BATCH].assign(place=lambda r: r["T"].map(str)), ["T"])
            _lines(row[1], rnn[rnn["T"] == LENGTH].assign(place=lambda r: r["B"].map(str)), ["B"])
            _lines(row[2], gru.assign(place=lambda r: r["T"].map(str) + "\n" + r["B"].map(str)), ["B", "T"])
            for ax, label in zip(row, ("RNN, over T", "RNN, over B", "GRU, over T and B"), strict=True):
                ax.set_title(f"{label}, H = {H}", size=10)
            row[0].set_ylabel("PyTorch's time / ours")
            row[2].set_xlabel("T, and B below it", size=8)
    handles = panels.lines({method: COLORS[method] for method in METHODS} | {"backward": "black"})
    panels.legend(fig, handles + panels.lines({"step": "black"}, ls="--"))
    return fig


def _lines(ax, rows, order):
    # Levels are absent at some points; all lines share the places of those that are not.
    places = {place: number for number, place in enumerate(rows.sort_values(order)["place"].unique())}
    for method in METHODS:
        part = rows[rows["method"] == method].sort_values(order)
        style = {"color": COLORS[method], "marker": "o", "ms": 3.5}
        ax.plot(part["place"].map(places), part["backward"], ls="-", **style)
        ax.plot(part["place"].map(places), part["step"], ls="--", **style)
    ax.axhline(1, color="black", lw=1)
    panels.log_scale(ax, "y", "{x:g}×", ticks=(0.1, 1, 10, 100))
    ax.set_xticks(list(places.values()), list(places), size=7)
    ax.grid(axis="x", visible=False)
