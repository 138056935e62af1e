"""Claims about sparse Jacobians and convolutional networks (Sections 3.3 to 3.5, 4.3 and 5.3)."""

from functools import partial

from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import figure_06
from bppsa_nb.papers.bppsa.table_1 import scientific
from bppsa_nb.papers.claims.claim import PAPER, Claim, compare, require, rows_of, verdict
from bppsa_nb.papers.claims.tolerance import PRINTED, ROUNDING, TIMED, TRAINED


def _sparsity(operator, printed, table):
    ours = rows_of(table, operator=operator)["sparsity"].iloc[0]
    return f"{ours:.5f}", verdict(round(ours, 5) == printed)


def _size(table):
    row = rows_of(table, operator="Convolution").iloc[0]
    ours = f"{row['dense_mib']:.0f} MiB dense, {row['values_mib']:.1f} MiB the values"
    return ours, verdict(row["dense_mib"] == 768 and round(row["values_mib"], 1) == 6.5)


def _generation(operator, theirs, table):
    row = rows_of(table, operator=operator).iloc[0]
    values, pattern = row["speedup_values"], row["speedup_pattern"]
    ours = f"{scientific(values)}, the pattern being there; {scientific(pattern)} with the pattern made anew"
    return ours, compare(values, theirs)


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
    printed = published.table("table_1").set_index("operator")
    return [
        *(Claim(PAPER, "Table 1", f"{operator}, VGG-11's first: the share of guaranteed zeros.",
                f"{sparsity}", "table_1", partial(_sparsity, operator, sparsity), PRINTED)
          for operator, sparsity in printed["sparsity"].items()),
        Claim(PAPER, "§3.3", "The first convolution's Jacobian, dense and in CSR.",
              "768 MB, 6.5 MB", "table_1", _size, PRINTED),
        *(Claim(PAPER, "Table 1", f"{operator}: analytical generation over autograd, one column at a time.",
                f"{scientific(speedup)} (Threadripper 1950X)", "table_1", partial(_generation, operator, speedup),
                TIMED, recorded_by="python benchmarks/jacobians.py")
          for operator, speedup in printed["speedup"].items()),
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)", "figure_06", partial(_largest_difference, "gradient"),
              ROUNDING),
        Claim(PAPER, "§3.5, Figure 6", "LeNet-5: per iteration, the loss curves of BPPSA and BP overlap.",
              "curves coincide (here: to 1e-5)", "figure_06", partial(_largest_difference, "loss"), ROUNDING),
        Claim(PAPER, "§4.3", "VGG-11 is about as accurate when 97 % is pruned and it is retrained as long as trained.",
              "90.1 %, 88.9 % (here: within 2 points)", "retraining", _retrained, TRAINED,
              recorded_by="bppsa-nb figures --only retraining --scale paper"),
    ]
