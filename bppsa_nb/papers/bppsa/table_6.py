"""Table 6: an epoch of the GRU benchmark on the paper's V100, and on this machine."""

from matplotlib import pyplot

from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.bppsa import epochs


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


values = epochs.sources


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
