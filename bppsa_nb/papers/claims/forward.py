"""Claims about states that are found in parallel by Newton's method: DEER, quasi-DEER, ParaRNN, and when it works.

They are read in abstracts and in the authors' repositories. Speedups of GPUs are shown beside those of our chunks here.
"""

from functools import partial

import numpy as np

from bppsa_nb.papers.claims.claim import FORWARD, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import ITERATIONS, ROUNDING, TIMED
from bppsa_nb.papers.forward import along_training, corrections_over_length, forward_speed, lyapunov_turn
from bppsa_nb.papers.tables import where

_SPEEDUPS = {1000: 41, 10000: 289, 30000: 752}  # DEER's report_memeff, forward and gradient, H = 1, a V100


def _deviation(table):
    rows = rows_of(table, network="example", dtype="float32")
    rows = rows[rows["T"] == rows["T"].max()]
    ours = f"{rows['error'].min():.1e} to {rows['error'].max():.1e} at T = {rows['T'].iloc[0]:,}, "
    ours += f"after {rows['corrections'].max()} corrections at most"
    return ours, compare(2 * 2.384e-7, rows["error"].median())


def _few(most, table):
    """Ask in which share of checks along training so many corrections suffice."""
    shares = ((table["corrections"] <= most) & table["met"]).groupby(table["rate"]).mean()
    texts = ", ".join(f"{share:.0%} at rate {rate:g}" for rate, share in shares.items())
    fresh = table[table["iteration"] == 0]["corrections"].max()
    ours = f"{fresh} at most on fresh networks; along training, of all checks: {texts}"
    return ours, verdict(shares.min() >= 0.9)


def _fails(table):
    fresh, later = table[table["iteration"] == 0], table[table["iteration"] > 0]
    failed = 1 - later[later["rate"] == later["rate"].max()]["met"].mean()
    ours = f"all fresh networks met; later, at rate {table['rate'].max():g}, {failed:.0%} of checks did not within "
    ours += f"{along_training.MOST} corrections"
    return ours, verdict(bool(fresh["met"].all()) and failed > 0)


def _at_most_T(table):
    most = table["newton"].max()
    return f"{most:.0f} at most, T = {lyapunov_turn.T}, in chaos too", verdict(most <= lyapunov_turn.T)


def _quasi(table):
    kinds = "quasi", "rnn"
    diagonal, whole = (rows_of(table, network=each, dtype="float32")["corrections"].median() for each in kinds)
    of_diagonal, of_whole = (corrections_over_length.span_of(table, each) for each in kinds)
    ours = f"the diagonal takes {of_diagonal} corrections (single and double precision), the whole Jacobian {of_whole}"
    return ours, verdict(diagonal <= 2 * whole)


def _threshold(table):
    found = lyapunov_turn.medians(rows_of(table, network="random weights"))
    calm, wild = found[found["exponent"] < -0.1]["newton"], found[found["exponent"] > 0.1]["newton"]
    basins = where(table, network=lyapunov_turn.BASINS)[["newton", "exponent"]].median()
    ours = f"medians below −0.1: {calm.min():.0f} to {calm.max():.0f} corrections; above 0.1: {wild.min():.0f} to "
    ours += f"{wild.max():.0f} of {lyapunov_turn.T}; but a latch with two basins, at "
    ours += f"{basins['exponent']:.2f}, takes {basins['newton']:.0f}".replace("-", "−")
    return ours, verdict(calm.max() <= np.log2(lyapunov_turn.T) ** 2 and wild.min() >= lyapunov_turn.T / 3)


def _speed(table):
    ours = "; ".join(
        f"repaired chunks over the loop, {backend}: "
        + ", ".join(f"{times(each)} at {T:,}" for T, each in forward_speed.ratio(table, "gru", backend).items())
        for backend in ("numpy", "cpu")
    )
    found = forward_speed.ratio(table, "gru", "cpu")
    newton = forward_speed.ratio(table, "gru", "cpu", "newton").max()
    lengths = require([T for T in _SPEEDUPS if T in found.index])
    ours += f"; Newton on chunks, cpu: at most {times(newton)}"
    return ours, compare([found[T] for T in lengths], [_SPEEDUPS[T] for T in lengths])


def claims():
    """List them, in the order of the report."""
    return [
        Claim(FORWARD, "DEER, abstract and report", "Forward pass and gradient of a GRU over the loop.",
              "41× at T = 1,000, 289× at 10,000, 752× at 30,000 (H = 1, a GPU)", "forward_speed", _speed,
              TIMED, gpu=True),
        Claim(FORWARD, "DEER, README's example", "States of a GRU differ little from the loop's (H = 2, B = 16).",
              "2.384e-07 at T = 10,000, single precision (here: within twice that)", "corrections_over_length",
              _deviation, ROUNDING),
        Claim(FORWARD, "DEER, proposition on convergence", "After as many iterations as there are steps, all is right.",
              "at most T iterations", "lyapunov_turn", _at_most_T, ITERATIONS),
        Claim(FORWARD, "DEER, the author's slides", "Newton's method typically needs few iterations.",
              "“typically only requires <20 iterations” (here: in nine of ten checks at any rate)", "along_training",
              partial(_few, 19), ITERATIONS),
        Claim(FORWARD, "DEER, the author's slides", "Untrained networks converge, some trained ones do not.",
              "“non-convergence after some training steps”", "along_training", _fails, ITERATIONS),
        Claim(FORWARD, "quasi-DEER, abstract", "With the diagonal of Jacobians alone, it converges comparably.",
              "“comparably” to Newton (here: within twice the corrections)", "corrections_over_length", _quasi,
              ITERATIONS),
        Claim(FORWARD, "ParaRNN, code", "Three Newton iterations suffice.",
              "`max_its = 3`, for its own cells (here: in nine of ten checks at any rate)", "along_training",
              partial(_few, 3), ITERATIONS),
        Claim(FORWARD, "Predictability, abstract", "Few iterations where the largest Lyapunov exponent is below 0.",
              "O((log T)²) below 0 (here: (log₂ T)² = 68 below −0.1, and T / 3 at least above 0.1)", "lyapunov_turn",
              _threshold, ITERATIONS),
    ]
