"""Transposed Jacobians as SciPy matrices, made from scratch; `bppsa_nb.networks.jacobians` keeps the patterns."""

import math

import numpy as np
from scipy import sparse

from bppsa_nb.machine import memory
from bppsa_nb.networks import jacobians
from bppsa_nb.operands.pattern import CSRPattern

# What the docstrings of those that follow end with.
_MADE = """

    Returns
    -------
    scipy.sparse.csr_array [shape=(inputs, outputs)]
        A row for each number that goes in, a column for each that comes out.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit or is not finite, or a kernel is larger than the padded input.
    MemoryError
        If the matrix does not fit into memory.
    """


def _makes_matrix(function):
    """Say of a function what it returns and raises."""
    if function.__doc__:  # unless Python was told to leave them out
        function.__doc__ = function.__doc__.rstrip() + _MADE
    return function


@_makes_matrix
def conv2d_jacobian_T(weight, input_shape, *, stride=1, padding=0, dilation=1):
    """Make the transposed Jacobian of a two-dimensional convolution.

    Parameters
    ----------
    weight : np.ndarray of float32 or float64 [shape=(C_out, C_in, kh, kw)]
        Weights that are exactly zero count as pruned: nothing is stored for them.
    input_shape : tuple of int
        ``(C_in, h, w)``.
    stride, padding, dilation : int or (int, int)
        As in PyTorch; vertical and horizontal.
    """
    weight = _floats("weight", weight, jacobians.CONVOLUTION)
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    return _matrix(jacobians.Convolution(weight != 0, input_shape, **how), weight)


@_makes_matrix
def linear_jacobian_T(weight):
    """Make the transposed Jacobian of a fully connected layer.

    Parameters
    ----------
    weight : np.ndarray of float32 or float64 [shape=(out, in)]
        Weights that are exactly zero count as pruned: nothing is stored for them.
    """
    weight = _floats("weight", weight, jacobians.LINEAR)
    return _matrix(jacobians.Linear(weight != 0), weight)


@_makes_matrix
def relu_jacobian_T(x):
    """Make the transposed Jacobian of ReLU at an input: 1 where x > 0, else a stored 0.

    Parameters
    ----------
    x : np.ndarray of float32 or float64
        The input; of one axis or more, none of them empty.
    """
    return _at(jacobians.ReLU, "x", x)


@_makes_matrix
def tanh_jacobian_T(y):
    """Make the transposed Jacobian of tanh, 1 - y², from its output y; `relu_jacobian_T` takes the input."""
    return _at(jacobians.Tanh, "y", y)


@_makes_matrix
def sigmoid_jacobian_T(y):
    """Make the transposed Jacobian of sigmoid, y (1 - y), from its output y; `relu_jacobian_T` takes the input."""
    return _at(jacobians.Sigmoid, "y", y)


@_makes_matrix
def flatten_jacobian_T(input_shape, *, dtype=np.float32):
    """Make the transposed Jacobian of flattening: the identity.

    Parameters
    ----------
    input_shape : tuple of int
    dtype : {np.float32, np.float64}
        There is no input or weight to take it from.
    """
    return _matrix(jacobians.Flatten(input_shape), dtype)


@_makes_matrix
def max_pool2d_jacobian_T(x, kernel_size, *, stride=None):
    """Make the transposed Jacobian of max-pooling at an input: 1 at a window's first maximum, else a stored 0.

    Parameters
    ----------
    x : np.ndarray of float32 or float64 [shape=(C, h, w)]
    kernel_size : int or (int, int)
        Vertical and horizontal.
    stride : int or (int, int), optional
        By default `kernel_size`.
    """
    x = _floats("x", x, jacobians.IMAGE)
    return _matrix(jacobians.MaxPool2d(x.shape, kernel_size, stride=stride), x)


@_makes_matrix
def avg_pool2d_jacobian_T(input_shape, kernel_size, *, stride=None, dtype=np.float32):
    """Make the transposed Jacobian of average pooling: 1 / (kh kw) wherever a window reads.

    Parameters
    ----------
    input_shape : tuple of int
        ``(C, h, w)``.
    kernel_size, stride
        As for `max_pool2d_jacobian_T`.
    dtype : {np.float32, np.float64}
        There is no input or weight to take it from.
    """
    return _matrix(jacobians.AvgPool2d(input_shape, kernel_size, stride=stride), dtype)


def kinds_of_zeros(jacobian_T):
    """Tell guaranteed zeros, possible zeros and other entries apart (Figure 5).

    Parameters
    ----------
    jacobian_T : scipy.sparse.csr_array [shape=(m, n)]

    Returns
    -------
    np.ndarray of int8 [shape=(m, n)]
        0 where nothing is stored, a guaranteed zero; 1 where a zero is stored, which depends on the input; 2 elsewhere.

    Raises
    ------
    TypeError, MemoryError
        If `jacobian_T` is no SciPy CSR matrix, or the dense array does not fit into memory.
    """
    if not sparse.issparse(jacobian_T) or jacobian_T.format != "csr":
        raise TypeError(f"jacobian_T must be a SciPy CSR matrix, got {type(jacobian_T).__name__}")
    pattern = CSRPattern.of(jacobian_T)
    memory.require(math.prod(pattern.shape), f"a dense array of shape {pattern.shape}")
    kinds = np.zeros(pattern.shape, np.int8)
    kinds[np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices] = 1 + (jacobian_T.data != 0)
    return kinds


def _floats(name, array, shape):
    array = jacobians.floats(name, array)
    jacobians.check_axes(name, array, shape)
    return array


def _at(kind, name, x):
    """Make the matrix of a function of each entry at one input or output."""
    x = jacobians.floats(name, x)
    if x.ndim == 0 or x.size == 0:
        raise ValueError(f"{name} must have one axis or more, none of them empty, got shape {x.shape}")
    return _matrix(kind(x.shape), x)


def _matrix(jacobian, source):
    return jacobian.pattern.matrix(jacobian.fill(source))
