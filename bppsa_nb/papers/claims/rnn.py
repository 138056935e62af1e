"""Claims about exactness, and about the RNN (Sections 3.5 and 5.1, Tables 4 and 5)."""

from functools import partial

from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import figure_07, figure_08, whole_trainings
from bppsa_nb.papers.bppsa.epochs import breakdown
from bppsa_nb.papers.claims.claim import PAPER, THESIS, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import ROUNDING, TIMED, TRAINED
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import span


def _largest_difference(quantity, table):
    largest = figure_07.differences(table)[quantity].max()
    iterations, backends = table["iteration"].nunique(), ", ".join(table["backend"].unique())
    ours = f"{largest:.1e} at most, in {iterations} iterations at T = {table['T'].max()} ({backends})"
    return ours, verdict(largest <= figure_07.LIMIT)


def beside_the_control(table):
    """Say how far BPPSA's losses are from BPTT's in terms of the control's, and whether that is within the limit."""
    medians = whole_trainings.against_the_control(table)
    parts = [
        f"{times(ours / control)} for {whole_trainings.METHODS[method]} ({ours:.1e} of the loss, in the median)"
        for method, (ours, control) in medians.items()
    ]
    return " and ".join(parts), all(ours <= whole_trainings.LIMIT * control for ours, control in medians.values())


def _to_the_end(table):
    ends, (apart, holds) = whole_trainings.ends(table), beside_the_control(table)
    losses = ", ".join(
        f"{span(ends[ends['method'] == method]['loss'])} by {name}" for method, name in whole_trainings.METHODS.items()
    )
    return f"{apart}; at the end a loss of {losses}", verdict(holds)


def _rounding(table):
    rows = where(table, chain="norm-preserving", T=table["T"].max())
    errors = rows.groupby("method")["error"].max()
    both = f"{errors['blelloch']:.1e}, the linear scan's {errors['linear']:.1e}"
    ours = f"error against float64 at T = {rows['T'].max()}: {both}"
    return ours, verdict(errors["blelloch"] <= 4 * errors["linear"])


def _fastest(table):
    """Take the speedups on a table's fastest backend, the last one."""
    both = figure_08.speedups(table)
    return both[both["backend"] == both["backend"].iloc[-1]]


def _speedup(quantity, theirs, table):
    ours = rows_of(_fastest(table), T=1000, B=16)[quantity].iloc[0]
    return times(ours), compare(ours, theirs)


def _largest_speedup(quantity, theirs, table):
    both = _fastest(table)
    best = both.loc[both[quantity].idxmax()]
    return f"{times(best[quantity])} at T = {best['T']}, B = {best['B']}", compare(best[quantity], theirs)


def _scales(over, table):
    """Check that the backward speedup ends higher than it began, over growing T or 1/B."""
    both = _fastest(table)
    fixed = both["B"] == figure_08.BATCH if over == "T" else both["T"] == table.attrs["length_while_B_varies"]
    rows = require(both[fixed]).sort_values(over, ascending=over == "T")
    first, last = rows.iloc[0], rows.iloc[-1]
    ours = " to ".join(f"{times(row['backward'])} at {over} = {row[over]}" for row in (first, last))
    return ours, verdict(last["backward"] > first["backward"])


def table_row(name, experiment, says, words="", **sizes):
    """Make a claim of a row of Table 4, 5 or 6; `words` end what is said of a speedup."""
    theirs = where(breakdown(published.table(name)), **sizes).iloc[0]
    quantities = ["overall", "backward"]

    def check(table):
        ours = rows_of(breakdown(table[table["source"] == "here"]), **sizes).iloc[0]
        return in_words(ours, ".3g"), compare(ours[quantities].astype(float), theirs[quantities].astype(float))

    def in_words(row, digits):
        seconds = f"{row['baseline']:{digits}} s / {row['bppsa']:{digits}} s"
        return f"{seconds}: {times(row['overall'])} overall, {times(row['backward'])} backward{words}"

    number = f"{in_words(theirs, 'g')} (V100)"
    return Claim(PAPER, name.replace("_", " ").capitalize(), says, number, experiment, check, TIMED, gpu=True)


def _epoch(name, T, B):
    says = f"One epoch at T = {T}, B = {B}: BPPSA against the baseline."
    return table_row(name, "tables_4_5", says, T=T, B=B)


def claims():
    """List them, in the order of the report."""
    return [
        Claim(PAPER, "§3.5", "BPPSA reconstructs BP: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)", "figure_07", partial(_largest_difference, "gradient"),
              ROUNDING),
        Claim(PAPER, "§3.5, Figure 7", "Per iteration, the loss curves of BPPSA and BP overlap (RNN).",
              "curves coincide (here: to 1e-5)", "figure_07", partial(_largest_difference, "loss"), ROUNDING),
        Claim(PAPER, "§5.1, Figure 7", "Over all 80 epochs, training by BPPSA reconstructs BP (RNN).",
              "“roughly equivalent” (here: at most 2x as far from BPTT as BPTT with one bit changed)",
              "eighty_epochs", _to_the_end, TRAINED),
        Claim(PAPER, "§3.5", "Numerical differences come from the order of the products alone, and do not matter.",
              "“negligible impact”", "error_over_length", _rounding, ROUNDING),
        Claim(PAPER, "§5.1, Figure 7", "Training the RNN at T = 1000, B = 16 is faster overall.",
              "2.73× (RTX 2070)", "figure_08", partial(_speedup, "overall", 2.73), TIMED, gpu=True),
        Claim(PAPER, "§5.1, Figure 7", "Its backward pass alone, Jacobians included.",
              "16× (RTX 2070)", "figure_08", partial(_speedup, "backward", 16), TIMED, gpu=True),
        Claim(PAPER, "§5.1, Figure 8", "The largest backward speedup over T and B.",
              "108× (RTX 2080 Ti)", "figure_08", partial(_largest_speedup, "backward", 108), TIMED, gpu=True),
        Claim(PAPER, "§5.1, Figure 8", "The largest overall speedup over T and B.",
              "2.75× (RTX 2070)", "figure_08", partial(_largest_speedup, "overall", 2.75), TIMED, gpu=True),
        Claim(PAPER, "§5.1, Figure 8b", "The backward speedup grows with T, even where n is far beyond p.",
              "rises", "figure_08", partial(_scales, "T"), TIMED, gpu=True),
        Claim(PAPER, "§5.1, Figure 8e", "BPPSA scales with the share of the GPU that a sample has: as B falls.",
              "rises", "figure_08", partial(_scales, "B"), TIMED, gpu=True),
        *(_epoch("table_4", T, 16) for T in (10, 1000, 30000)),
        *(_epoch("table_5", 1000, B) for B in (256, 2)),
        Claim(THESIS, "§5.1, Figure 5.1", "Training the RNN at T = 1000, B = 16 is faster overall.",
              "2.17× (RTX 2070)", "figure_08", partial(_speedup, "overall", 2.17), TIMED, gpu=True),
        Claim(THESIS, "§5.1, Figure 5.1", "Its backward pass alone.",
              "4.53× (RTX 2070)", "figure_08", partial(_speedup, "backward", 4.53), TIMED, gpu=True),
        Claim(THESIS, "§5.1, Figure 5.2", "The largest backward speedup over T and B.",
              "8.8× (RTX 2080 Ti)", "figure_08", partial(_largest_speedup, "backward", 8.8), TIMED, gpu=True),
    ]
