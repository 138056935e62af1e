"""The cells' time loops compiled for CPUs; twins of the NumPy functions, with the same arguments.

A step multiplies one matrix for the whole batch (`np.dot` inside compiled code calls BLAS without Python's
overhead) and then runs once over B * H numbers, in a loop that the compiler vectorizes. It takes less time
than waking a second thread would, and assembling the transposed Jacobians takes what writing them to memory takes.

Compiled code returns one array or fills those it is given. Where it returns several, a Ctrl-C that arrives while Numba
wraps them up turns into a SystemError.
"""

import numpy as np
from numba import njit

from bppsa_nb.cells.elementary import sigmoid, tanh
from bppsa_nb.cells.recurrent import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.structured.chain import StructuredChain

keep_freed_memory()

# Without the "numpy" error model every division would carry a branch (ZeroDivisionError), and its loop would
# not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and infinity keep their meaning.
_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


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
    for t in range(steps):
        np.dot(hidden[t], weight_hh_T, recurrent)
        after = hidden[t + 1].reshape(size)
        for i in range(size):
            after[i] = tanh(after[i] + bias[i] + added[i])
    return hidden


def rnn_chain(weight_hh, hidden):
    """Take the transposed Jacobians for a chain of one weight; see `bppsa_nb.cells.rnn.chain`."""
    slopes = np.empty((1, *hidden[1:].shape), hidden.dtype)
    _rnn_slopes(hidden, slopes)
    return StructuredChain.made(weight_hh[None], slopes)


@_compile
def _rnn_slopes(hidden, slopes):
    one, size = hidden.dtype.type(1), slopes.size
    after, slope = hidden[1:].reshape(size), slopes.reshape(size)
    for i in range(size):
        slope[i] = one - after[i] * after[i]


@njit(inline="always")
def _normal(x, tiny):
    """Take a number below the smallest normal one for zero.

    Gradients that vanish over a long sequence pass through the subnormal numbers on their way to zero, and
    processors compute with those a hundred times slower. NaN and infinity stay what they are.
    """
    return x - x if abs(x) < tiny else x


def rnn_gate_gradients(chain, hidden, grad_hidden):
    """Compute the gradients at the sums inside tanh; see `bppsa_nb.cells.rnn.gate_gradients`."""
    grad_sum = np.empty_like(chain.slopes[0])
    _rnn_gate_gradients(chain.slopes, grad_hidden, grad_sum)
    return [grad_sum], [grad_sum]


@_compile
def _rnn_gate_gradients(slopes, grad_hidden, grad_sum):
    size, tiny = grad_sum.size, np.finfo(slopes.dtype).tiny
    slope, grad, result = slopes.reshape(size), grad_hidden[1:].reshape(size), grad_sum.reshape(size)
    for i in range(size):
        result[i] = _normal(grad[i] * slope[i], tiny)


def gru_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 10 over time; see `bppsa_nb.cells.gru.forward`."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    gates = np.empty((4, len(x), *h0.shape), x.dtype)
    hidden[0] = h0
    _gru_forward(x, weight_ih, weight_hh, bias_ih, bias_hh, hidden, gates)
    return hidden, gates


@_compile
def _gru_forward(x, weight_ih, weight_hh, bias_ih, bias_hh, hidden, gates):
    steps, batch, inputs = x.shape
    hidden_size = weight_hh.shape[1]
    size = batch * hidden_size
    rows = np.ascontiguousarray(x).reshape(steps * batch, inputs)
    weights = np.empty((3, hidden_size, hidden_size), x.dtype)
    bias = np.empty((4, size), x.dtype)
    zeros = np.zeros((batch, 1), x.dtype)
    for gate in range(3):
        # The input products wait where the gates will stand.
        of_gate = slice(gate * hidden_size, (gate + 1) * hidden_size)
        np.dot(rows, np.ascontiguousarray(weight_ih[of_gate].T), gates[gate].reshape(steps * batch, hidden_size))
        weights[gate] = weight_hh[of_gate].T
        both = bias_ih[of_gate] + bias_hh[of_gate] if gate < 2 else bias_ih[of_gate]
        bias[gate] = (zeros + both).reshape(size)
    bias[3] = (zeros + bias_hh[2 * hidden_size :]).reshape(size)
    products = np.empty((3, batch, hidden_size), x.dtype)
    h_r, h_z, h_n = products[0].reshape(size), products[1].reshape(size), products[2].reshape(size)
    for t in range(steps):
        for gate in range(3):
            np.dot(hidden[t], weights[gate], products[gate])
        r, z, n = gates[0, t].reshape(size), gates[1, t].reshape(size), gates[2, t].reshape(size)
        m, before, after = gates[3, t].reshape(size), hidden[t].reshape(size), hidden[t + 1].reshape(size)
        for i in range(size):
            reset = sigmoid(r[i] + h_r[i] + bias[0, i])
            update = sigmoid(z[i] + h_z[i] + bias[1, i])
            added = h_n[i] + bias[3, i]
            new = tanh(n[i] + bias[2, i] + reset * added)
            r[i], z[i], n[i], m[i] = reset, update, new, added
            after[i] = new + update * (before[i] - new)


