"""Batches of sequences as PyTorch has them: their order, and their direction."""

from typing import NamedTuple

import numpy as np
import torch

from bppsa_nb.cells.cell import WHOLE, Spans


class Sequences(NamedTuple):
    """How a batch is laid out, and in which direction of time it is read.

    Of packed sequences, `rows` says where each row belongs among all steps of all samples, padding included; `turned`,
    backward in time, which row is read in its place; and `sizes` are PyTorch's batch sizes. All three are None for
    others. The spans are those of steps as they are read.
    """

    spans: Spans = WHOLE
    rows: torch.Tensor | None = None
    turned: torch.Tensor | None = None
    sizes: torch.Tensor | None = None
    backward: bool = False

    @classmethod
    def packed(cls, sizes):
        """Make those of a PackedSequence with these batch sizes."""
        steps, samples = np.arange(len(sizes))[:, None], np.arange(int(sizes[0]))
        there = samples < sizes.numpy()[:, None]
        lengths = there.sum(axis=0)
        spans, places = Spans(~there, lengths), ((lengths - 1 - steps) * len(samples) + samples)[there]
        numbers = np.cumsum(there).reshape(there.shape) - 1
        rows, places, turned = map(torch.from_numpy, (np.flatnonzero(there), places, numbers.reshape(-1)[places]))
        return cls(spans, rows, None, sizes), cls(spans, places, turned, sizes, backward=True)

    @classmethod
    def cut(cls, spans):
        """Make those of sequences that begin anew here and there; backward in time, between the same steps."""
        resets = np.concatenate([np.zeros_like(spans.resets[:1]), spans.resets[:0:-1]])
        return cls(spans), cls(spans._replace(resets=resets), backward=True)

    def steps(self, given):
        """Lay rows or steps out as they are read [shape=(T, B, ...)]."""
        if self.rows is None:
            return given.flip(0) if self.backward else given
        shape = self.spans.resets.shape
        padded = given.new_zeros(shape[0] * shape[1], given.shape[1])
        return padded.index_copy_(0, self.rows, given).view(*shape, -1)

    def given(self, steps):
        """Lay out what `steps` returns as it was given."""
        if self.rows is None:
            return steps.flip(0) if self.backward else steps
        return steps.reshape(-1, steps.shape[2]).index_select(0, self.rows)


BOTH = Sequences.cut(WHOLE)


def fit(packed):
    """Tell whether a PackedSequence is one: batch sizes of samples that come longest first, and orders of these."""
    sizes, rows, orders = packed.batch_sizes, len(packed.data), packed[2:]
    if sizes.dtype != torch.int64 or sizes.dim() != 1 or not len(sizes) or not sizes.is_cpu:
        return False
    if sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any() or int(sizes.sum()) != rows:
        return False
    every = torch.arange(int(sizes[0]))
    return all(order is None or torch.equal(order.sort().values.cpu(), every) for order in orders)


def permuted(states, indices):
    """Put the samples of states (D L, B, H) in another order."""
    return states if indices is None else [each.index_select(1, indices) for each in states]
