"""Sliding windows: which outputs an input reaches, along one axis."""

from copy import copy

import numpy as np

from bppsa_nb.machine.checks import is_integer


def pair(name, value, least):
    """Return an integer, or two of them, from `least` to below 2**31 as two; or raise TypeError or ValueError."""
    values = value if isinstance(value, (tuple, list)) else (value, value)
    if len(values) != 2 or not all(map(is_integer, values)):
        raise TypeError(f"{name} must be an integer or two, got {value!r}")
    if min(values) < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    if max(values) >= 2**31:
        raise ValueError(f"{name} must be less than 2**31, got {value!r}")
    return tuple(map(int, values))


def sizes(name, shape, count=None):
    """Return a shape as a tuple of integers from 1 to below 2**31, `count` of them if given; or raise an error."""
    if not isinstance(shape, (tuple, list)) or not all(map(is_integer, shape)):
        raise TypeError(f"{name} must be a tuple of integers, got {shape!r}")
    if min(shape, default=0) < 1 or len(shape) != (count or len(shape)):
        expected = f"{count} sizes, (C, h, w)" if count == 3 else "sizes"
        raise ValueError(f"{name} must be {expected}, each at least 1, got {tuple(shape)}")
    if max(shape, default=0) >= 2**31:
        raise ValueError(f"{name} must be sizes, each less than 2**31, got {tuple(shape)}")
    return tuple(map(int, shape))


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
