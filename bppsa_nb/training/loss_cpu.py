"""The loss of classifiers for whole steps; counterpart of `bppsa_nb.training.loss`, of which it has the bits.

Exponentials, logarithms and sums are NumPy's, whose last bits are its own.
"""

import math

import numpy as np

from bppsa_nb.machine.compiling import njit


def cross_entropy(logits, labels):
    """Compute what `bppsa_nb.training.loss.cross_entropy` computes of what it checks; for all else NaN."""
    shifted = logits.astype(np.float64)
    shifted -= np.maximum.reduce(shifted, axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = np.add.reduce(exponentials, axis=1)
    losses, grad = np.log(sums), np.empty(logits.shape, logits.dtype)
    _pick(shifted, exponentials, sums, labels, losses, grad)
    return float(np.add.reduce(losses) / len(labels)), grad


@njit(cache=True, error_model="numpy", nogil=True)
def _pick(shifted, exponentials, sums, labels, losses, grad):
    """Turn logarithms of sums into losses, and find the gradient of their mean."""
    batch, classes = shifted.shape
    for b in range(batch):
        label = labels[b]
        known = 0 <= label < classes
        losses[b] -= shifted[b, label if known else 0]
        for c in range(classes):
            share = exponentials[b, c] / sums[b]
            grad[b, c] = (share - 1.0 if c == label else share) / batch if known else math.nan
