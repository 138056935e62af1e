"""How long the same work takes here, in PyTorch and in JAX: draws what `benchmarks/run.py` recorded."""

from bppsa_nb.papers import panels, recorded
from bppsa_nb.papers.figures import COLORS


def measure(scale, rng, progress):
    """Collect the recordings of every machine."""
    return recorded.collect("compare")


def role(name):
    """Return the color of a competitor: its method's if it is ours, gray for peers."""
    if not name.startswith("ours"):
        return COLORS["baseline"]
    return next((COLORS[method] for method in ("blelloch", "chunked", "linear") if method in name), COLORS["auto"])


def values(table):
    """Find who is the fastest and who the slowest of every comparison."""
    seconds = table.groupby(["machine", "comparison"], sort=False)["seconds"]
    first, last = (table.loc[at].reset_index(drop=True) for at in (seconds.idxmin(), seconds.idxmax()))
    ours = first["name"].str.startswith("ours")
    return {"ends": first.assign(slowest=last["name"], ratio=last["seconds"] / first["seconds"], ours=ours)}


def plot(table):
    """Draw a row of panels for each machine, a panel for each comparison."""
    across = 2
    down = lambda rows: -(-rows["comparison"].nunique() // across)  # noqa: E731
    longest = table.groupby(["machine", "comparison"]).size().max()
    fig, parts = panels.machines(table, 9.4, lambda rows: 0.5 + down(rows) * (0.7 + 0.19 * longest))
    for part, rows in parts:
        axes, comparisons = part.subplots(down(rows), across, squeeze=False).ravel(), rows["comparison"].unique()
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
    ax.set_xlim(0.93, 9 * rows["seconds_high"].max() / best)
    ax.grid(axis="y", visible=False)
