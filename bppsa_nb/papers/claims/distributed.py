"""Claims about many devices (Sections 1, 2.2 and 3.6, Appendix B).

What ranks count, and what they hold, decides. How fast many of them would be is modelled, and does not.
"""

from functools import partial

import numpy as np

from bppsa_nb.papers.bppsa import ranks_modelled
from bppsa_nb.papers.claims.claim import PAPER, Claim, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import MEMORY, PRINTED, TIMED
from bppsa_nb.papers.text import span

NEEDS_RANKS = "not measurable here: needs many machines"


def _calls(table):
    rows = require(table[(table["part"] == "rank") & (table["done_by"] == "chunked") & (table["ranks"] > 1)])
    limit = 2 * np.ceil(np.log2(rows["ranks"]))
    most = rows.groupby("ranks")["combined"].max()
    texts = ", ".join(f"{count:.0f} on {ranks:.0f}" for ranks, count in most.items())
    lengths = rows.groupby(["ranks", "rank"])["combined"].nunique().max() == 1
    ours = f"⋄ calls of a rank, counted: {texts} ranks" + (", whatever T is" if lengths else ", depending on T")
    return ours, verdict((rows["combined"] <= limit).all() and lengths)


def _memory(table):
    rows = table[(table["part"] == "rank") & (table["method"] == "chunked") & table["memory"].notna()]
    rows = require(rows[rows["steps"] == rows["steps"].max()])
    most = rows.groupby("ranks")["memory"].max()
    texts = ", ".join(f"{size / 2**20:.1f} on {ranks:.0f}" for ranks, size in most.items())
    share = most * most.index / most.loc[1]
    ours = f"MiB above what a rank had before, T = {rows['steps'].iloc[0]:,.0f}: {texts} ranks; "
    ours += f"times p, {span(share, '{:.2f}')} of one rank's"
    return ours, verdict(share.max() <= 1.25)


def _advantage(task, table):
    seconds = ranks_modelled.by_road(table, "RNN", task)
    gains = seconds["rank after rank"] / seconds["scan"]
    pays, best, speedup = ranks_modelled.crossings(table, "RNN", task)
    last = gains.index[-1]
    ours = f"modelled from measured costs: {times(gains[4])} on 4 ranks, {times(gains[last])} on {last:.0f}; "
    ours += f"above 1 from {pays} on; " if pays else "never above 1; "
    longer = seconds["rank after rank"] / seconds[ranks_modelled.LONGER]
    ours += f"with a longer run at the loss {times(longer[4])} and {times(longer[last])}; "
    return ours + f"fastest on {best}, {times(speedup)} the best of the other", NEEDS_RANKS


def _against_others(table):
    texts = []
    for network in ("RNN", "narrow", "wide"):
        seconds = ranks_modelled.by_road(table, network, "step").min()
        each = ", ".join(f"{name} {1e3 * seconds[name]:.3g}" for name in ranks_modelled.METHODS if name in seconds)
        texts.append(f"{ranks_modelled.NAMES[network]}: {each}")
    return f"modelled, best of up to 1024 ranks, ms: {'; '.join(texts)}", NEEDS_RANKS


def _held(table, network, road):
    rows = rows_of(table, part="memory", network=network, road=road)
    return rows.set_index("ranks")["memory"] / 2**20


def _pipeline(table):
    scan, pipeline, same = (_held(table, "RNN", r) for r in ("scan", "GPipe", "GPipe, the same 16 samples"))
    least, last = pipeline.idxmin(), pipeline.index[-1]
    ours = f"counted, RNN: the pipeline's least is {pipeline[least]:.2g} MiB on {least:.0f} ranks, "
    ours += f"{pipeline[last]:.2g} on {last:.0f}; the scan's falls to {scan[last]:.2g}. "
    ours += f"A pipeline whose batch stays as it is holds {same[last]:.2g} there, but is not full"
    return ours, verdict(least < last and (scan.diff().dropna() < 0).all())


def _sparse(table):
    """Ask whether Jacobians of shared weights cost no more than a few states, and dense ones do."""
    texts, on_one = [], []
    for network in ("RNN", "wide"):
        scan, pipeline = (_held(table, network, road) for road in ("scan", "GPipe"))
        on_one.append(scan[1] / pipeline[1])
        less = scan.index[scan < pipeline]
        when = f"from {less[0]:.0f} ranks on" if len(less) else "on no number of ranks"
        texts.append(f"{ranks_modelled.NAMES[network]}: {when} ({times(on_one[-1])} on one)")
    diagonal, dense = on_one
    return f"counted, less than a full pipeline holds: {'; '.join(texts)}", verdict(diagonal <= 2 < dense)


def _widths(table):
    most = rows_of(table, part="width")["ranks"].max()
    texts = []
    for row in ranks_modelled.crossed(table).itertuples():
        pays = f"from {row.pays:.0f} ranks, {times(row.speedup)} at best" if row.pays > 0 else "never"
        texts.append(f"H = {int(row.width)}: {pays}")
    return f"modelled, backward pass of RNNs on up to {most:.0f} ranks: {', '.join(texts)}", NEEDS_RANKS


def claims():
    """List them, in the order of the report."""
    return [
        Claim(PAPER, "§1, §3.6", "Split over n devices, the backward pass takes logarithmically many steps.",
              "Θ(log n) (here: at most 2⌈log₂ p⌉ ⋄ a rank)", "rank_scaling", _calls, PRINTED),
        Claim(PAPER, "§3.6, on ranks", "A device's space falls with the number of devices.",
              "Θ(max(n/p, 1)) M_Jacob (here: within a fourth of 1/p)", "rank_scaling", _memory, MEMORY),
        Claim(PAPER, "§2.2, backward pass", "BPPSA becomes more advantageous as the number of devices increases.",
              "no number printed", "ranks_modelled", partial(_advantage, "backward"), TIMED),
        Claim(PAPER, "§2.2, whole step", "BPPSA becomes more advantageous as the number of devices increases.",
              "no number printed", "ranks_modelled", partial(_advantage, "step"), TIMED),
        Claim(PAPER, "§2.2, other roads", "Pipelines meet diminishing returns: their bubble grows with their length.",
              "no number printed", "ranks_modelled", _against_others, TIMED),
        Claim(PAPER, "§2.2, Appendix B", "A pipeline's space limits how many devices it can have, BPPSA's does not.",
              "Θ(L/K + K)", "ranks_modelled", _pipeline, PRINTED),
        Claim(PAPER, "§3.6, M_Jacob", "Jacobians take little space only because most of their entries need none.",
              "M_Jacob ≪ O(M_x²)", "ranks_modelled", _sparse, PRINTED),
        Claim(PAPER, "§3.6, width", "BPPSA is faster where n / log n exceeds the dimension of x.",
              "n / log n = 102 for 1024 devices", "ranks_modelled", _widths, TIMED),
    ]
