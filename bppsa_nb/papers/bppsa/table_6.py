"""Table 6: an epoch of the GRU benchmark on the paper's V100, and on this machine."""

from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.bppsa import figure_09
from bppsa_nb.papers.figures import COLORS

TITLE = "Table 6: an epoch of the GRU on the paper's V100, and here"
CAPTION = (
    "Filled: the paper's Table 6 (NVIDIA V100, PyTorch 1.2 with cuDNN as baseline). Open: this machine, its seconds "
    "per iteration times 6705 / B, on features of the same sizes drawn at random, BPTT on the same backend as "
    "baseline. Seconds do not compare across machines; the speedups, each within one machine, do. The backward "
    "speedup excludes the overhead of computing Jacobians; for M at B = 64 the printed times are 0.02 ± 0.02 s apart,"
    " too little to divide by."
)
ALT = (
    "Six plots over the sets S, M and L, for batches of 16, 32 and 64. Above, seconds per epoch of the forward pass, "
    "the forward pass with overhead, the baseline and BPPSA: on the V100, BPPSA lies between overhead and baseline; "
    "this machine's marks stand beside them. Below, speedups of BPPSA with a line at 1: the V100's overall speedup is "
    "between 1.2 and 1.7, its backward speedup rises from S to L; this machine's are drawn beside them."
)


def measure(scale, rng, progress):
    """Take what Figure 9 recorded on this machine, as the numbers are the same; without a recording, measure them."""
    device = provenance.device()
    if (device, scale) not in experiments.recordings("figure_09"):
        return figure_09.measure(scale, rng, progress)
    table = experiments.table("figure_09", scale, device)
    origin = table.attrs.pop("provenance")
    if provenance.machine(origin) != provenance.machine(provenance.describe("table_6", scale, 0)):
        return figure_09.measure(scale, rng, progress)  # a reference, of another machine
    table.attrs |= {"backend": origin["backend"], "recorded_with": "figure_09", "recorded_on": origin["date"]}
    return table


def plot(table):
    """Draw seconds per epoch and speedups over S, M and L, a column per batch size."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    fig, axes = pyplot.subplots(2, 3, figsize=(9.4, 6), sharex=True, sharey="row", layout="constrained")
    table = figure_09.breakdown(table)
    seconds = {
        "forward": ("forward pass", "baseline"),
        "forward_overhead": ("with overhead", "vector"),
        "baseline": ("baseline", "linear"),
        "bppsa": ("BPPSA", "blelloch"),
    }
    ratios = {"overall": ("overall", "identity"), "backward": ("backward pass", "truncated")}
    looks = {
        "paper": {"marker": "o", "ms": 4.5, "lw": 1.5},
        "here": {"marker": "s", "ms": 5.5, "lw": 1.5, "fillstyle": "none", "ls": "--"},
    }
    for column, B in zip(axes.T, figure_09.BATCHES, strict=True):
        for source, look in looks.items():
            rows = table[(table["B"] == B) & (table["source"] == source)].sort_values("T")
            for ax, curves in zip(column, (seconds, ratios), strict=True):
                for quantity, (_, role) in curves.items():
                    ax.plot(rows["features"], rows[quantity], color=COLORS[role], **look)
        column[0].set_title(f"B = {B}")
        column[1].axhline(1, color="black", lw=1.1)
        column[1].set_xlabel("set")
    for ax, quantity in zip(axes[:, 0], ("seconds per epoch", "speedup of BPPSA"), strict=True):
        ax.set(yscale="log", ylabel=quantity)
        ax.yaxis.set_major_formatter("{x:g}")
    machines = {"paper": f"{table.attrs['machine_of_the_paper']} (paper)", "here": "this machine"}
    if "recorded_on" in table.attrs:
        machines["here"] += f", {table.attrs['recorded_on']}"
    handles = [Line2D([], [], color=COLORS[role], label=words) for words, role in (seconds | ratios).values()]
    handles += [Line2D([], [], color="black", label=machines[source], **look) for source, look in looks.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=4)
    return fig
