"""Transposed Jacobians of a network's operators, made analytically (Section 3.4, Appendix D).

Where a transposed Jacobian may be non-zero follows from the architecture, and is worked out once: each class keeps
that as a `CSRPattern`. Rows are the operator's inputs, columns its outputs, both flattened in C order (c, h, w).
`fill` then writes the values, for every iteration or for every sample, into an array that can be used again.

Algorithms 2 to 10 are for 3 x 3 filters with padding 1 and for windows that do not overlap; these here take any, and
store exactly the entries that are no guaranteed zeros. Algorithms 2 to 4 also store entries that would reach beyond the
image's left or right border, as zeros; Algorithms 8 to 10 store the maxima only: a pattern that the input decides.
"""

import math
from typing import Annotated

import numpy as np
from scipy import sparse

from bppsa_nb.machine import memory
from bppsa_nb.machine.arguments import Dtype, checked
from bppsa_nb.machine.checks import check_finite, short_repr
from bppsa_nb.operands.pattern import CSRPattern

Out = Annotated[np.ndarray, "float[...]"] | None
_Samples = Annotated[np.ndarray, "float[*input_shape] or float[B, *input_shape]"]
_THRESHOLD = 2**19  # values below which a second thread is not woken
_LARGE = 2**26  # bytes from which memory is asked for; to ask takes longer than to fill a small array


class Jacobian:
    """An operator's transposed Jacobian: the sorted `pattern`, by `input_shape` and `output_shape` of one sample."""

    value = 1.0  # of all entries, where they are alike

    def __init__(self, operator, input_shape, indptr, indices):
        self.operator, self.input_shape = operator, input_shape
        self.output_shape = operator.output_shape(input_shape)
        self.pattern = CSRPattern.made(indptr, indices, (math.prod(input_shape), math.prod(self.output_shape)))

    def __repr__(self):
        shapes = f"{self.input_shape} -> {self.output_shape}"
        return f"{type(self).__name__}({self.operator!r}, {shapes}, nnz={self.pattern.nnz})"

    @checked
    def fill(self, dtype: Dtype = np.float32, out: Out = None) -> np.ndarray:
        """Write the values into `out` [shape=(nnz,)] or [shape=(B, nnz)], or into a new array, and return it.

        They are made from a dtype only, for flattening and average pooling. Others take, in its place, what is finite:
        convolutions and linear layers the weight [shape=mask.shape], zero wherever the mask is false; max-pooling the
        input, functions of each entry the output, of one sample [shape=input_shape] or of B.
        """
        out = self._out(out, np.dtype(dtype))
        out.fill(self.value)
        return out

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
    """The transposed Jacobian of a convolution (Algorithms 2 to 4), or of a linear operator: that of one pixel.

    Row i has the same values as every row of the same input channel for which the same taps of the filter are valid. So
    values are looked up in the weight for one row of each kind, and copied from there to all others.

    `mask` [shape=weight.shape] says which weights may be non-zero; the others are guaranteed zeros, as after pruning.
    """

    def __init__(self, operator, input_shape, mask):
        self.mask = mask = np.asarray(mask, order="C")
        output_shape = operator.output_shape(input_shape)
        if mask.ndim == 2:
            filters, axes, plane = mask[:, :, None, None], [_reached(1, 1, 1)] * 2, (1, 1)
        else:
            options = operator.stride, operator.padding, operator.dilation
            filters, axes = mask, _axes(input_shape, output_shape, mask.shape[2:], *options)
            plane = output_shape[1:]
        some, kinds = zip(*map(_kinds, axes), strict=True)
        nnz, distinct = _count(filters, axes), _count(filters, some)
        _require(input_shape, output_shape, nnz, 4 * (nnz + distinct))
        super().__init__(operator, input_shape, *_entries(filters, axes, plane, of_weight=False))
        indptr, source = _entries(filters, some, plane, of_weight=True)
        self._source = source.view(np.uint32)  # no index below 0 to look out for
        begin = indptr[:-1].reshape(-1, *map(len, some))
        self._begin = begin[:, kinds[0][:, None], kinds[1]].reshape(-1)
        self._repeats = not np.array_equal(self._begin, self.pattern.indptr[:-1])

    @checked
    def fill(self, weight: Annotated[np.ndarray, "float[*mask.shape]"], out: Out = None) -> np.ndarray:
        """Write the values, by a weight; see `Jacobian.fill`."""
        check_finite(weight=weight)
        if (stray := (weight != 0) & ~self.mask).any():
            place = np.argwhere(stray)[0]
            raise ValueError(f"weight must be 0 where mask is False, got {weight[tuple(place)]} at {place.tolist()}")
        flat, out = np.asarray(weight, order="C").reshape(-1), self._out(out, weight.dtype)
        # Where every row is of a kind of its own, they are in order.
        distinct = np.empty(self._source.size, weight.dtype) if self._repeats else out
        _run("gather", distinct.size, flat, self._source, distinct, size=distinct.size)
        if self._repeats:
            _run("repeat_rows", len(self._begin), distinct, self._begin, self.pattern.indptr, out, size=out.size)
        return out


