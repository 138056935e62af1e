"""What a claim is, and the words for its verdict."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bppsa_nb.papers.claims.tolerance import EXACT, Tolerance
from bppsa_nb.papers.tables import where

REPRODUCED, BETTER, MISSED = "reproduced", "better", "missed"
NEEDS_GPU = "not measurable here: needs a GPU"
NOT_YET = "not measured yet"

PAPER = "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm"
ARTICLE = "Optimizing RNNs with differentiable graphs (Baidu SVAIL, Part II)"
OOO = "Scheduling optimization techniques for neural network training (out-of-order backprop)"
FORWARD = "The forward pass in parallel: DEER, quasi-DEER, ParaRNN, and when Newton's method works"
MULTIGRID = "Layer-parallel training of deep residual networks via nonlinear multigrid"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and how to evaluate it on a table."""

    paper: str  # the heading that it stands under
    where: str  # a section, equation, figure or table
    says: str  # what the paper says, in a sentence
    number: str  # its number, and on what machine
    experiment: str  # whose table is looked at
    check: Callable  # takes the table; returns what we found, in words, and the verdict
    tolerance: Tolerance = EXACT  # how far from the reference we may be where it is measured again
    gpu: bool = False  # whether only a recording from a GPU decides
    recorded_by: str = ""  # the command that measures it, where the experiment only reads what that recorded


def compare(ours, theirs):
    """Give the verdict on numbers of which more is better; of several pairs, the worst decides."""
    worst = np.min(np.divide(ours, theirs))
    return BETTER if worst > 1.1 else REPRODUCED if worst >= 0.9 else MISSED


def verdict(holds):
    """Give the verdict on what either holds or does not."""
    return REPRODUCED if holds else MISSED


def require(rows):
    """Return rows of a table; raise LookupError if there are none."""
    if not len(rows):
        raise LookupError
    return rows


def rows_of(table, **columns):
    """Return the rows of a table in which columns have these values; raise LookupError if there are none."""
    return require(where(table, **columns))


def times(ratio):
    """Put a speedup into words."""
    return f"{ratio:.3g}×" if ratio >= 1 else f"{ratio:.2g}×"
