"""A chain of transposed Jacobians that are stored, as methods take it: with the methods of a `StructuredChain`."""

import numpy as np

from bppsa_nb.machine.memory import contiguous
from bppsa_nb.operands import rows
from bppsa_nb.operands.range import ample, half


class StoredChain:
    """T transposed Jacobians [shape=(T, B, H, H)], or [shape=(T, 1, H, H)] for all samples."""

    num_weights = 0  # which stands for stored Jacobians

    def __init__(self, jacobians_T):
        self.jacobians_T, self.shape, self.dtype = jacobians_T, jacobians_T.shape[:3], jacobians_T.dtype

    def cut(self, start, runs, length):
        """View the Jacobians from one on, in runs of so many steps [shape=(length, runs, B, H, H)]."""
        whole = self.jacobians_T[start : start + runs * length]
        return whole.reshape(runs, length, *whole.shape[1:]).swapaxes(0, 1)

    def back(self, link, grads):
        """Go back one step of every run; gradients are [shape=(runs, B, H)] or (runs, B, V, H)."""
        if grads.ndim == 3:
            return (link @ grads[..., None])[..., 0]
        return grads @ link.swapaxes(-1, -2)

    def factors(self, start, runs, length):
        """Return what `cut` returns, scaled where products could leave the range; the powers of two taken out; and 0.

        The last is how small an entry of a product may be: as links are scaled before, any size.
        """
        links, info = self.cut(start, runs, length), np.finfo(self.dtype)
        size, powers = np.abs(links), np.zeros(links.shape[:-2], int)
        fits = (size >= np.ldexp(1.0, half(info.minexp))) & (size <= np.ldexp(1.0, ample(info.maxexp))) | (size == 0)
        if not (moderate := fits.all(axis=(-2, -1))).all():
            links = links.copy()
            scaled, powers[~moderate] = rows.normalize(links[~moderate].reshape(-1, size[0, 0, 0].size), 0)
            links[~moderate] = scaled.reshape(-1, *links.shape[-2:])
        return links, powers, 0.0

    def arrays(self, batch):
        """Return weights, slopes and carry, of which there are none, and the Jacobians, as compiled code takes them."""
        T, _, H = self.shape
        none, diagonals = np.empty((0, H, H), self.dtype), np.empty((0, T, batch, H), self.dtype)
        return none, diagonals, diagonals, *contiguous(self.jacobians_T)
