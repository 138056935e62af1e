"""Samples of different lengths, and states that begin anew in the middle of one: which steps belong together."""

from typing import NamedTuple

import numpy as np


class Spans(NamedTuple):
    """Which steps of a batch of T belong together.

    The states before a step count as zeros where `resets` [shape=(T, B)] is true: a Jacobian of zeros, which ends every
    scan. `lengths` [shape=(B,)] say how many steps each sample has. What comes after is padding: each step of it begins
    anew, states there are zeros, and loss terms have to be. Either is empty where there is nothing to say.
    """

    resets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def checked(cls, lengths, resets, x):
        """Make them of lengths and resets of inputs [shape=(T, B, ...)]; raise ValueError for lengths beyond 1 to T."""
        steps, found = len(x), WHOLE
        if resets is not None and resets.any():
            found = found._replace(resets=np.array(resets, order="C"))
        if lengths is None:
            return found
        if not steps:
            raise ValueError(f"lengths must be None where x has no steps, got {lengths.tolist()}")
        for b in np.flatnonzero((lengths < 1) | (lengths > steps))[:1]:
            raise ValueError(f"lengths must be 1 to {steps}, the steps of x, got lengths[{b}] = {lengths[b]}")
        padding = np.arange(steps)[:, None] >= lengths
        return cls(padding if resets is None else padding | resets, lengths.astype(np.int64))

    @property
    def whole(self):
        """Whether there is nothing to say."""
        return not self.resets.size

    @property
    def flat(self):
        """What compiled code reads: resets [shape=(T B,)] and lengths."""
        return self.resets.reshape(-1), self.lengths

    def before(self, states):
        """Return what steps begin with [shape=(S, T or more, B, H)], of states [shape=(S, T + 1, B, H)]."""
        if self.whole:
            return states
        found = np.array(states, order="C")
        found[:, :-1][:, self.resets] = 0
        return found

    def end(self, states):
        """Set the states of padding to zeros."""
        if self.lengths.size:
            states[:, 1:][:, np.arange(len(self.resets))[:, None] >= self.lengths] = 0

    def last(self, array):
        """Return what is of every sample's last step [shape=(B, H)], of an array [shape=(T (+ 1), B, H)]."""
        if not self.lengths.size:
            return array[len(array) - 1]
        from_end = self.lengths - len(self.resets) - 1
        return array[from_end, np.arange(len(from_end))]


WHOLE = Spans(np.zeros((0, 0), np.bool_), np.zeros(0, np.int64))
