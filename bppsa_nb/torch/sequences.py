"""Batches of sequences as PyTorch has them: their order, and their direction."""

from typing import NamedTuple

import numpy as np
import torch

from bppsa_nb.cells.cell import WHOLE, Spans


class Sequences(NamedTuple):
    """How a batch is laid out, and in which direction of time it is read.

    Of packed sequences, `rows` says where each row belongs among all steps of all samples, padding included; they are
    None where `spans` have no lengths. The spans are those of steps as they are read.
    """

    spans: Spans = WHOLE
    rows: torch.Tensor | None = None
    backward: bool = False

    @classmethod
    def packed(cls, sizes):
        """Make those of a PackedSequence with these batch sizes."""
        steps, samples = np.arange(len(sizes))[:, None], np.arange(int(sizes[0]))
        there = samples < sizes.numpy()[:, None]
        lengths = there.sum(axis=0)
        spans = Spans(~there, lengths)
        return cls(spans, torch.from_numpy(np.flatnonzero(there))), cls(
            spans, torch.from_numpy(((lengths - 1 - steps) * len(samples) + samples)[there]), True
        )

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


def check_packed(packed):
    """Raise ValueError unless batch sizes of a PackedSequence are those of samples that come longest first."""
    sizes, rows = packed.batch_sizes, len(packed.data)
    if sizes.dtype != torch.int64 or sizes.dim() != 1 or not len(sizes):
        got = f"{sizes.dtype} {tuple(sizes.shape)}"
        raise ValueError(f"input.batch_sizes must be 64-bit integers [shape=(T,)], T at least 1, got {got}")
    if sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any() or int(sizes.sum()) != rows:
        got = f"{sizes.tolist()} for {rows} rows"
        raise ValueError(f"input.batch_sizes must not increase, and their sum be the rows of input.data, got {got}")
    for name in "sorted_indices", "unsorted_indices":
        indices, count = getattr(packed, name), int(sizes[0])
        if indices is not None and not torch.equal(indices.sort().values.cpu(), torch.arange(count)):
            raise ValueError(f"input.{name} must be the numbers from 0 to {count - 1} in some order, got {indices}")


def permuted(states, indices):
    """Put the samples of states (D L, B, H) in another order."""
    return states if indices is None else [each.index_select(1, indices) for each in states]
