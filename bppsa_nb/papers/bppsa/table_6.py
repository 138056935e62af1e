"""Table 6: an epoch of the GRU benchmark on the paper's V100, and on this machine."""

from matplotlib import pyplot

from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.bppsa import epochs

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
        return epochs.measure_gru(scale, rng, progress)
    table = experiments.table("figure_09", scale, device)
    origin = table.attrs.pop("provenance")
    if provenance.machine(origin) != provenance.machine(provenance.describe("table_6", scale, 0)):
        return epochs.measure_gru(scale, rng, progress)  # a reference, of another machine
    table.attrs |= {"backend": origin["backend"], "recorded_with": "figure_09", "recorded_on": origin["date"]}
    return table


def plot(table):
    """Draw seconds per epoch and speedups over S, M and L, a column per batch size."""
    fig, axes = pyplot.subplots(2, 3, figsize=(9.4, 6), sharex=True, sharey="row", layout="constrained")
    parts, here = epochs.breakdown(table), "this machine"
    if "recorded_on" in table.attrs:
        here += f", {table.attrs['recorded_on']}"
    columns = [(parts[parts["B"] == B].sort_values("T"), "features") for B in epochs.BATCHES]
    epochs.draw(fig, axes, columns, table.attrs["machine_of_the_paper"], here)
    for column, B in zip(axes.T, epochs.BATCHES, strict=True):
        column[0].set_title(f"B = {B}")
        column[1].set_xlabel("set")
    return fig
