"""Transposed Jacobians of a network's operators, made analytically (Section 3.4, Appendix D).

Where a transposed Jacobian may be non-zero follows from the architecture, and is worked out once: each class keeps
that as a `CSRPattern`. Rows are the operator's inputs, columns its outputs, both flattened in C order (c, h, w).
`fill` then writes the values, for every iteration or for every sample, into an array that can be used again.

Algorithms 2 to 10 are for 3 x 3 filters with padding 1 and for windows that do not overlap; these here take any, and
store exactly the entries that are no guaranteed zeros. Algorithms 2 to 4 also store entries that would reach beyond the
image's left or right border, as zeros; Algorithms 8 to 10 store the maxima only: a pattern that the input decides.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np

from bppsa_nb.machine import memory
from bppsa_nb.machine.arguments import Dtype, checked
from bppsa_nb.machine.checks import check_finite
from bppsa_nb.machine.reprs import short_repr
from bppsa_nb.machine.workers import parallel_for
from bppsa_nb.networks import fills
from bppsa_nb.networks.geometry import Axis, pair
from bppsa_nb.operands.pattern import CSRPattern

Out = Annotated[np.ndarray, "float[...]"] | None
_Samples = Annotated[np.ndarray, "float[*input_shape] or float[B, *input_shape]"]
_THRESHOLD = 2**19  # values below which a second thread is not woken
_LARGE = 2**26  # bytes from which memory is asked for; to ask takes longer than to fill a small array


class Jacobian(ABC):
    """What all operators have: `input_shape`, `output_shape`, and the sorted `pattern` of the transposed Jacobian."""

    def __init__(self, input_shape, output_shape, indptr, indices):
        self.input_shape, self.output_shape = input_shape, output_shape
        self.pattern = CSRPattern.made(indptr, indices, (math.prod(input_shape), math.prod(output_shape)))

    def __repr__(self):
        return f"{type(self).__name__}({self.input_shape} -> {self.output_shape}, nnz={self.pattern.nnz})"

    @abstractmethod
    def fill(self, source, out=None):
        """Write the values into `out` [shape=(nnz,)] or [shape=(B, nnz)], or into a new array, and return it.

        What they are made from is finite: the weight [shape=mask.shape], zero wherever the mask is false, for
        convolutions and linear layers; the input for ReLU and max-pooling, the output for tanh and sigmoid, of one
        sample [shape=input_shape] or of B; and only a dtype for flattening and average pooling.
        """

    def _out(self, out, dtype, given=()):
        """Return where to write values: `out`, if it can take those of what has the shape `given`, or a new array."""
        shape = (*given[: len(given) - len(self.input_shape)], self.pattern.nnz)
        if out is None:
            size = math.prod(shape) * dtype.itemsize
            if size >= _LARGE:
                memory.require(size, f"an array of values of {self!r}, of shape {shape},")
            return np.empty(shape, dtype)
        if out.shape != shape or out.dtype != dtype or not out.flags.carray:
            raise ValueError(f"out must be {dtype}{list(shape)}, contiguous and writeable, got {short_repr(out)}")
        return out


class Convolution(Jacobian):
    """The transposed Jacobian of a two-dimensional convolution (Algorithms 2 to 4).

    Row i has the same values as every row of the same input channel for which the same taps of the filter are valid. So
    values are looked up in the weight for one row of each kind, and copied from there to all others.

    `mask` [shape=(C_out, C_in, kh, kw)] says which weights may be non-zero; the others are guaranteed zeros, as after
    pruning. Other arguments are those of `bppsa_nb.networks.matrices.conv2d_jacobian_T`.
    """

    def __init__(self, mask, input_shape, *, stride=1, padding=0, dilation=1):
        mask, (channels, *size) = np.asarray(mask, order="C"), input_shape
        if mask.shape[1] != channels:
            raise ValueError(f"input_shape must have {mask.shape[1]} channels as the filters have, got {input_shape}")
        options = map(pair, (stride, padding, dilation))
        axes = [Axis(*numbers) for numbers in zip(size, mask.shape[2:], *options, strict=True)]
        output_shape = (len(mask), *(axis.outputs for axis in axes))
        self._prepare(mask, mask, axes, (channels, *size), output_shape)

    def _prepare(self, mask, filters, axes, input_shape, output_shape):
        """Make the pattern, and find the weights that belong to it; `filters` is the mask as a convolution's."""
        some, kinds = zip(*(axis.kinds() for axis in axes), strict=True)
        nnz, distinct = _count(filters, axes), _count(filters, some)
        _require(input_shape, output_shape, nnz, 4 * (nnz + distinct))
        super().__init__(input_shape, output_shape, *_entries(filters, axes, of_weight=False))
        self.mask = mask
        indptr, source = _entries(filters, some, of_weight=True)
        self._source = source.view(np.uint32)  # no index below 0 to look out for
        begin = indptr[:-1].reshape(-1, *(len(axis.valid) for axis in some))
        self._begin = begin[:, kinds[0][:, None], kinds[1]].reshape(-1)
        self._repeats = not np.array_equal(self._begin, self.pattern.indptr[:-1])

    @checked
    def fill(self, weight: Annotated[np.ndarray, "float[*mask.shape]"], out: Out = None) -> np.ndarray:
        """Write the values, by a weight; see `Jacobian.fill`."""
        flat = np.asarray(weight, order="C").reshape(-1)
        if not parallel_for(fills.usable, flat.size, flat, self.mask.reshape(-1), parallel=flat.size > _THRESHOLD):
            check_finite(weight=weight)
            place = np.argwhere((weight != 0) & ~self.mask)[0]
            raise ValueError(f"weight must be 0 where mask is False, got {weight[tuple(place)]} at {place.tolist()}")
        out = self._out(out, weight.dtype)
        how = {"parallel": out.size > _THRESHOLD}
        if not self._repeats:  # every row is of a kind of its own, and they are in order
            parallel_for(fills.gather, out.size, flat, self._source, out, **how)
            return out
        distinct = np.empty(self._source.size, weight.dtype)
        fills.gather(flat, self._source, distinct, 0, distinct.size)
        parallel_for(fills.repeat_rows, len(self._begin), distinct, self._begin, self.pattern.indptr, out, **how)
        return out


