"""Newton's method for a recurrence: what chunks begin with is corrected by products of Jacobians.

With chunks of one step, this is DEER: all states at once, each step linearized where it is, and the linear recurrence
that is left solved by the scan that back-propagates. Longer chunks need fewer products, but each pass runs them step by
step (multiple shooting).
"""

import numpy as np

from bppsa_nb.cells.chunked import distance
from bppsa_nb.chains.backprop import backprop
from bppsa_nb.machine.checks import all_finite
from bppsa_nb.operands.range import DynamicRangeError


def correct(chunks, linearize, tol, most, bound):
    """Correct what chunks that ran begin with until the gaps between them are within `tol`; tell whether they are.

    `linearize` takes chunks and returns the derivative of each lane's end by its beginning, an array (lanes, H, H), or
    raises DynamicRangeError. There are at most `most` corrections. States cannot be larger than `bound` [shape=(B,
    ...)], if given: where Newton's method goes beyond, it is brought back.
    """
    while True:
        began, ended = chunks.began, chunks.ends[:-1]
        if (distance(began[1:], ended) <= tol).all():
            return True
        if chunks.solved.corrections == most:
            return False
        with np.errstate(all="ignore"):
            try:
                gaps = (ended - began[1:]).reshape(*ended.shape[:2], -1)
                corrected = began[1:] + propagate(linearize(chunks), gaps).reshape(ended.shape)
            except DynamicRangeError:  # tangents that no float can hold together, or of what is not finite
                corrected = np.full_like(ended, np.nan)
        if bound is not None:
            corrected = np.clip(corrected, -bound, bound)
        corrected = np.where(np.isfinite(corrected), corrected, ended)  # where tangents do not lead, just a pass
        chunks.run_all(np.concatenate([began[:1], corrected]))
        chunks.solved.corrections += 1


def propagate(products, gaps):
    """Solve ``d_{c+1} = P_c d_c + gaps[c]`` with ``d_0 = 0``, all steps of it at once, by the scan.

    Of the products [shape=(C, B, H, H)], the first and the last are not needed. Gaps and result, d_1 ... d_{C-1}, are
    [shape=(C - 1, B, H)]; NaN where products or gaps are not finite.
    """
    if not (all_finite(products) and all_finite(gaps)):
        return np.full_like(gaps, np.nan)
    local = np.zeros_like(gaps)
    local[:-1] = gaps[:0:-1]  # backprop goes from high indices to low ones
    return backprop(products[1:-1][::-1], gaps[0], local_grads=local)[::-1]
