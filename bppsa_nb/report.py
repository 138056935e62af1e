"""The reproduction report: every claim of the papers, held against the recorded tables.

A row of the report is one entry of `claims`. Its judge gets the table of an experiment and returns what we found, in
words, and the verdict; a judge that misses the rows it needs raises `LookupError`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb import experiments, files
from bppsa_nb.experiments import error_over_length, figure_07, figure_08, published, tables_4_5

REPRODUCED, BETTER, MISSED = "reproduced", "better", "missed"
NEEDS_GPU = "not measurable here: needs a GPU"
NOT_YET = "not measured yet"

PAPER = "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm"
THESIS = "The thesis version, where its settings differ"

_INTRODUCTION = """\
# Reproduction report

Every claim of the papers that this project has looked at, and what came out of it. `bppsa-nb report` writes this page;
our numbers are read from the tables in `data/results/`, those of Tables 4 and 5 from `data/paper/`.

**reproduced**: as claimed; speedups to within 10 %. **better**: more than 10 % above the claim. **missed**: not as
claimed. **not measurable here**: it takes a machine that no recording comes from, for speedups a GPU; what ours gives
is shown all the same, and a speedup below 1 means slower. **not measured yet**: the command shown makes the recording.
"""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and how to hold a table against it.

    Attributes
    ----------
    paper : str
        Which paper; the heading that the claim stands under.
    where : str
        Section, equation, figure or table.
    says : str
        What the paper says, in a sentence.
    number : str
        The paper's number, and on what machine.
    experiment : str
        Whose table it is held against.
    judge : callable
        ``judge(table) -> (ours, verdict)``, both text.
    gpu : bool
        Whether only a recording from a GPU can decide.
    """

    paper: str
    where: str
    says: str
    number: str
    experiment: str
    judge: Callable
    gpu: bool = False


def write(path=None):
    """Write the report.

    Parameters
    ----------
    path : str or os.PathLike, optional
        Where to; `REPRODUCTION.md` in the checkout by default.
    """
    with files.atomic_write(path or files.root() / "REPRODUCTION.md", "w") as file:
        file.write(text())