class Linear(Convolution):
    """The transposed Jacobian of a fully connected layer, its transposed weight: a 1 x 1 convolution of one pixel."""

    def __init__(self, mask, input_shape=None):  # which the mask tells
        mask = np.asarray(mask, order="C")
        outputs, inputs = mask.shape
        self._prepare(mask, mask[:, :, None, None], [Axis(1, 1), Axis(1, 1)], (inputs,), (outputs,))


class Elementwise(Jacobian):
    """The diagonal transposed Jacobian of a function of each entry; see `ReLU`, `Tanh` and `Sigmoid`."""

    _argument, _function, _expected = "y", fills.RELU, ""

    def __init__(self, input_shape):
        super().__init__(input_shape, input_shape, *_diagonal(input_shape))

    @checked
    def fill(self, x: _Samples, out: Out = None) -> np.ndarray:
        """Write the values, by an input or an output; see `Jacobian.fill`."""
        x, out = np.asarray(x, order="C"), self._out(out, x.dtype, x.shape)
        arrays = x.reshape(-1), out.reshape(-1)
        if not parallel_for(fills.slopes, x.size, self._function, *arrays, parallel=x.size > _THRESHOLD):
            check_finite(**{self._argument: x})
            raise ValueError(f"y must be {self._expected}, got values from {x.min()} to {x.max()}")
        return out


class ReLU(Elementwise):
    """The transposed Jacobian of ReLU by its input (Algorithms 5 to 7): 1 where x > 0, else a stored 0."""

    _argument = "x"


class Tanh(Elementwise):
    """The transposed Jacobian of tanh by its output: 1 - y²."""

    _function, _expected = fills.TANH, "the output of tanh, from -1 to 1"


class Sigmoid(Elementwise):
    """The transposed Jacobian of sigmoid by its output: y (1 - y)."""

    _function, _expected = fills.SIGMOID, "the output of sigmoid, from 0 to 1"


class Flatten(Jacobian):
    """The transposed Jacobian of flattening: the identity."""

    def __init__(self, input_shape):
        super().__init__(input_shape, (math.prod(input_shape),), *_diagonal(input_shape))

    @checked
    def fill(self, dtype: Dtype = np.float32, out: Out = None) -> np.ndarray:
        """Write the values, 1 each; see `Jacobian.fill`."""
        out = self._out(out, np.dtype(dtype))
        out.fill(1)
        return out


