"""Handwritten digits, and the residual network that learns them."""

import numpy as np

from bppsa_nb import sparse
from bppsa_nb.multigrid import ResidualModel

WIDTH = 16
TEST_DIGITS = 450


class Digits:
    """scikit-learn's 1797 digits of 8 x 8 pixels, as vectors from -1 to 1; a quarter of them is the "test" split."""

    data = "real"

    def __init__(self, split):
        from sklearn.datasets import load_digits

        bunch = load_digits()
        order = np.random.default_rng(0).permutation(len(bunch.target))
        chosen = order[:TEST_DIGITS] if split == "test" else order[TEST_DIGITS:]
        self.x, self.y = (bunch.data[chosen] / 8 - 1).astype(np.float32), bunch.target[chosen].astype(np.int64)

    def __len__(self):
        return len(self.y)

    def batch(self, indices):
        """Return vectors [shape=(B, 64)] and labels [shape=(B,)]."""
        return self.x[indices], self.y[indices]


def network(depth, T, rng, solver=None):
    """Make a ResidualModel of dense layers for them, with T = N h."""
    opening = [sparse.Linear("opening", 64, WIDTH), sparse.Tanh("tanh")]
    closing = [sparse.Linear("closing", WIDTH, 10)]
    return ResidualModel((64,), opening, depth, closing, h=T / depth, solver=solver, rng=rng)
