"""Claims about sparse Jacobians and convolutional networks (Sections 3.3 to 3.5, 4.3 and 5.3)."""

from functools import partial

from bppsa_nb.papers.bppsa import figure_06
from bppsa_nb.papers.claims.claim import PAPER, Claim, require, verdict
from bppsa_nb.papers.claims.tolerance import ROUNDING, TRAINED


def _largest_difference(quantity, table):
    if quantity == "loss" and table.attrs["provenance"]["scale"] != "quick":
        raise LookupError  # in thousands of iterations, rounding decides, as it does between two runs of BP
    largest = figure_06.differences(table)[quantity].max()
    ours = f"{largest:.1e} at most, in {table['iteration'].nunique()} iterations of batches of {table['B'].max()}"
    return ours, verdict(largest <= figure_06.LIMIT)


def _retrained(table):
    rows = require(table[(table["network"] == "VGG11") & (table["stage"] != "pruned")])
    accuracy = rows.groupby("stage")["accuracy"].agg(["mean", "min", "max"])
    (before, after), each = accuracy["mean"][["trained", "retrained"]], {}
    for stage, row in accuracy.iterrows():
        each[stage] = f" ({row['min']:.1%} to {row['max']:.1%} over seeds)" if row["max"] > row["min"] else ""
    ours = f"{before:.1%}{each['trained']}, {after:.1%}{each['retrained']} after pruning {rows['rate'].max():.0%} and "
    return f"{ours}as many iterations again", verdict(after >= before - 0.02)


def claims():
    """List them, in the order of the report."""
    return [
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)", "figure_06", partial(_largest_difference, "gradient"),
              ROUNDING),
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: per iteration, the loss curves of BPPSA and BP overlap.",
              "curves coincide (here: to 1e-5)", "figure_06", partial(_largest_difference, "loss"), ROUNDING),
        Claim(PAPER, "§4.3", "VGG-11 is about as accurate when 97 % is pruned and it is retrained as long as trained.",
              "90.1 %, 88.9 % (here: within 2 points)", "retraining", _retrained, TRAINED,
              recorded_by="bppsa-nb figures --only retraining --scale paper"),
    ]
