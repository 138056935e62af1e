"""The cells' time loops compiled for CPUs; twins of the NumPy functions, with the same arguments.

A step multiplies one matrix for the whole batch (`np.dot` inside compiled code calls BLAS without Python's
overhead) and then runs once over B * H numbers, in a loop that the compiler vectorizes. It takes less time
than waking a second thread would, and assembling the transposed Jacobians takes what writing them to memory takes.
"""

import numpy as np
from numba import njit

from bppsa_nb.memory import keep_freed_memory

keep_freed_memory()

# Without the "numpy" error model every division would carry a branch (ZeroDivisionError), and its loop would
# not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and infinity keep their meaning.
_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


@_compile
def _tanh_constants(dtype):
    """Constants of `_tanh` in the arrays' dtype: in float64 they would turn all of it into float64."""
    c = np.array([20 * 135135, 135135 / 8, 135135, 17325, 378, 1, 62370, 3150, 28]) / 135135
    c = c.astype(dtype)
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]


@njit(inline="always")
def _tanh(x, constants):
    """Tanh to a few units in the last place, in arithmetic that vectorizes (the library's tanh does not).

    Lambert's continued fraction gives tanh(x / 8) = p / q, with seven terms; tanh(2 y) = 2 p q / (p² + q²),
    applied three times, leads back to x. Every doubling shrinks the relative error.
    """
    limit, eighth, one, p1, p2, p3, q1, q2, q3 = constants
    y = limit if x > limit else (-limit if x < -limit else x)  # NaN passes through
    y *= eighth
    s = y * y
    p = y * (one + s * (p1 + s * (p2 + s * p3)))
    q = one + s * (q1 + s * (q2 + s * q3))
    for _ in range(3):
        p, q = p * q + p * q, p * p + q * q
    r = p / q
    return one if r > one else (-one if r < -one else r)  # rounding must not leave [-1, 1]


@_compile
def rnn_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 9 over time; see `bppsa_nb.cells.rnn.forward`."""
    steps, batch, inputs = x.shape
    size = batch * weight_hh.shape[0]
    hidden = np.empty((steps + 1, batch, weight_hh.shape[0]), x.dtype)
    hidden[0] = h0
    # The input products wait where the hidden states will stand.
    products = hidden.reshape((steps + 1) * size)[size:].reshape(steps * batch, weight_hh.shape[0])
    rows = np.ascontiguousarray(x).reshape(steps * batch, inputs)
    np.dot(rows, np.ascontiguousarray(weight_ih.T), products)
    bias = (np.zeros((batch, 1), x.dtype) + (bias_ih + bias_hh)).reshape(size)
    weight_hh_T = np.ascontiguousarray(weight_hh.T)
    recurrent = np.empty((batch, weight_hh.shape[0]), x.dtype)
    added = recurrent.reshape(size)
    constants = _tanh_constants(x.dtype)
    for t in range(steps):
        np.dot(hidden[t], weight_hh_T, recurrent)
        after = hidden[t + 1].reshape(size)
        for i in range(size):
            after[i] = _tanh(after[i] + bias[i] + added[i], constants)
    return hidden


@_compile
def rnn_jacobians_T(weight_hh, hidden):
    """Assemble the transposed Jacobians; see `bppsa_nb.cells.rnn.jacobians_T`."""
    steps, batch, size = hidden.shape[0] - 1, hidden.shape[1], hidden.shape[2]
    weight_hh_T = np.ascontiguousarray(weight_hh.T)
    jacobians_T = np.empty((steps, batch, size, size), hidden.dtype)
    one = hidden.dtype.type(1)
    for t in range(steps):
        for b in range(batch):
            slope = one - hidden[t + 1, b] * hidden[t + 1, b]
            for i in range(size):
                for j in range(size):
                    jacobians_T[t, b, i, j] = weight_hh_T[i, j] * slope[j]
    return jacobians_T


@_compile
def rnn_sweep(weight_hh, hidden, grad_output):
    """Back-propagate through time; see `bppsa_nb.cells.rnn.sweep`."""
    steps, batch = hidden.shape[0] - 1, hidden.shape[1]
    size = batch * hidden.shape[2]
    grad_hidden = np.empty_like(hidden)
    grad_hidden[steps] = grad_output
    weight_hh = np.ascontiguousarray(weight_hh)
    grad_sum = np.empty((batch, hidden.shape[2]), hidden.dtype)
    through = grad_sum.reshape(size)
    one = hidden.dtype.type(1)
    for t in range(steps - 1, -1, -1):
        after, grad = hidden[t + 1].reshape(size), grad_hidden[t + 1].reshape(size)
        for i in range(size):
            through[i] = grad[i] * (one - after[i] * after[i])
        np.dot(grad_sum, weight_hh, grad_hidden[t])
    return grad_hidden


def rnn_parameter_gradients(x, hidden, grad_hidden):
    """Sum up the parameters' gradients; see `bppsa_nb.cells.rnn.parameter_gradients`."""
    weight_ih, weight_hh, bias = _parameter_gradients(x, hidden, grad_hidden)
    return {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias, "bias_hh": bias.copy()}


@_compile
def _parameter_gradients(x, hidden, grad_hidden):
    """Sum up in blocks of many steps, each large enough for BLAS and small enough to stay in the cache."""
    steps, batch, inputs = x.shape
    size = hidden.shape[2]
    block = max(1, 512 // batch)
    buffer = np.empty(block * batch * size, x.dtype)
    ones = np.ones(block * batch, x.dtype)
    weight_ih = np.zeros((size, inputs), x.dtype)
    weight_hh = np.zeros((size, size), x.dtype)
    bias = np.zeros(size, x.dtype)
    one = x.dtype.type(1)
    for start in range(0, steps, block):
        stop = min(start + block, steps)
        rows = (stop - start) * batch
        after = hidden[start + 1 : stop + 1].reshape(rows * size)
        grad = grad_hidden[start + 1 : stop + 1].reshape(rows * size)
        for i in range(rows * size):
            buffer[i] = grad[i] * (one - after[i] * after[i])
        grad_sum = buffer[: rows * size].reshape(rows, size)
        weight_ih += np.dot(grad_sum.T, x[start:stop].reshape(rows, inputs))
        weight_hh += np.dot(grad_sum.T, hidden[start:stop].reshape(rows, size))
        bias += np.dot(ones[:rows], grad_sum)
    return weight_ih, weight_hh, bias
