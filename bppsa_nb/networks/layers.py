"""Operators of convolutional networks: forward, ordinary backward, gradients of their parameters.

Arrays have the shapes that PyTorch gives them, samples first: images (B, C, H, W), vectors (B, n). In memory samples
stand last. So neighbors in memory are neighbors in the image, of every sample: what im2col copies comes in long runs,
one matrix product serves the whole batch, weights are used as they lie, and flattening costs nothing. Arrays that lie
otherwise are taken as well, and copied.

A new operator is a class here; `bppsa_nb.networks.jacobians` needs another one only if its Jacobian is of a new kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import sparse
from scipy.special import expit

from bppsa_nb.machine import checks
from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.checks import short_repr
from bppsa_nb.networks import jacobians


def pair(value, name="value", least=0) -> tuple[int, int]:
    """Return an integer twice, and two as they are, a tuple; raise TypeError or ValueError for anything else."""
    both = [value] * 2 if checks.is_integer(value) else checks.as_list(name, value, "an integer or two")
    if len(both) != 2:
        raise ValueError(f"{name} must be an integer or two, got {short_repr(value)}")
    return tuple(checks.check_count(name, each, least) for each in both)


Pair = Annotated[int | tuple[int, int], partial(pair, least=1)]  # vertical and horizontal
Padding = Annotated[int | tuple[int, int], pair]


def _samples_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


def _samples_first(x):
    return np.moveaxis(x, -1, 0)


class Operator(ABC):
    """One operator of a network, whose parameters are called ``name.weight`` and ``name.bias``.

    `param_shapes` has the shapes of its ``weight`` and ``bias``, if it has them. `reads` says what a Jacobian's values
    are made from: the input ``"x"``, the output ``"y"``, the ``"weight"``, or only a ``"dtype"``, as all are alike.
    `jacobian_class` makes them.
    """

    reads, jacobian_class = "x", jacobians.Jacobian

    @checked
    def __init__(self, name: str):
        if not name:
            raise ValueError("name must not be empty, got ''")
        self.name = name
        self.param_shapes: dict[str, tuple[int, ...]] = {}

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one sample's output shape, or raise ValueError where the input's does not fit."""
        return input_shape

    @property
    def shared(self) -> bool:
        """Whether all samples have the same Jacobian."""
        return self.reads in ("weight", "dtype")

    @abstractmethod
    def forward(self, x, *params):
        """Compute the output [shape=(B, ...)] from the input [shape=(B, ...)], weight and bias."""

    @abstractmethod
    def backward(self, grad, x, y, *params):
        """Turn the gradient at the output y into the one at the input x."""

    def parameter_gradients(self, grad, x):
        """Turn the gradient at the output into those of weight and bias, summed over the batch."""
        return ()

    @checked
    def jacobian_T(
        self, x: Annotated[np.ndarray, "float[N, ...]"], weight: Annotated[np.ndarray, "float[...]"] | None = None
    ) -> sparse.csr_array:
        """Make the transposed Jacobian at one sample from scratch; `jacobian` keeps the pattern for many.

        Parameters
        ----------
        x
            The input of one sample. Of an operator that is linear, only its shape and dtype matter.
        weight
            Of an operator that has one. Weights that are exactly zero count as pruned: nothing is stored for them.

        Returns
        -------
        scipy.sparse.csr_array [shape=(inputs, outputs)]
            A row for each number that goes in, a column for each that comes out, both flattened in C order. What
            depends on the input is stored even where it is 0: the slope of ReLU, and all entries of a max-pooled
            window, of which the first maximum has 1.

        Raises
        ------
        MemoryError
            If the matrix does not fit into memory.
        """
        shape = self.param_shapes.get("weight")
        if shape is None and weight is not None:
            raise ValueError(f"weight must be None: {self!r} has none, got {short_repr(weight)}")
        if shape is not None and (weight is None or weight.shape != shape):
            raise ValueError(f"weight must have shape {shape}, got {short_repr(weight)}")
        self.output_shape(x.shape)
        checks.check_finite(x=x)
        y = self.forward(x[None])[0] if self.reads == "y" else None
        jacobian = self.jacobian(x.shape, None if weight is None else weight != 0)
        return jacobian.pattern.matrix(jacobian.fill(self.source(x, y, weight)))

    @checked
    def jacobian(
        self, input_shape: Sequence[Size], mask: Annotated[np.ndarray, "bool[...]"] | None = None
    ) -> jacobians.Jacobian:
        """Find the `pattern` of the transposed Jacobian, once: its method `fill` writes values for any sample.

        `mask` [shape=param_shapes["weight"]] says which weights may be other than zero; all of them if not given.
        """
        shape = self.param_shapes.get("weight")
        if mask is None and shape is not None:
            mask = np.ones(shape, bool)
        if mask is not None and mask.shape != shape:
            raise ValueError(f"mask must have the weight's shape {shape}, got {mask.shape}")
        return self.jacobian_class(self, input_shape, mask)

    def source(self, x, y, weight=None, bias=None):
        """Return what the Jacobian's values are made from: the weight, the input, the output or a dtype."""
        return {"x": x, "y": y, "weight": weight, "dtype": x.dtype}[self.reads]

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r})"

    def _refuse(self, expected, got):
        raise ValueError(f"operator {self.name!r} needs an input of shape {expected}, got {got}")


