"""Sliding windows: which outputs an input reaches, along one axis."""

from copy import copy
from functools import partial
from typing import Annotated

import numpy as np

from bppsa_nb.machine.checks import as_list, check_count, is_integer
from bppsa_nb.machine.reprs import short_repr


def pair(value, name="value", least=0) -> tuple[int, int]:
    """Return an integer twice, and two as they are, a tuple; raise TypeError or ValueError for anything else."""
    both = [value] * 2 if is_integer(value) else as_list(name, value, "an integer or two")
    if len(both) != 2:
        raise ValueError(f"{name} must be an integer or two, got {short_repr(value)}")
    return tuple(check_count(name, each, least) for each in both)


Pair = Annotated[int | tuple[int, int], partial(pair, least=1)]  # vertical and horizontal
Padding = Annotated[int | tuple[int, int], pair]


class Axis:
    """One axis of a convolution or pooling: input i reaches output o through tap k if o s - p + k d = i.

    `outputs` counts the outputs, and `valid` [shape=(size, kernel)] says whether input i reaches one through tap k. The
    same as lists: input i reaches ``output[start[i]:start[i + 1]]``, in rising order, through ``tap[...]``.
    """

    def __init__(self, size, kernel, stride=1, padding=0, dilation=1):
        reach = dilation * (kernel - 1) + 1
        if reach > size + 2 * padding:
            got = f"{kernel}{f' (dilated: {reach})' * (dilation > 1)} for {size}{f' + 2 * {padding}' * (padding > 0)}"
            raise ValueError(f"kernel must not be larger than the padded input, got {got}")
        self.outputs = (size + 2 * padding - reach) // stride + 1
        output, rest = np.divmod(np.arange(size)[:, None] + padding - np.arange(kernel) * dilation, stride)
        self.list_pairs(output, (rest == 0) & (0 <= output) & (output < self.outputs))

    def list_pairs(self, output, valid):
        """Say which outputs inputs reach, and which of these pairs there are; both [shape=(size, kernel)]."""
        self._output, self.valid = output, valid
        backwards = valid[:, ::-1]  # outputs rise as taps fall
        self.start = np.concatenate([[0], np.cumsum(backwards.sum(axis=1))])
        self.output = output[:, ::-1][backwards]
        self.tap = valid.shape[1] - 1 - np.nonzero(backwards)[1]

    def kinds(self):
        """Tell inputs apart by the taps valid for them: an axis with one of each kind, and every input's kind."""
        _, first, kind = np.unique(self.valid, axis=0, return_index=True, return_inverse=True)
        axis = copy(self)
        axis.list_pairs(self._output[first], self.valid[first])
        return axis, kind.reshape(-1)
