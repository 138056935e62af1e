"""Batches of sequences as PyTorch has them: their order, their direction, and where packed ones are read."""

from bisect import bisect_left, insort
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from bppsa_nb.cells.cell import WHOLE, Spans

_TOGETHER = 4  # samples that a step takes as long for as for one more


class Sequences(NamedTuple):
    """How a batch is laid out, and in which direction of time it is read.

    Packed sequences are read end to end, several by each sample of fewer, so that hardly any steps are padding: `rows`
    says which of all samples' steps each row is, and `numbers`, which of the sequences of `spans` each of the packed
    ones is. Of samples that begin anew with states of their own, `numbers` are of each one's last sequence. Both are
    None for others. Between the same steps of both directions, sequences begin.
    """

    spans: Spans = WHOLE
    rows: torch.Tensor | None = None
    numbers: np.ndarray | None = None
    backward: bool = False

    @classmethod
    def packed(cls, sizes):
        """Make those of a PackedSequence with these batch sizes."""
        counts = sizes.numpy()
        lengths = np.searchsorted(-counts, -np.arange(counts[0]))
        samples, steps = lay_end_to_end(lengths)
        places, numbers, resets = [], np.empty(len(lengths), np.int64), np.zeros((steps, len(samples)), np.int32)
        for sample, own in enumerate(samples):
            first = [0, *accumulate(lengths[own].tolist())]
            numbers[own] = np.arange(len(places), len(places) + len(own))
            first = first if first[-1] < steps else first[:-1]  # what is left is one sequence more, of padding
            resets[first, sample] = np.arange(len(places), len(places) + len(first)) + 1
            places += zip([sample] * len(first), first, [*first[1:], steps], strict=True)
        spans = WHOLE._replace(resets=resets, places=np.array(places).T)
        sample, first, _ = spans.places[:, numbers]
        begin = np.cumsum(counts) - counts  # the first row of each step
        step, one = np.repeat(np.arange(len(counts)), counts), np.arange(counts.sum()) - np.repeat(begin, counts)
        rows = (first[one] + step) * len(samples) + sample[one]
        rows, turned = map(torch.from_numpy, (rows, begin[lengths[one] - 1 - step] + one))
        return cls(spans, rows, numbers), cls(spans, rows[turned], numbers, backward=True)

    @classmethod
    def cut(cls, resets, several=False):
        """Make those of samples that begin anew here and there [shape=(T, B)], with zeros, or states of their own."""
        found = []
        for backward in False, True:
            begins = np.concatenate([np.zeros_like(resets[:1]), resets[:0:-1]]) if backward else resets
            if several:
                sample, first = np.nonzero((begins | (np.arange(len(begins)) == 0)[:, None]).T)
                numbers, spans = np.flatnonzero(np.append(np.diff(sample), 1)), np.zeros(begins.shape, np.int32)
                stop = np.append(first[1:], 0)
                stop[numbers], spans[first, sample] = len(begins), 1 + np.arange(len(first))
                spans = WHOLE._replace(resets=spans, places=np.stack([sample, first, stop]))
            else:
                spans, numbers = Spans.checked(None, begins, begins), None
            found.append(cls(spans, None, numbers, backward))
        return found

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

    def started(self, starts, anew, resets):
        """Return states that sequences begin with [shape=(L, n, H)].

        Of each sample they are those it is given [shape=(L, B, H)]; where it begins anew, others [shape=(L, T, B, H)].
        """
        sample, first, _ = self.spans.places
        own = torch.from_numpy((first > 0) | (resets[0, sample] & (not self.backward))).to(starts.device)
        return torch.where(own[:, None], anew[:, -first if self.backward else first, sample], starts[:, sample])

    def of_each(self, starts):
        """Return states that sequences begin with [shape=(L, n, H)], of those of packed ones [shape=(L, B, H)]."""
        if self.rows is None:
            return starts
        order = np.zeros(self.spans.places.shape[1], np.int64)
        order[self.numbers] = np.arange(len(self.numbers))
        return [each[:, order] for each in starts]

    def begin(self, starts):
        """Return spans, and the samples' initial states [shape=(L, B, H)], of what `Solve` is given."""
        if not self.spans.places.size:
            return self.spans, starts
        starts = self.of_each(starts)
        spans = self.spans._replace(starts=torch.stack(starts, 1).numpy())
        return spans, [each[:, self.spans.places[1] == 0] for each in starts]

    def by_number(self, grads):
        """Return what is of each sample [shape=(B, ...)] by the numbers of sequences."""
        if self.numbers is None:
            return grads
        found = np.zeros((self.spans.places.shape[1], *grads.shape[1:]), grads.dtype)
        found[self.numbers] = grads
        return found

    def by_sample(self, states):
        """Return what is of each sequence as samples come [shape=(B, ...)]."""
        return states if self.numbers is None else states[self.numbers]


BOTH = Sequences(), Sequences(backward=True)


def lay_end_to_end(lengths):
    """Share sequences, longest first, out to samples, so that little is left; return a list of each, and steps of all.

    Each goes where it leaves the least room (best fit). Samples may be twice as long as the first.
    """
    found = []
    for steps in int(lengths[0]), int(1.5 * lengths[0]), 2 * int(lengths[0]):
        samples, room = [], []
        for i, length in enumerate(lengths.tolist()):
            at = bisect_left(room, (length, 0))
            if at == len(room):
                room.append((steps, len(samples)))
                samples.append([])
            left, sample = room.pop(at)
            samples[sample].append(i)
            insort(room, (left - length, sample))
        found.append((samples, steps - room[0][0]))
    return min(found, key=lambda each: each[1] * (len(each[0]) + _TOGETHER))


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