class Diagonal(Jacobian):
    """The transposed Jacobian of flattening: the identity."""

    def __init__(self, operator, input_shape, mask=None):
        size = math.prod(input_shape)
        _require(input_shape, input_shape, size, 4 * size)
        super().__init__(operator, input_shape, np.arange(size + 1), np.arange(size, dtype=np.int32))


class Elementwise(Diagonal):
    """The transposed Jacobian of a function of each entry, by its output; of ReLU (Algorithms 5 to 7), by either."""

    @checked
    def fill(self, y: _Samples, out: Out = None) -> np.ndarray:
        """Write the slopes, by an output; see `Jacobian.fill`."""
        out = self._out(out, y.dtype, y.shape)
        check_finite(y=y)
        out[...] = self.operator.slope(y).reshape(out.shape)
        if out.min() < 0:
            raise ValueError(f"y must be {self.operator.output}, got values from {y.min()} to {y.max()}")
        return out


class AvgPool2d(Jacobian):
    """The transposed Jacobian of average pooling, 1 / (kh kw) wherever a window reads.

    Rows and columns that no whole window reaches have no entries, as in PyTorch.
    """

    def __init__(self, operator, input_shape, mask=None):
        channels, *plane = operator.output_shape(input_shape)
        self.value = 1 / math.prod(operator.kernel_size)
        self._axes = _axes(input_shape, (channels, *plane), operator.kernel_size, operator.stride)
        # Every channel is a convolution of one channel with one filter.
        self._filter = np.ones((1, 1, *operator.kernel_size), bool)
        nnz = _count(self._filter, self._axes)
        _require(input_shape, (channels, *plane), channels * nnz, 4 * (channels + 2) * nnz)
        indptr, indices = _entries(self._filter, self._axes, tuple(plane), of_weight=False)
        channel = np.arange(channels, dtype=np.int32)[:, None]
        indptr = np.append((indptr[:-1] + nnz * channel.astype(np.int64)).reshape(-1), nnz * channels)
        super().__init__(operator, input_shape, indptr, (indices + np.int32(math.prod(plane)) * channel).reshape(-1))


class MaxPool2d(AvgPool2d):
    """The transposed Jacobian of max-pooling: a 1 for the first maximum of a window, else a stored 0."""

    def __init__(self, operator, input_shape, mask=None):
        super().__init__(operator, input_shape)
        nnz = self.pattern.nnz // self.input_shape[0]
        _, tap = _entries(self._filter, self._axes, self.output_shape[1:], of_weight=True)
        taps = math.prod(operator.kernel_size)
        slot = np.empty(nnz, np.uint32)  # where the entry of a window and a tap is
        slot[self.pattern.indices[:nnz] * taps + tap] = np.arange(nnz)
        self._slot = slot.reshape(*self.output_shape[1:], taps)

    @checked
    def fill(self, x: _Samples, out: Out = None) -> np.ndarray:
        """Write the values, by an input; see `Jacobian.fill`."""
        x, out = np.asarray(x, order="C"), self._out(out, x.dtype, x.shape)
        _, height, width = self.input_shape
        planes, values = x.reshape(-1, height * width), out.reshape(-1, self._slot.size)
        window = width, self.operator.kernel_size, self.operator.stride
        if not _run("max_pool", len(planes), planes, *window, self._slot, values, size=x.size):
            check_finite(x=x)
        return out


