"""Claims about sparse Jacobians and convolutional networks (Sections 3.3 to 3.5, 4.3 and 5.3)."""

from functools import partial

from bppsa_nb.papers.bppsa import figure_06
from bppsa_nb.papers.claims.claim import PAPER, Claim, verdict
from bppsa_nb.papers.claims.tolerance import ROUNDING


def _largest_difference(quantity, table):
    if quantity == "loss" and table.attrs["provenance"]["scale"] != "quick":
        raise LookupError  # in thousands of iterations, rounding decides, as it does between two runs of BP
    largest = figure_06.differences(table)[quantity].max()
    ours = f"{largest:.1e} at most, in {table['iteration'].nunique()} iterations of batches of {table['B'].max()}"
    return ours, verdict(largest <= figure_06.LIMIT)


def claims():
    """List them, in the order of the report."""
    return [
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)", "figure_06", partial(_largest_difference, "gradient"),
              ROUNDING),
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: per iteration, the loss curves of BPPSA and BP overlap.",
              "curves coincide (here: to 1e-5)", "figure_06", partial(_largest_difference, "loss"), ROUNDING),
    ]