class _Sliding(Operator):
    """What slides a window over an image."""

    def _slide(self, kernel_size, stride, padding=0, dilation=1):
        self.kernel_size, self.stride, self.padding, self.dilation = map(pair, (kernel_size, stride, padding, dilation))
        self._span = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True))

    def _output_size(self, size):
        padded = [n + 2 * p for n, p in zip(size, self.padding, strict=True)]
        if any(span > n for span, n in zip(self._span, padded, strict=True)):
            covers = f"{self._span}, larger than its padded input of {tuple(padded)}"
            raise ValueError(f"operator {self.name!r} has a kernel that covers {covers}")
        return tuple((n - span) // s + 1 for n, span, s in zip(padded, self._span, self.stride, strict=True))

    def _pad(self, x):
        """Return x (C, H, W, B) with its padding around it."""
        around = [(0, 0), *zip(self.padding, self.padding, strict=True), (0, 0)]
        return np.pad(x, around) if any(self.padding) else x

    def _at_offsets(self, x, size):
        """Yield, for each place in the window, the view of padded x (C, H, W, B) that it reads."""
        (sh, sw), (dh, dw) = self.stride, self.dilation
        for i in range(0, self._span[0], dh):
            for j in range(0, self._span[1], dw):
                yield x[:, i : i + sh * (size[0] - 1) + 1 : sh, j : j + sw * (size[1] - 1) + 1 : sw]


class Conv2d(_Sliding):
    """A convolution with bias.

    Parameters
    ----------
    name
        What its parameters are called by.
    in_channels, out_channels
        How many channels the input and the output have.
    kernel_size, stride, padding, dilation
        As in PyTorch, for height and width.
    """

    reads, jacobian_class = "weight", jacobians.Convolution

    @checked
    def __init__(
        self, name: str, in_channels: Size, out_channels: Size, kernel_size: Pair, stride: Pair = 1,
        padding: Padding = 0, dilation: Pair = 1,
    ):  # fmt: skip
        super().__init__(name)
        self._slide(kernel_size, stride, padding, dilation)
        self.param_shapes = {"weight": (out_channels, in_channels, *self.kernel_size), "bias": (out_channels,)}

    def output_shape(self, input_shape):
        """Return (C_out, h, w)."""
        channels = self.param_shapes["weight"][1]
        if len(input_shape) != 3 or input_shape[0] != channels:
            self._refuse(f"({channels}, h, w)", input_shape)
        return (self.param_shapes["bias"][0], *self._output_size(input_shape[1:]))

    def _columns(self, x, size):
        """Im2col: what each output reads, one column each [shape=(C_in * kh * kw, h * w * B)]."""
        (sh, sw), (dh, dw) = self.stride, self.dilation
        windows = sliding_window_view(self._pad(_samples_last(x)), self._span, axis=(1, 2))
        windows = windows[:, ::sh, ::sw, :, ::dh, ::dw]  # (C_in, h, w, B, kh, kw)
        return windows.transpose(0, 4, 5, 1, 2, 3).reshape(-1, size[0] * size[1] * len(x))

    def forward(self, x, weight, bias):
        """Multiply the weight by im2col's columns."""
        shape = self.output_shape(x.shape[1:])
        y = weight.reshape(len(weight), -1) @ self._columns(x, shape[1:])
        y += bias[:, None]
        return _samples_first(y.reshape(*shape, len(x)))

    def backward(self, grad, x, y, weight, bias):
        """Multiply by the transposed weight and add up what went to several windows (col2im)."""
        batch, channels, *size = x.shape
        columns = weight.reshape(len(weight), -1).T @ _samples_last(grad).reshape(len(weight), -1)
        columns = columns.reshape(channels, -1, *grad.shape[2:], batch)
        (top, left), (height, width) = self.padding, size
        padded = np.zeros((channels, height + 2 * top, width + 2 * left, batch), grad.dtype)
        for k, view in enumerate(self._at_offsets(padded, grad.shape[2:])):
            view += columns[:, k]
        return _samples_first(padded[:, top : top + height, left : left + width])

    def parameter_gradients(self, grad, x):
        """Multiply im2col's columns by the gradient, and transpose."""
        rows = _samples_last(grad).reshape(grad.shape[1], -1)
        # The longer side first: with few rows, and another process on a core, OpenBLAS waits for it hundreds of times.
        weight = (self._columns(x, grad.shape[2:]) @ rows.T).T
        return weight.reshape(self.param_shapes["weight"]), rows.sum(axis=1)


class Linear(Operator):
    """A fully connected operator with bias.

    Parameters
    ----------
    name
        What its parameters are called by.
    in_features, out_features
        How many numbers the input and the output have.
    """

    reads, jacobian_class = "weight", jacobians.Convolution  # of one pixel

    @checked
    def __init__(self, name: str, in_features: Size, out_features: Size):
        super().__init__(name)
        self.param_shapes = {"weight": (out_features, in_features), "bias": (out_features,)}

    def output_shape(self, input_shape):
        """Return (out_features,)."""
        outputs, inputs = self.param_shapes["weight"]
        if input_shape != (inputs,):
            self._refuse((inputs,), input_shape)
        return (outputs,)

    def forward(self, x, weight, bias):
        """Compute ``W x + b``."""
        y = weight @ _samples_last(x)
        y += bias[:, None]
        return y.T

    def backward(self, grad, x, y, weight, bias):
        """Multiply by the transposed weight."""
        return (weight.T @ _samples_last(grad)).T

    def parameter_gradients(self, grad, x):
        """Multiply the gradient by the input, and add up the gradient."""
        rows = _samples_last(grad)
        return rows @ _samples_last(x).T, rows.sum(axis=1)


class _Elementwise(Operator):
    """A function of each entry, and its `slope` by its output, which the gradient is multiplied by."""

    reads, jacobian_class, output = "y", jacobians.Elementwise, ""
    _function = slope = None

    def forward(self, x):
        """Compute it."""
        return self._function(x)

    def backward(self, grad, x, y):
        """Multiply by the slope."""
        return grad * self.slope(y)


class ReLU(_Elementwise):
    """``max(x, 0)``, under a `name`; its derivative at 0 is 0."""

    _function = staticmethod(lambda x: np.maximum(x, 0))
    slope = staticmethod(lambda y: y > 0)  # three times as fast as np.where


class Tanh(_Elementwise):
    """The hyperbolic tangent, under a `name`."""

    output = "the output of tanh, from -1 to 1"
    _function, slope = staticmethod(np.tanh), staticmethod(lambda y: 1 - y * y)


class Sigmoid(_Elementwise):
    """The logistic function, under a `name`."""

    output = "the output of sigmoid, from 0 to 1"
    _function, slope = staticmethod(expit), staticmethod(lambda y: y * (1 - y))


class _Pool(_Sliding):
    """What pooling operators share. The stride is the kernel's size if not given, so that windows do not overlap."""

    @checked
    def __init__(self, name: str, kernel_size: Pair, stride: Pair | None = None):
        super().__init__(name)
        self._slide(kernel_size, kernel_size if stride is None else stride)

    def output_shape(self, input_shape):
        """Return (C, h, w)."""
        if len(input_shape) != 3:
            self._refuse("(C, h, w)", input_shape)
        return (input_shape[0], *self._output_size(input_shape[1:]))

    def forward(self, x):
        """Take what a window reads together, one place after the other."""
        first, *others = self._at_offsets(_samples_last(x), self.output_shape(x.shape[1:])[1:])
        y = first.copy()
        for view in others:
            self._together(y, view, out=y)
        return _samples_first(y)


class MaxPool2d(_Pool):
    """The largest entry of a window of `AvgPool2d`. Of several, the first by rows has the gradient, as in PyTorch."""

    jacobian_class, _together = jacobians.MaxPool2d, np.maximum

    def backward(self, grad, x, y):
        """Send each gradient to where its window had the largest entry."""
        size, x, y, grad = y.shape[2:], *map(_samples_last, (x, y, grad))
        result = np.zeros_like(x, dtype=grad.dtype)
        free = np.ones(y.shape, bool)
        for view, below in zip(self._at_offsets(x, size), self._at_offsets(result, size), strict=True):
            here = view == y
            here &= free
            free ^= here
            below += grad * here
        return _samples_first(result)


class AvgPool2d(_Pool):
    """The mean of each window, under a `name`: windows of `kernel_size`, `stride` apart, or side by side."""

    reads, jacobian_class, _together = "dtype", jacobians.AvgPool2d, np.add

    def forward(self, x):
        """Average each window."""
        return super().forward(x) * x.dtype.type(1 / np.prod(self.kernel_size))

    def backward(self, grad, x, y):
        """Spread each gradient over its window."""
        share = _samples_last(grad) * grad.dtype.type(1 / np.prod(self.kernel_size))
        result = np.zeros((*x.shape[1:], len(x)), grad.dtype)
        for view in self._at_offsets(result, grad.shape[2:]):
            view += share
        return _samples_first(result)


class Flatten(Operator):
    """Turn images into vectors, under a `name`. A scan needs no link for it: gradients are flat there anyway."""

    reads, jacobian_class = "dtype", jacobians.Diagonal

    def output_shape(self, input_shape):
        """Return (n,)."""
        return (int(np.prod(input_shape)),)

    def forward(self, x):
        """Compute it, without a copy."""
        return _samples_last(x).reshape(-1, len(x)).T

    def backward(self, grad, x, y):
        """Give the gradient the input's shape."""
        return _samples_first(_samples_last(grad).reshape(*x.shape[1:], len(x)))
