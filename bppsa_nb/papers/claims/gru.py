"""Claims about the GRU trained on audio (Sections 4.2 and 5.2, Appendices E to G, Tables 3 and 6)."""

from functools import partial

from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import four_hundred_epochs, table_3
from bppsa_nb.papers.bppsa.epochs import breakdown
from bppsa_nb.papers.bppsa.training_curves import LIMIT, METHODS
from bppsa_nb.papers.claims.claim import PAPER, Claim, compare, require, times, verdict
from bppsa_nb.papers.claims.rnn import beside_the_control, table_row
from bppsa_nb.papers.claims.tolerance import ROUNDING, TIMED, TRAINED


def _sizes(table):
    paper, here = table_3.sizes(table)
    ours = ", ".join(f"{frames} × {size}" for frames, size in zip(here["frames"], here["size"], strict=True))
    return f"{ours}, on a clip", verdict(here.values.tolist() == paper.values.tolist())


def _gradients(table):
    lengths = table.groupby("features", sort=False)["iteration"].max()
    trained = ", ".join(f"{length} iterations on {features}" for features, length in lengths.items())
    largest = table["gradient"].max()
    return f"{largest:.1e} at most, in {trained}", verdict(largest <= LIMIT)


def _curves(table):
    """Ask for equal losses; where rounding has grown into chaos, for as long as BPTT is equal to itself."""
    texts, holds = [], []
    for features, rows in table.groupby("features", sort=False):
        together, itself = (_until(rows, name) for name in ("drift", "drift_reversed"))
        last = rows.iloc[-1]
        if together is None:
            words = f"{features}: to {rows['drift'].max():.1e} for {last['iteration']} iterations"
        else:
            words = f"{features}: to {LIMIT:g} for {together} of {last['iteration']} iterations, "
            words += "BPTT with its samples in reverse " + ("throughout" if itself is None else f"for {itself}")
        right = ", ".join(f"{last[f'accuracy_{method}']:.0%} by {name}" for method, name in METHODS.items())
        texts.append(f"{words} (held-out clips right: {right})")
        holds.append(together is None or (itself is not None and together >= 0.8 * itself))
    return "; ".join(texts), verdict(all(holds))


def _until(rows, name):
    """Find the iterations before a difference passes the limit; None if it does not."""
    past = rows[rows[name] > LIMIT]
    return past["iteration"].iloc[0] if len(past) else None


def _to_the_end(table):
    texts, held = [], []
    for features, rows in table.groupby("features", sort=False):
        apart, holds = beside_the_control(rows)
        texts.append(f"{features}: {apart}; held-out clips right {four_hundred_epochs.accuracies(rows)}")
        held.append(holds)
    return ". ".join(texts), verdict(all(held))


def _ours(table):
    return require(breakdown(table[table["source"] == "here"]))


def _largest_speedup(quantity, theirs, table):
    best = _ours(table).sort_values(quantity).iloc[-1]
    return f"{times(best[quantity])} on {best['features']}, B = {best['B']}", compare(best[quantity], theirs)


def _rises(table):
    texts, holds = [], []
    for B, rows in _ours(table).groupby("B"):
        first, *_, last = rows.sort_values("T")["backward"]
        texts.append(f"{times(first)} to {times(last)} at B = {B}")
        holds.append(last > first)
    return ", ".join(texts), verdict(all(holds))


def _overhead(theirs, table):
    ours = _ours(table)["overhead"]
    return f"{_shares(ours)}, to assemble alone", compare(theirs.median(), ours.median())


def _shares(shares):
    return f"{shares.min():.0%} to {shares.max():.0%} of FP, median {shares.median():.0%}"


def _epoch(features, B=16):
    says = f"One epoch of the GRU on {features}, B = {B}: BPPSA against the baseline."
    return table_row("table_6", "table_6", says, " without overhead", features=features, B=B)


def claims():
    """List them, in the order of the report."""
    printed = breakdown(published.table("table_6"))
    return [
        Claim(PAPER, "§4.2, Table 3", "Three sets of features trade resolution in time for resolution in frequency.",
              "259 × 38, 517 × 24, 1034 × 12", "table_3", _sizes),
        Claim(PAPER, "§3.5, Appendix E", "From the GRU's analytic Jacobians, BPPSA computes the same gradients as BP.",
              "“the exact same outputs” (here: to 1e-5)", "figure_13", _gradients, ROUNDING),
        Claim(PAPER, "Appendix F, Figure 13", "The GRU's loss curves by BPPSA and by BP have the same shape.",
              "same per iteration (here: to 1e-5)", "figure_13", _curves, ROUNDING),
        Claim(PAPER, "Appendix F, Figure 13", "Over all 400 epochs, the GRU's curves by BPPSA keep the shape of BP's.",
              "“a similar shape” (here: at most 2x as far from BPTT as BPTT with one bit changed)",
              "four_hundred_epochs", _to_the_end, TRAINED),
        Claim(PAPER, "§5.2, Figure 9", "The GRU's largest overall speedup.",
              "2.36× (RTX 2070 or 2080 Ti)", "figure_09", partial(_largest_speedup, "overall", 2.36), TIMED, gpu=True),
        Claim(PAPER, "§5.2, Figure 9", "The GRU's largest backward speedup, excluding the overhead.",
              "13.4× (RTX 2070 or 2080 Ti)", "figure_09", partial(_largest_speedup, "backward", 13.4), TIMED, gpu=True),
        Claim(PAPER, "§5.2, Figure 9", "The GRU's backward speedup grows with T, from S to L.",
              "rises", "figure_09", _rises, TIMED, gpu=True),
        Claim(PAPER, "Appendix E", "The forward overhead could be reduced if the values of the gates were at hand.",
              f"{_shares(printed['overhead'])}, to recompute and assemble (V100)", "figure_09",
              partial(_overhead, printed["overhead"]), TIMED, gpu=True),
        *(_epoch(features) for features in ("S", "M", "L")),
    ]