class Pooling(Jacobian):
    """What `MaxPool2d` and `AvgPool2d` have in common: every window's entries are stored.

    Rows and columns that no whole window reaches have no entries, as in PyTorch. Arguments are those of
    `bppsa_nb.networks.matrices.avg_pool2d_jacobian_T`.
    """

    def __init__(self, input_shape, kernel_size, *, stride=None):
        channels, *size = input_shape
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self._axes = [Axis(*numbers) for numbers in zip(size, self.kernel_size, self.stride, strict=True)]
        # Every channel is a convolution of one channel with one filter.
        self._filter = np.ones((1, 1, *self.kernel_size), bool)
        plane = tuple(axis.outputs for axis in self._axes)
        nnz = _count(self._filter, self._axes)
        _require((channels, *size), (channels, *plane), channels * nnz, 4 * (channels + 2) * nnz)
        indptr, indices = _entries(self._filter, self._axes, of_weight=False)
        channel = np.arange(channels, dtype=np.int32)[:, None]
        indptr = np.append((indptr[:-1] + nnz * channel.astype(np.int64)).reshape(-1), nnz * channels)
        indices = (indices + np.int32(math.prod(plane)) * channel).reshape(-1)
        super().__init__((channels, *size), (channels, *plane), indptr, indices)


class MaxPool2d(Pooling):
    """The transposed Jacobian of max-pooling, see `Pooling`: a 1 for the first maximum of a window, else a stored 0."""

    def __init__(self, input_shape, kernel_size, *, stride=None):
        super().__init__(input_shape, kernel_size, stride=stride)
        nnz = self.pattern.nnz // self.input_shape[0]
        _, tap = _entries(self._filter, self._axes, of_weight=True)
        taps = math.prod(self.kernel_size)
        slot = np.empty(nnz, np.uint32)  # where the entry of a window and a tap is
        slot[self.pattern.indices[:nnz] * taps + tap] = np.arange(nnz)
        self._slot = slot.reshape(*self.output_shape[1:], taps)

    @checked
    def fill(self, x: _Samples, out: Out = None) -> np.ndarray:
        """Write the values, by an input; see `Jacobian.fill`."""
        x, out = np.asarray(x, order="C"), self._out(out, x.dtype, x.shape)
        _, height, width = self.input_shape
        planes, values = x.reshape(-1, height * width), out.reshape(-1, self._slot.size)
        options = width, self.kernel_size, self.stride, self._slot
        if not parallel_for(fills.max_pool, len(planes), planes, *options, values, parallel=x.size > _THRESHOLD):
            check_finite(x=x)
        return out


class AvgPool2d(Pooling):
    """The transposed Jacobian of average pooling, 1 / (kh kw); see `Pooling` for the arguments."""

    @checked
    def fill(self, dtype: Dtype = np.float32, out: Out = None) -> np.ndarray:
        """Write the values, all alike; see `Jacobian.fill`."""
        out = self._out(out, np.dtype(dtype))
        out.fill(1 / math.prod(self.kernel_size))
        return out


def _require(input_shape, output_shape, nnz, size):
    """Raise unless a pattern can be had, whose entries and what belongs to them take `size` bytes."""
    shape = math.prod(input_shape), math.prod(output_shape)
    if max(shape) >= 2**31:
        raise ValueError(f"input and output must have less than 2**31 entries, got {input_shape} and {output_shape}")
    what = f"the pattern of a transposed Jacobian of shape {shape} with {nnz} entries"
    memory.require(size + 40 * shape[0], what)


def _diagonal(shape):
    """Return row pointers and columns of an identity."""
    size = math.prod(shape)
    _require(shape, shape, size, 4 * size)
    return np.arange(size + 1), np.arange(size, dtype=np.int32)


def _count(filters, axes):
    """Count the entries of a convolution's transposed Jacobian, without listing them."""
    kept = filters.sum(axis=(0, 1), dtype=np.int64)
    return int((kept * np.multiply.outer(*(axis.valid.sum(axis=0) for axis in axes))).sum())


def _entries(filters, axes, of_weight):
    """List row pointers and columns of a convolution's transposed Jacobian, or places in the weight (`of_weight`)."""
    vertical, horizontal = axes
    # Through each pair of taps that is valid for it, an input reaches one output for every filter that keeps them.
    kept = filters.sum(axis=0, dtype=np.int64)
    counts = vertical.valid.astype(np.int64) @ kept @ horizontal.valid.T.astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    entries = np.empty(indptr[-1], np.int32)
    lists = tuple((axis.start, axis.output, axis.tap) for axis in axes)
    sizes = vertical.outputs, horizontal.outputs
    by_input = np.ascontiguousarray(filters.swapaxes(0, 1))
    lines = len(by_input) * len(vertical.valid)
    options = lists, sizes, indptr, of_weight
    parallel_for(fills.list_entries, lines, by_input, *options, entries, parallel=entries.size > _THRESHOLD)
    return indptr, entries