@njit(inline="always")
def _slopes(r, z, n, m, before, one):
    """Compute the derivatives of h_t by R_t, Z_t, N_t and M_t; see `bppsa_nb.cells.gru.slopes`."""
    to_n = (one - n * n) * (one - z)  # j6 j7
    return r * (one - r) * m * to_n, z * (one - z) * (before - n), to_n, r * to_n


def gru_chain(weight_hh, hidden, gates):
    """Take the transposed Jacobians for a chain of three weights and a carry; see `bppsa_nb.cells.gru.chain`."""
    slopes = np.empty((3, *gates.shape[1:]), hidden.dtype)
    _gru_slopes(hidden, gates, slopes)
    return StructuredChain.made(weight_hh.reshape(3, -1, weight_hh.shape[1]), slopes, gates[1])


@_compile
def _gru_slopes(hidden, gates, slopes):
    one, size = hidden.dtype.type(1), gates[0].size
    r, z, n, m = gates[0].reshape(size), gates[1].reshape(size), gates[2].reshape(size), gates[3].reshape(size)
    before = hidden[:-1].reshape(size)
    by_r, by_z, by_m = slopes[0].reshape(size), slopes[1].reshape(size), slopes[2].reshape(size)
    for i in range(size):
        by_r[i], by_z[i], _, by_m[i] = _slopes(r[i], z[i], n[i], m[i], before[i], one)


def gru_gate_gradients(chain, hidden, gates, grad_hidden):
    """Compute the gradients at the sums of the gates; see `bppsa_nb.cells.gru.gate_gradients`."""
    at = np.empty((4, *gates.shape[1:]), hidden.dtype)
    _gru_gate_gradients(hidden, gates, grad_hidden, at)
    at_r, at_z, at_n, at_m = at
    return [at_r, at_z, at_n], [at_r, at_z, at_m]


@_compile
def _gru_gate_gradients(hidden, gates, grad_hidden, at):
    size, one, tiny = at[0].size, hidden.dtype.type(1), np.finfo(hidden.dtype).tiny
    r, z, n, m = gates[0].reshape(size), gates[1].reshape(size), gates[2].reshape(size), gates[3].reshape(size)
    before, grad = hidden[:-1].reshape(size), grad_hidden[1:].reshape(size)
    at_r, at_z, at_n, at_m = at[0].reshape(size), at[1].reshape(size), at[2].reshape(size), at[3].reshape(size)
    for i in range(size):
        to_r, to_z, to_n, to_m = _slopes(r[i], z[i], n[i], m[i], before[i], one)
        at_r[i], at_z[i] = _normal(grad[i] * to_r, tiny), _normal(grad[i] * to_z, tiny)
        at_n[i], at_m[i] = _normal(grad[i] * to_n, tiny), _normal(grad[i] * to_m, tiny)


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; see `bppsa_nb.cells.recurrent.parameter_gradients`."""
    inputs, size, count = x.shape[2], hidden.shape[2], len(from_x)
    shapes = {"weight_ih": (count, size, inputs), "weight_hh": (count, size, size)}
    shapes |= {"bias_ih": (count, size), "bias_hh": (count, size)}
    grads = {name: np.zeros(shape, x.dtype) for name, shape in shapes.items()}
    for k, (at_x, at_h) in enumerate(zip(from_x, from_h, strict=True)):
        _add_gradients(x, at_x, grads["weight_ih"][k], grads["bias_ih"][k])
        _add_gradients(hidden[:-1], at_h, grads["weight_hh"][k], grads["bias_hh"][k])
    return {name: grad.reshape(count * size, *grad.shape[2:]) for name, grad in grads.items()}


@_compile
def _add_gradients(x, at, weight, bias):
    """Add up in blocks of many steps, each large enough for BLAS and small enough to stay in the cache."""
    steps, batch, inputs = x.shape
    size = at.shape[2]
    block = max(1, 512 // batch)
    ones = np.ones(block * batch, x.dtype)
    for start in range(0, steps, block):
        stop = min(start + block, steps)
        rows = (stop - start) * batch
        sums = at[start:stop].reshape(rows, size)
        weight += np.dot(sums.T, x[start:stop].reshape(rows, inputs))
        bias += np.dot(ones[:rows], sums)
