"""Claims about steps, work and space (Section 3.6, Appendix B)."""

import numpy as np

from bppsa_nb.papers.claims.claim import PAPER, Claim, require, verdict
from bppsa_nb.papers.text import span


def _alone(table, method):
    return require(table[table["p"].isna() & (table["method"] == method)])


def _levels(table):
    rows = _alone(table, "blelloch")
    n = rows["n"].to_numpy()
    holds = (rows["steps"] == 2 * np.ceil(np.log2(n + 1)) - 1).all()
    return f"2⌈log₂(n + 1)⌉ − 1 levels: {rows['steps'].iloc[-1]} at n = {n[-1]}", verdict(holds)


def _linear_steps(table):
    rows = _alone(table, "linear")
    return f"{rows['steps'].iloc[-1]} steps at n = {rows['n'].iloc[-1]}", verdict((rows["steps"] == rows["n"]).all())


def _work(table):
    rows = _alone(table, "blelloch")
    per_link = rows["work"] / rows["n"]
    ours = f"{span(per_link, '{:.2f}')} ⋄ per link for n up to {rows['n'].max()}"
    return ours, verdict(per_link.max() <= 2 and (rows["mm"] < rows["n"]).all())


def _workers(table):
    rows = require(table[table["p"].notna() & (table["method"] == "blelloch") & (table["p"] < table["n"])])
    ratio = rows["steps"] / (rows["n"] / rows["p"] + np.log2(rows["p"]))
    ours = f"{span(ratio, '{:.2f}')} times n/p + log₂ p, n = {rows['n'].max()}, p up to {rows['p'].max():.0f}"
    return ours, verdict(ratio.max() <= 3 * ratio.min())


def _crossover(table):
    rows = require(table[table["p"].isna()])
    promised = rows[rows["n"] / np.log2(rows["n"]) > rows["H"]]
    wins = rows[(rows["blelloch"] < rows["linear"]) & (rows["H"] == 20)]
    ours = f"true for all {len(promised)} counted cases; at H = 20 from n = {wins['n'].min()} on"
    return ours, verdict((promised["blelloch"] < promised["linear"]).all())


def _space(table):
    ratio = table["matrices"] / np.maximum(table["n"] / table["p"], 1)
    last = table.iloc[-1]
    ours = f"{span(ratio, '{:.2f}')} times that; {last['matrices']:.0f} at p = {last['p']:.0f}"
    return ours, verdict(ratio.max() <= 3 * ratio.min())


def _pipeline_space(table):
    ratio = table["activations"] / (table["n"] / table["p"] + table["p"])
    ours = f"{span(ratio, '{:.2f}')} times L/K + K, L = {table['n'].max() + 1}"
    return ours, verdict(ratio.max() <= 3 * ratio.min())


def claims():
    """List them, in the order of the report."""
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
    ]
