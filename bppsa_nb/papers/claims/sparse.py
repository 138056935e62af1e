"""Claims about sparse Jacobians and convolutional networks (Sections 3.3 to 3.5, 4.3 and 5.3)."""

from functools import partial

from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import planned_products
from bppsa_nb.papers.bppsa.table_1 import scientific
from bppsa_nb.papers.claims.claim import PAPER, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import PRINTED, TIMED, TRAINED


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


def _planned(table):
    sums = planned_products.levels(table)
    ratios = require(sums)["scipy"] / sums["planned"]
    few = sums["scipy_nonzero"] / sums["planned"]
    by_level = [f"level {level:.0f}: {times(ratios[level])} ({times(few[level])})" for level in sums.index]
    ours = f"over SciPy (over SciPy without the sample's zeros): {', '.join(by_level)}"
    return ours, verdict(ratios.min() > 1)


def _similar_steps(table):
    costliest = table.groupby("storage")["multiply_adds"].max()
    stored, planned, baseline = (costliest[storage] / 1e6 for storage in ("maxima", "planned", "BP"))
    ours = f"costliest step {stored:.0f} M multiply-adds, BP's costliest {baseline:.0f} M; {planned:.0f} M with a "
    return ours + "pattern that holds for all images", verdict(stored <= 2 * baseline)


def _retrained(table):
    rows = require(table[(table["network"] == "VGG11") & (table["stage"] != "pruned")])
    accuracy = rows.groupby("stage")["accuracy"].agg(["mean", "min", "max"])
    (before, after), each = accuracy["mean"][["trained", "retrained"]], {}
    for stage, row in accuracy.iterrows():
        each[stage] = f" ({row['min']:.1%} to {row['max']:.1%} over seeds)" if row["max"] > row["min"] else ""
    ours = f"{before:.1%}{each['trained']}, {after:.1%}{each['retrained']} after pruning {rows['rate'].max():.0%} and "
    return f"{ours}as many iterations again", verdict(after >= before - 0.02)


def _dense_would_not(table):
    rows = rows_of(table, storage="planned", kind="mm")
    costliest = rows.loc[rows["multiply_adds"].idxmax()]
    sparse, dense = costliest["multiply_adds"] / 1e6, costliest["dense"] / 1e12
    return f"costliest product: {sparse:.0f} M multiply-adds, dense {dense:.1f} T", verdict(1e6 * dense > 1000 * sparse)


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
        Claim(PAPER, "§3.3", "With patterns known ahead of time, sparse products are significantly faster.",
              "“significantly better performance”", "planned_products", _planned, TIMED),
        Claim(PAPER, "§4.3", "VGG-11 is about as accurate when 97 % is pruned and it is retrained as long as trained.",
              "90.1 %, 88.9 % (here: within 2 points)", "retraining", _retrained, TRAINED,
              recorded_by="bppsa-nb figures --only retraining --scale paper"),
        Claim(PAPER, "§5.3, Figure 10", "On a pruned VGG-11, steps of BPPSA take about as much as BP's operators.",
              "“similar” (here: within 2×)", "figure_10", _similar_steps),
        Claim(PAPER, "§5.3, Figure 10", "Sparse formats lower the cost of steps by orders of magnitude.",
              "“reduces the per-step complexity”", "figure_10", _dense_would_not),
    ]
