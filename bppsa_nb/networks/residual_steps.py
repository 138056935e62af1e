"""Steps of a residual network and of its gradients, in NumPy: layer blocks side by side.

A dense layer's state is a vector, u (batch, q), and W u its product with weights (q, q); a convolution's is an image,
u (batch, channels, height, width), and W u slides weights (channels, channels, k, k) over it, with zeros around it that
preserve its shape. Its counterparts are `residual_steps_cpu` and `residual_steps_cuda`.
"""

import operator
from typing import Literal, get_args

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bppsa_nb.machine.pointwise import tanh, where

Activation = Literal["tanh", "relu"]
ACTIVATIONS = get_args(Activation)
TANH, RELU, ADJOINT, TANH_SLOPE, RELU_SLOPE = range(5)  # what a step computes


def result(u, total, size, kind, zero, one):
    """Return what a step makes of the state and of the sum with its bias: arrays, or numbers in compiled code."""
    if kind == ADJOINT:
        return u + size * total
    if kind == TANH:
        return u + size * tanh(total)
    if kind == RELU:
        return u + size * where(total <= zero, zero, total)  # NaN passes through
    if kind == TANH_SLOPE:
        t = tanh(total)
        return one - t * t
    return where(total > zero, one, zero)


def sweeps(sweep, load):
    """Make `forward_sweep`, `adjoint_sweep` and `slopes` of one `sweep` that takes all kinds of steps.

    It takes points, source, blocks (where they begin and end, whose parameters each step uses, and how large it is),
    weights, biases, slopes and the kind; what a kind does not read is None. All arrays are as `load` returns them.
    """

    def forward_sweep(points, source, bounds, layers, sizes, weights, biases, activation):
        """Propagate through the blocks of a level, all at once: u^{k+1} = u^k + h F(u^k; θ) + s^k (Eq. 1).

        Of the states `points` [shape=(n + 1, batch, ...)], those at `bounds` [shape=(blocks + 1,)] are read and those
        between are filled (F-relaxation). `source` [shape=(n, batch, ...)] is what FAS adds to every step's result, the
        right-hand side S of Equation 24, or None. `layers` [shape=(n,)] says whose parameters each step uses, `sizes`
        [shape=(n,)] its h. Returns what every block's last step gives [shape=(blocks, batch, ...)], for C-relaxation.
        """
        kind = TANH if activation == "tanh" else RELU
        return sweep(points, source, (bounds, layers, sizes), weights, biases, None, kind)

    def adjoint_sweep(points, source, bounds, layers, sizes, weights, slopes):
        """Propagate gradients: g^{k+1} = g^k + h W^T (σ' ⊙ g^k) + s^k, where k counts from the last layer back.

        As `forward_sweep`; `slopes` [shape=(N, batch, ...)] are σ'(W u + b) at every layer's state.
        """
        return sweep(points, source, (bounds, layers, sizes), weights, None, slopes, ADJOINT)

    def slopes(states, weights, biases, activation):
        """Compute σ'(W u + b) at every layer [shape=(N, batch, ...)], from the states [shape=(N + 1, batch, ...)]."""
        every = load(np.arange(len(weights) + 1))
        sizes = load(np.zeros(len(weights), states.dtype))  # which a slope does not depend on
        kind = TANH_SLOPE if activation == "tanh" else RELU_SLOPE
        return sweep(states, None, (every, every[:-1], sizes), weights, biases, None, kind)

    return forward_sweep, adjoint_sweep, slopes


def _sweep(points, source, blocks, weights, biases, slopes, kind):
    (bounds, layers, sizes), zero = blocks, points.dtype.type(0)
    starts, stops = bounds[:-1], bounds[1:]
    arrivals = np.empty((len(starts), *points.shape[1:]), points.dtype)
    for j in range(np.max(stops - starts)):
        block = np.flatnonzero(starts + j < stops)  # the last one may be shorter
        k = starts[block] + j
        n, u, size = layers[k], points[k], sizes[k].reshape(-1, *[1] * (points.ndim - 1))
        if kind == ADJOINT:
            total = _apply(_transposed(weights[n]), slopes[n] * u)
        else:
            total = _apply(weights[n], u) + biases[n].reshape(len(n), 1, -1, *[1] * (u.ndim - 3))
        after = result(u, total, size, kind, zero, zero + 1)
        if source is not None:
            after += source[k]
        last = k + 1 == stops[block]
        arrivals[block[last]] = after[last]
        if not last.all():  # slopes write nothing, of states that may be read-only
            points[k[~last] + 1] = after[~last]
    return arrivals


def parameter_gradients(states, gradients, weights, biases, h, activation):
    """Compute the gradients of all weights and biases, from states and gradients [shape=(N + 1, batch, ...)]."""
    grad_weights, grad_biases = (np.empty(array.shape, array.dtype) for array in (weights, biases))
    for n, slope in enumerate(slopes(states, weights, biases, activation)):
        u, v = states[n], states.dtype.type(h) * slope * gradients[n + 1]
        grad_biases[n] = v.sum(axis=(0, *range(2, v.ndim)))
        if weights.ndim == 3:
            grad_weights[n] = v.T @ u
        else:
            windows = _windows(u[None], weights.shape[-1])[0]
            grad_weights[n] = np.einsum("bohw,bchwij->ocij", v, windows, optimize=True)
    return grad_weights, grad_biases


def _apply(weights, u):
    """Compute W u for states u (blocks, batch, ...), each block with weights of its own."""
    if weights.ndim == 3:
        return u @ weights.swapaxes(1, 2)
    blocks, batch, channels, height, width = u.shape
    columns = _windows(u, weights.shape[-1]).transpose(0, 1, 3, 4, 2, 5, 6).reshape(blocks, batch * height * width, -1)
    product = columns @ weights.reshape(blocks, channels, -1).swapaxes(1, 2)
    return np.moveaxis(product.reshape(blocks, batch, height, width, channels), -1, 2)


def _transposed(weights):
    """Return the weights of W^T: for a convolution, with channels swapped and kernels turned around."""
    swapped = weights.swapaxes(1, 2)
    return swapped if weights.ndim == 3 else swapped[..., ::-1, ::-1]


def _windows(u, size):
    """Return what a kernel sees at every pixel [shape=(blocks, batch, channels, height, width, k, k)]."""
    pad = size // 2
    padded = np.pad(u, [(0, 0)] * 3 + [(pad, pad)] * 2)
    return sliding_window_view(padded, (size, size), axis=(-2, -1))


# What the cycles do between sweeps; on a GPU, kernels do. Arrays are where sweeps compute; `take(points, index)` copies
# some points, `put(points, index, values)` writes to them, and `difference(a, b)` is a - b.
load = host = np.asarray
take, put, difference = operator.getitem, operator.setitem, operator.sub


def norms(values):
    """Compute the norm of the values at every point, in double precision; no square leaves its range."""
    r = np.abs(values.astype(np.float64)).reshape(len(values), -1)
    largest = r.max(axis=1)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
    return scale * np.sqrt(np.einsum("kn,kn->k", r / scale[:, None], r / scale[:, None]))


forward_sweep, adjoint_sweep, slopes = sweeps(_sweep, load)