@checked
def kinds_of_zeros(jacobian_T: sparse.csr_array | sparse.csr_matrix) -> np.ndarray:
    """Tell guaranteed zeros, possible zeros and other entries of `jacobian_T` apart (Figure 5).

    Returns
    -------
    np.ndarray of int8 [shape=(m, n)]
        0 where nothing is stored, a guaranteed zero; 1 where a zero is stored, which depends on the input; 2 elsewhere.

    Raises
    ------
    MemoryError
        If the dense array does not fit into memory.
    """
    pattern = CSRPattern.of(jacobian_T)
    memory.require(math.prod(pattern.shape), f"a dense array of shape {pattern.shape}")
    kinds = np.zeros(pattern.shape, np.int8)
    kinds[np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices] = 1 + (jacobian_T.data != 0)
    return kinds


def _reached(size, outputs, kernel, stride=1, padding=0, dilation=1):
    """Say which output each input of an axis reaches through each tap of the kernel, or -1 [shape=(size, kernel)]."""
    output, rest = np.divmod(np.arange(size)[:, None] + padding - np.arange(kernel) * dilation, stride)
    return np.where((rest == 0) & (output < outputs), np.maximum(output, -1), -1)


def _axes(input_shape, output_shape, *options):
    return [_reached(*numbers) for numbers in zip(input_shape[1:], output_shape[1:], *options, strict=True)]


def _kinds(axis):
    """Tell inputs apart by the taps through which they reach outputs: one of each kind, and every input's kind."""
    _, first, kind = np.unique(axis >= 0, axis=0, return_index=True, return_inverse=True)
    return axis[first], kind.reshape(-1)


def _run(name, count, *arguments, size):
    """Run a loop of `bppsa_nb.networks.fills`, on all cores if it writes or reads many values."""
    from bppsa_nb.machine.workers import parallel_for  # here: they bring the compiler, for which nobody else waits
    from bppsa_nb.networks import fills

    return parallel_for(getattr(fills, name), count, *arguments, parallel=size > _THRESHOLD)


def _require(input_shape, output_shape, nnz, size):
    """Raise unless a pattern can be had, whose entries and what belongs to them take `size` bytes."""
    shape = math.prod(input_shape), math.prod(output_shape)
    if max(shape) >= 2**31:
        raise ValueError(f"input and output must have less than 2**31 entries, got {input_shape} and {output_shape}")
    what = f"the pattern of a transposed Jacobian of shape {shape} with {nnz} entries"
    memory.require(size + 40 * shape[0], what)


def _count(filters, axes):
    """Count the entries of a convolution's transposed Jacobian, without listing them."""
    kept = filters.sum(axis=(0, 1), dtype=np.int64)
    return int((kept * np.multiply.outer(*((axis >= 0).sum(axis=0) for axis in axes))).sum())


def _entries(filters, axes, plane, of_weight):
    """List row pointers and columns of a convolution's transposed Jacobian, or places in the weight (`of_weight`)."""
    vertical, horizontal = axes
    # Through each pair of taps that is valid for it, an input reaches one output for every filter that keeps them.
    kept = filters.sum(axis=0, dtype=np.int64)
    counts = (vertical >= 0).astype(np.int64) @ kept @ (horizontal >= 0).T.astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    entries = np.empty(indptr[-1], np.int32)
    by_input = np.ascontiguousarray(filters.swapaxes(0, 1))
    lines = len(by_input) * len(vertical)
    _run("list_entries", lines, by_input, tuple(axes), plane, indptr, of_weight, entries, size=entries.size)
    return indptr, entries
