"""How long the same work takes here, in PyTorch and in JAX: draws what `benchmarks/run.py` recorded."""

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS

TITLE = "The same work here, in PyTorch and in JAX"
CAPTION = (
    "Medians of one run by benchmarks/run.py in which all took turns, warm, with whatever a method must prepare; lines "
    "at the ends: quartiles. A bar is how many times as long as the fastest one of its panel takes. Training steps are "
    "forward pass, loss, backward pass and Adam. PyTorch with flush_denormal counts subnormal numbers as zero, as "
    "compiled code here does. All in float32, H = 20; B = 16, or a single sample; T = 1000 for the chain and the "
    "RNN, 30,000 where samples are long, 259 for the GRU, 1034 in its set L."
)


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("compare")


def role(name):
    """Return the color of a competitor: its method's if it is ours, gray for peers."""
    if not name.startswith("ours"):
        return COLORS["baseline"]
    methods = [method for method in ("blelloch", "chunked", "linear") if method in name]
    return COLORS[methods[0]] if methods else COLORS["identity"]


def alt(table):
    """Say what there is to see, and who is the fastest and the slowest."""
    texts = []
    for (_, comparison), rows in table.groupby(["machine", "comparison"], sort=False):
        times = rows.set_index("name")["seconds"].sort_values()
        ratio = times.iloc[-1] / times.iloc[0]
        first, last = times.index[0], times.index[-1]
        texts.append(f"{comparison}: “{first}” is the fastest, “{last}” takes {ratio:.2g} times as long")
    return (
        "For each machine, one panel of horizontal bars for each comparison: gradients of a dense chain, and training "
        f"steps of the RNN, on long samples, too, and of the GRU on two sets of features. {'. '.join(texts)}."
    )


def plot(table):
    """Draw a row of panels for each machine, a panel for each comparison."""
    comparisons, across = table["comparison"].unique(), 2
    down = -(-len(comparisons) // across)
    longest = table.groupby(["machine", "comparison"]).size().max()
    fig, parts = panels.machines(table, 11, 0.5 + down * (0.75 + 0.21 * longest))
    for part, rows in parts:
        axes = part.subplots(down, across, squeeze=False).ravel()
        for ax, comparison in zip(axes, comparisons, strict=False):
            _bars(ax, rows[rows["comparison"] == comparison])
            ax.set_title(comparison, size=10)
        for ax in axes[len(comparisons) :]:
            ax.axis("off")
    return fig


def _bars(ax, rows):
    rows = rows.sort_values("seconds", ascending=False)
    best = rows["seconds"].min()
    for place, row in enumerate(rows.to_dict("records")):
        ratio, low, high = (row[key] / best for key in ("seconds", "seconds_low", "seconds_high"))
        ax.barh(place, ratio - 0.93, left=0.93, height=0.72, color=role(row["name"]), lw=0)
        ax.plot([low, high], [place, place], color="black", lw=1)
        milli = float(f"{1e3 * row['seconds']:.3g}")
        text = f"{milli:,g} ms" + (f", {ratio:.3g}×" if ratio > 1 else "")
        ax.text(1.06 * max(high, ratio), place, text, va="center", size=8)
    ax.set_yticks(range(len(rows)), rows["name"], size=8)
    panels.log_scale(ax, "x", "{x:g}×")
    ax.set_xlim(0.93, 5 * rows["seconds_high"].max() / best)
    ax.grid(axis="y", visible=False)