def text():
    """Compose the report from the tables recorded in `data/results/`, as Markdown.

    Returns
    -------
    str
    """
    lines, used = [_INTRODUCTION], {}
    known = claims()
    for paper in dict.fromkeys(claim.paper for claim in known):
        lines += [f"## {paper}\n", "| where | claim | the paper | ours | machine, scale, data | verdict |"]
        lines.append("|" + " --- |" * 6)
        for claim in known:
            if claim.paper == paper:
                ours, origin, verdict = hold(claim)
                if origin:
                    used[origin["name"], origin["scale"], origin["device"]] = origin
                cells = [claim.where, claim.says, claim.number, ours, _machine(origin), f"**{verdict}**"]
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["## Recordings\n", "| table | scale | machine | date | commit | seed |", "|" + " --- |" * 6]
    for origin in sorted(used.values(), key=lambda origin: (origin["name"], origin["scale"], origin["device"])):
        commit = (origin["commit"] or "unknown")[:10] + (" and changes" if origin["dirty"] else "")
        cells = [origin["name"], origin["scale"], _processor(origin), origin["date"], commit, str(origin["seed"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def hold(claim):
    """Hold a claim against the recordings: a GPU's before a CPU's, the paper's scale before the quick one.

    Parameters
    ----------
    claim : Claim

    Returns
    -------
    ours : str
        What we found, or the command that finds out.
    origin : dict or None
        The provenance of the table that says so.
    verdict : str
    """
    found = []
    for device, scale in experiments.recordings(claim.experiment):
        table = experiments.table(claim.experiment, scale, device)
        origin = table.attrs["provenance"]
        try:
            ours, verdict = claim.judge(table)
        except LookupError:  # a smaller scale lacks rows
            continue
        if claim.gpu and not (origin["gpu"] and scale == "paper"):
            verdict = NOT_YET if origin["gpu"] else NEEDS_GPU
        found.append(((bool(origin["gpu"]), scale == "paper"), ours, origin, verdict))
    if found:
        return max(found, key=lambda each: each[0])[1:]
    command = f"`bppsa-nb figures --only {claim.experiment} --scale {'paper' if claim.gpu else 'quick'}`"
    return command, None, NEEDS_GPU if claim.gpu else NOT_YET


def _processor(origin):
    return origin["gpu"] or f"{origin['cpu']} ({origin['cores']} cores)"


def _machine(origin):
    return f"{_processor(origin)}, {origin['scale']}, {origin['data']}" if origin else "—"


def compare(ours, theirs):
    """Give the verdict on numbers of which more is better.

    Parameters
    ----------
    ours, theirs : float or sequence of float
        Of several pairs, the worst decides.

    Returns
    -------
    str
    """
    worst = np.min(np.divide(ours, theirs))
    return BETTER if worst > 1.1 else REPRODUCED if worst >= 0.9 else MISSED


def _verdict(holds):
    return REPRODUCED if holds else MISSED


# Judges: counted ------------------------------------------------------------------------------------------------


def _alone(table, method):
    return _rows(table[table["p"].isna() & (table["method"] == method)])


def _rows(rows):
    if not len(rows):
        raise LookupError
    return rows


def _span(values):
    low, high = (f"{value:.2f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _levels(table):
    rows = _alone(table, "blelloch")
    n = rows["n"].to_numpy()
    holds = (rows["steps"] == 2 * np.ceil(np.log2(n + 1)) - 1).all()
    return f"2⌈log₂(n + 1)⌉ − 1 levels: {rows['steps'].iloc[-1]} at n = {n[-1]}", _verdict(holds)


def _linear_steps(table):
    rows = _alone(table, "linear")
    return f"{rows['steps'].iloc[-1]} steps at n = {rows['n'].iloc[-1]}", _verdict((rows["steps"] == rows["n"]).all())


def _work(table):
    rows = _alone(table, "blelloch")
    per_link = rows["work"] / rows["n"]
    ours = f"{_span(per_link)} ⋄ per link for n up to {rows['n'].max()}"
    return ours, _verdict(per_link.max() <= 2 and (rows["mm"] < rows["n"]).all())


def _workers(table):
    rows = _rows(table[table["p"].notna() & (table["method"] == "blelloch") & (table["p"] < table["n"])])
    ratio = rows["steps"] / (rows["n"] / rows["p"] + np.log2(rows["p"]))
    ours = f"{_span(ratio)} times n/p + log₂ p, n = {rows['n'].max()}, p up to {rows['p'].max():.0f}"
    return ours, _verdict(ratio.max() <= 3 * ratio.min())


def _crossover(table):
    rows = _rows(table[table["p"].isna()])
    promised = rows[rows["n"] / np.log2(rows["n"]) > rows["H"]]
    wins = rows[(rows["blelloch"] < rows["linear"]) & (rows["H"] == 20)]
    ours = f"true for all {len(promised)} counted cases; at H = 20 from n = {wins['n'].min()} on"
    return ours, _verdict((promised["blelloch"] < promised["linear"]).all())


def _space(table):
    table = _rows(table)
    ratio = table["matrices"] / np.maximum(table["n"] / table["p"], 1)
    last = table.iloc[-1]
    ours = f"{_span(ratio)} times that; {last['matrices']:.0f} at p = {last['p']:.0f}"
    return ours, _verdict(ratio.max() <= 3 * ratio.min())


def _pipeline_space(table):
    table = _rows(table)
    ratio = table["activations"] / (table["n"] / table["p"] + table["p"])
    ours = f"{_span(ratio)} times L/K + K, L = {table['n'].max() + 1}"
    return ours, _verdict(ratio.max() <= 3 * ratio.min())


def _full_pipeline(table):
    devices, batches = table["worker"].nunique(), table["batch"].nunique()
    busy = table.groupby("start")["worker"].nunique()
    ours = f"{batches} micro-batches for {devices} devices, all busy for {(busy == devices).sum()} step"
    return ours, _verdict(busy.max() == devices == batches)


# Judges: computed -----------------------------------------------------------------------------------------------


def _largest_difference(quantity, table):
    largest = figure_07.differences(table)[quantity].max()
    iterations, backends = table["iteration"].nunique(), ", ".join(table["backend"].unique())
    ours = f"{largest:.1e} at most, in {iterations} iterations at T = {table['T'].max()} ({backends})"
    return ours, _verdict(largest <= figure_07.LIMIT)


def _rounding(table):
    rows = table[(table["chain"] == "norm-preserving") & (table["T"] == table["T"].max())]
    errors = rows.groupby("method")["error"].max()
    if not set(error_over_length.METHODS) <= set(errors.index):
        raise LookupError
    found = f"{errors['blelloch']:.1e}, the linear scan's {errors['linear']:.1e}"
    ours = f"error against float64 at T = {rows['T'].max()}: {found}"
    return ours, _verdict(errors["blelloch"] <= 4 * errors["linear"])


# Judges: timed --------------------------------------------------------------------------------------------------


def _fastest(table):
    """Take the speedups on a table's fastest backend, the last one."""
    both = figure_08.speedups(table)
    return both[both["backend"] == both["backend"].iloc[-1]]


def _speedup(quantity, theirs, table, T=1000, B=16):
    both = _fastest(table)
    ours = _rows(both[(both["T"] == T) & (both["B"] == B)])[quantity].iloc[0]
    return _times(ours), compare(ours, theirs)


def _largest_speedup(quantity, theirs, table):
    both = _fastest(table)
    best = both.loc[both[quantity].idxmax()]
    return f"{_times(best[quantity])} at T = {best['T']}, B = {best['B']}", compare(best[quantity], theirs)


def _scales(over, table):
    """Check that the backward speedup ends higher than it began, over growing T or 1/B."""
    both = _fastest(table)
    fixed = both["B"] == figure_08.BATCH if over == "T" else both["T"] == table.attrs["length_while_B_varies"]
    rows = _rows(both[fixed]).sort_values(over, ascending=over == "T")
    first, last = rows.iloc[0], rows.iloc[-1]
    ours = " to ".join(f"{_times(row['backward'])} at {over} = {row[over]}" for row in (first, last))
    return ours, _verdict(last["backward"] > first["backward"])


def _times(ratio):
    return f"{ratio:.3g}×" if ratio >= 1 else f"{ratio:.2g}×"


def _table_row(name, T, B):
    """Make a claim of a row of Table 4 or 5."""
    printed = tables_4_5.speedups(published.table(name))
    theirs = printed[(printed["T"] == T) & (printed["B"] == B)].iloc[0]

    def judge(table):
        rows = tables_4_5.speedups(table[table["source"] == "here"])
        ours = _rows(rows[(rows["T"] == T) & (rows["B"] == B)]).iloc[0]
        quantities = ["overall", "backward"]
        return in_words(ours), compare(ours[quantities].astype(float), theirs[quantities].astype(float))

    def in_words(row):
        return f"{_times(row['overall'])} overall, {_times(row['backward'])} backward"

    says = f"One epoch at T = {T}, B = {B}: BPPSA against the baseline."
    number = f"{theirs['baseline']:g} s / {theirs['bppsa']:g} s: {in_words(theirs)} (V100)"
    return Claim(PAPER, name.replace("_", " ").capitalize(), says, number, "tables_4_5", judge, gpu=True)


def claims():
    """List all claims, in the order of the report.

    Returns
    -------
    list of Claim
    """
    return [
        Claim(PAPER, "§3.6, Eq. 6", "With a worker for every ⋄, BPPSA takes logarithmically many steps.",
              "Θ(log n)", "steps_and_work", _levels),
        Claim(PAPER, "§3.6", "The linear scan, like BP, takes as many steps as there are layers.",
              "Θ(n)", "steps_and_work", _linear_steps),
        Claim(PAPER, "§3.6, Eq. 7", "BPPSA's work is linear; only the up-sweep multiplies matrices.",
              "Θ(n)", "steps_and_work", _work),
        Claim(PAPER, "§3.6, Eq. 6", "On p ≤ n workers, the steps are shared out up to a logarithm.",
              "Θ(n/p + log p)", "steps_and_work", _workers),
        Claim(PAPER, "§3.6", "BPPSA is faster where n / log n exceeds the dimension of x, though its steps cost more.",
              "P_Blelloch / P_Linear < n / log n", "crossover", _crossover),
        Claim(PAPER, "§3.6", "A worker's space falls with p, down to a constant number of Jacobians.",
              "Θ(max(n/p, 1)) M_Jacob", "space", _space),
        Claim(PAPER, "§3.6, Appendix B", "A pipeline's space per device grows again with its length.",
              "Θ(L/K + K)", "space", _pipeline_space),
        Claim(PAPER, "Figure 11", "To fill a pipeline, as many micro-batches must enter as it has devices.",
              "K micro-batches", "figure_11", _full_pipeline),
        Claim(PAPER, "§3.5", "BPPSA reconstructs BP: at the same parameters, the same gradients up to rounding.",
              "“the exact same outputs” (here: to 1e-5)", "figure_07", partial(_largest_difference, "gradient")),
        Claim(PAPER, "§3.5, Figure 7", "Per iteration, the loss curves of BPPSA and BP overlap (RNN).",
              "curves coincide (here: to 1e-5)", "figure_07", partial(_largest_difference, "loss")),
        Claim(PAPER, "§3.5", "Numerical differences come from the order of the products alone, and do not matter.",
              "“negligible impact”", "error_over_length", _rounding),
        Claim(PAPER, "§5.1, Figure 7", "Training the RNN at T = 1000, B = 16 is faster overall.",
              "2.73× (RTX 2070)", "figure_08", partial(_speedup, "overall", 2.73), gpu=True),
        Claim(PAPER, "§5.1, Figure 7", "Its backward pass alone, Jacobians included.",
              "16× (RTX 2070)", "figure_08", partial(_speedup, "backward", 16), gpu=True),
        Claim(PAPER, "§5.1, Figure 8", "The largest backward speedup over T and B.",
              "108× (RTX 2080 Ti)", "figure_08", partial(_largest_speedup, "backward", 108), gpu=True),
        Claim(PAPER, "§5.1, Figure 8", "The largest overall speedup over T and B.",
              "2.75× (RTX 2070)", "figure_08", partial(_largest_speedup, "overall", 2.75), gpu=True),
        Claim(PAPER, "§5.1, Figure 8b", "The backward speedup grows with T, even where n is far beyond p.",
              "rises", "figure_08", partial(_scales, "T"), gpu=True),
        Claim(PAPER, "§5.1, Figure 8e", "BPPSA scales with the share of the GPU that a sample has: as B falls.",
              "rises", "figure_08", partial(_scales, "B"), gpu=True),
        _table_row("table_4", 10, 16),
        _table_row("table_4", 1000, 16),
        _table_row("table_4", 30000, 16),
        _table_row("table_5", 1000, 256),
        _table_row("table_5", 1000, 2),
        Claim(THESIS, "§5.1, Figure 5.1", "Training the RNN at T = 1000, B = 16 is faster overall.",
              "2.17× (RTX 2070)", "figure_08", partial(_speedup, "overall", 2.17), gpu=True),
        Claim(THESIS, "§5.1, Figure 5.1", "Its backward pass alone.",
              "4.53× (RTX 2070)", "figure_08", partial(_speedup, "backward", 4.53), gpu=True),
        Claim(THESIS, "§5.1, Figure 5.2", "The largest backward speedup over T and B.",
              "8.8× (RTX 2080 Ti)", "figure_08", partial(_largest_speedup, "backward", 8.8), gpu=True),
    ]
