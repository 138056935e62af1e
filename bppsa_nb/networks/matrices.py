"""Transposed Jacobians as SciPy matrices, made from scratch; `bppsa_nb.networks.jacobians` keeps the patterns."""

import math
from collections.abc import Sequence
from typing import Annotated, TypeVar

import numpy as np
from scipy import sparse

from bppsa_nb.machine import memory
from bppsa_nb.machine.arguments import Dtype, Size, checked
from bppsa_nb.networks import jacobians
from bppsa_nb.networks.geometry import Padding, Pair
from bppsa_nb.operands.pattern import CSRPattern

Entries = Annotated[np.ndarray, "float[N, ...]"]
_Function = TypeVar("_Function")

# What the docstrings of those that follow end with.
_MADE = """

    Returns
    -------
    scipy.sparse.csr_array [shape=(inputs, outputs)]
        A row for each number that goes in, a column for each that comes out.

    Raises
    ------
    MemoryError
        If the matrix does not fit into memory.
    """


def _makes_matrix(function: _Function) -> _Function:
    """Say of a function what it returns and raises."""
    if function.__doc__:  # unless Python was told to leave them out
        function.__doc__ = function.__doc__.rstrip() + _MADE
    return function


@_makes_matrix
@checked
def conv2d_jacobian_T(
    weight: Annotated[np.ndarray, "float[O, C, k, l]"], input_shape: tuple[Size, Size, Size], *,
    stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
) -> sparse.csr_array:  # fmt: skip
    """Make the transposed Jacobian of a two-dimensional convolution.

    Parameters
    ----------
    weight
        Filters of k x l pixels. Weights that are exactly zero count as pruned: nothing is stored for them.
    input_shape
        ``(C, h, w)``: channels, height and width.
    stride, padding, dilation
        As in PyTorch; vertical and horizontal.
    """
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    return _matrix(jacobians.Convolution(weight != 0, input_shape, **how), weight)


@_makes_matrix
@checked
def linear_jacobian_T(weight: Annotated[np.ndarray, "float[O, I]"]) -> sparse.csr_array:
    """Make the transposed Jacobian of a fully connected layer.

    Parameters
    ----------
    weight
        A row for each output. Weights that are exactly zero count as pruned: nothing is stored for them.
    """
    return _matrix(jacobians.Linear(weight != 0), weight)


@_makes_matrix
@checked
def relu_jacobian_T(x: Entries) -> sparse.csr_array:
    """Make the transposed Jacobian of ReLU at an input x: 1 where x > 0, else a stored 0."""
    return _matrix(jacobians.ReLU(x.shape), x)


@_makes_matrix
@checked
def tanh_jacobian_T(y: Entries) -> sparse.csr_array:
    """Make the transposed Jacobian of tanh, 1 - y², from its output y; `relu_jacobian_T` takes the input."""
    return _matrix(jacobians.Tanh(y.shape), y)


@_makes_matrix
@checked
def sigmoid_jacobian_T(y: Entries) -> sparse.csr_array:
    """Make the transposed Jacobian of sigmoid, y (1 - y), from its output y; `relu_jacobian_T` takes the input."""
    return _matrix(jacobians.Sigmoid(y.shape), y)


@_makes_matrix
@checked
def flatten_jacobian_T(input_shape: Sequence[Size], *, dtype: Dtype = np.float32) -> sparse.csr_array:
    """Make the transposed Jacobian of flattening: the identity.

    Parameters
    ----------
    input_shape
        One sample's shape.
    dtype
        float32 or float64: there is no input or weight to take it from.
    """
    return _matrix(jacobians.Flatten(input_shape), dtype)


@_makes_matrix
@checked
def max_pool2d_jacobian_T(
    x: Annotated[np.ndarray, "float[C, h, w]"], kernel_size: Pair, *, stride: Pair | None = None
) -> sparse.csr_array:
    """Make the transposed Jacobian of max-pooling at an input: 1 at a window's first maximum, else a stored 0.

    Parameters
    ----------
    x
        The input, of one sample.
    kernel_size, stride
        Vertical and horizontal. The stride is `kernel_size` if not given.
    """
    return _matrix(jacobians.MaxPool2d(x.shape, kernel_size, stride=stride), x)


@_makes_matrix
@checked
def avg_pool2d_jacobian_T(
    input_shape: tuple[Size, Size, Size], kernel_size: Pair, *, stride: Pair | None = None, dtype: Dtype = np.float32
) -> sparse.csr_array:
    """Make the transposed Jacobian of average pooling: 1 / (kh kw) wherever a window reads.

    Parameters
    ----------
    input_shape
        ``(C, h, w)``: channels, height and width.
    kernel_size, stride
        As for `max_pool2d_jacobian_T`.
    dtype
        float32 or float64: there is no input or weight to take it from.
    """
    return _matrix(jacobians.AvgPool2d(input_shape, kernel_size, stride=stride), dtype)


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


def _matrix(jacobian, source):
    return jacobian.pattern.matrix(jacobian.fill(source))
