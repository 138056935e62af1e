"""Batches of sequences as PyTorch has them: their order, their directions, and what is dropped of them."""

import numpy as np
import torch
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def check_sizes(sizes, data):
    """Raise ValueError unless batch sizes of a PackedSequence are those of samples that come longest first."""
    if not len(sizes) or sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any() or int(sizes.sum()) != len(data):
        got = f"{sizes.tolist()} for {len(data)} rows"
        raise ValueError(f"input.batch_sizes must not increase, and their sum be the rows of input.data, got {got}")


def permuted(states, indices):
    """Put the samples of states (D L, B, H) in another order."""
    return states if indices is None else [each.index_select(1, indices) for each in states]


def dropped(x, spans, share):
    """Drop outputs of a layer, as many as PyTorch draws numbers for: none for padding."""
    if not spans.lengths.size:
        return dropout(x, share)
    packed = pack_padded_sequence(x, torch.from_numpy(spans.lengths))
    return pad_packed_sequence(packed._replace(data=dropout(packed.data, share)))[0]


def reversed_steps(x, spans):
    """Turn every sample's steps around."""
    if not spans.lengths.size:
        return x.flip(0)
    steps = np.arange(len(x))[:, None]
    order = torch.from_numpy(np.where(steps < spans.lengths, spans.lengths - 1 - steps, steps))
    return x.gather(0, order[:, :, None].expand_as(x))


def reversed_spans(spans):
    """Turn what `reversed_steps` turns: between the same steps as before, a sample begins anew."""
    if spans.lengths.size or spans.whole:
        return spans
    return spans._replace(resets=np.concatenate([np.zeros_like(spans.resets[:1]), spans.resets[:0:-1]]))
