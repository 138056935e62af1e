"""The loss of classifiers, and what labels must be."""

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import checked, look_of
from bppsa_nb.machine.checks import as_array, check_finite

Labels = Annotated[ArrayLike, "int[B]"]
_LABELS = look_of(Labels)


@checked
def cross_entropy(logits: Annotated[ArrayLike, "floating[B, C]"], labels: Labels) -> tuple[float, np.ndarray]:
    """Compute the mean softmax cross-entropy, and its gradient at the logits, an array like them.

    `logits` are finite, `labels` integers from 0 to C - 1. The loss is computed in float64.
    """
    check_finite(logits=logits)
    labels = check_labels(labels, *logits.shape)
    with np.errstate(under="ignore"):  # a class that is all but ruled out is usual
        return mean_loss(logits, first_places(*logits.shape) + labels)


def first_places(batch, classes):
    """Return where the logits of each sample begin, if all are in one line."""
    return np.arange(0, batch * classes, classes)


def mean_loss(logits, places):
    """Compute what `cross_entropy` computes of what it checks; `places` are where the labels' logits are."""
    # Shifted by the largest logit, no exponential overflows and their sum is at least one.
    shifted = logits.astype(np.float64, order="C")
    shifted -= np.maximum.reduce(shifted, axis=1, keepdims=True)
    of_labels = shifted.reshape(-1)[places]
    exponentials = np.exp(shifted, out=shifted)
    sums = np.add.reduce(exponentials, axis=1, keepdims=True)
    loss = np.add.reduce(np.log(sums)[:, 0] - of_labels) / len(logits)
    exponentials /= sums
    exponentials.reshape(-1)[places] -= 1
    exponentials /= len(logits)
    return float(loss), exponentials.astype(logits.dtype)


def check_labels(labels, batch, classes):
    """Return labels as an array, or raise TypeError or ValueError unless they are classes of `batch` samples."""
    labels = _LABELS("labels", labels, {"B": batch, ("logits", ""): ["B"]})
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {wrong[0]}")
    return labels.astype(np.int64, copy=False)


def check_order(x, y):
    """Raise ValueError for sequences [shape=(B, T, I)] where the steps should come first."""
    if getattr(x, "ndim", 0) == 3 and as_array("labels", y).shape == x.shape[:1] != x.shape[1:2]:
        got = f"{x.shape} with {len(x)} labels; if samples come first, give x.swapaxes(0, 1)"
        raise ValueError(f"x must have shape (T, B, I), time first, got {got}")
