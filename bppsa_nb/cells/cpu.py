"""The cells' time loops compiled for CPUs; twins of the NumPy functions, with the same arguments.

A step multiplies one matrix for the whole batch (`np.dot` inside compiled code calls BLAS without Python's
overhead) and then runs once over B * H numbers, in a loop that the compiler vectorizes. It takes less time
than waking a second thread would, and assembling the transposed Jacobians takes what writing them to memory takes.

Compiled code returns one array or fills those it is given. Where it returns several, a Ctrl-C that arrives while Numba
wraps them up turns into a SystemError.
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
    c = np.array([20 * 135135, 135135 / 8, 135135, 17325, 378, 1, 62370, 3150, 28, 135135 / 2]) / 135135
    c = c.astype(dtype)
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]


@njit(inline="always")
def _tanh(x, constants):
    """Tanh to a few units in the last place, in arithmetic that vectorizes (the library's tanh does not).

    Lambert's continued fraction gives tanh(x / 8) = p / q, with seven terms; tanh(2 y) = 2 p q / (p² + q²),
    applied three times, leads back to x. Every doubling shrinks the relative error.
    """
    limit, eighth, one, p1, p2, p3, q1, q2, q3, _ = constants
    y = limit if x > limit else (-limit if x < -limit else x)  # NaN passes through
    y *= eighth
    s = y * y
    p = y * (one + s * (p1 + s * (p2 + s * p3)))
    q = one + s * (q1 + s * (q2 + s * q3))
    for _ in range(3):
        p, q = p * q + p * q, p * p + q * q
    r = p / q
    return one if r > one else (-one if r < -one else r)  # rounding must not leave [-1, 1]


@njit(inline="always")
def _sigmoid(x, constants):
    """Sigmoid, off by no more than tanh: by a few units in the last place of one."""
    half = constants[9]
    return half + half * _tanh(half * x, constants)


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


@njit(inline="always")
def _normal(x, tiny):
    """Take a number below the smallest normal one for zero.

    Gradients that vanish over a long sequence pass through the subnormal numbers on their way to zero, and
    processors compute with those a hundred times slower. NaN and infinity stay what they are.
    """
    return x - x if abs(x) < tiny else x


@_compile
def _start_sweep(hidden, grad_output, local_grads):
    """Make the array of gradients, with all that enters from outside."""
    if local_grads is None:
        grad_hidden = np.zeros_like(hidden)
    else:
        grad_hidden = local_grads.copy()
    grad_hidden[-1] += grad_output
    return grad_hidden


@_compile
def rnn_sweep(weight_hh, hidden, grad_output, local_grads=None):
    """Back-propagate through time; see `bppsa_nb.cells.rnn.sweep`."""
    grad_hidden = _start_sweep(hidden, grad_output, local_grads)
    steps, batch = hidden.shape[0] - 1, hidden.shape[1]
    size = batch * hidden.shape[2]
    grad_sum = np.empty((batch, hidden.shape[2]), hidden.dtype)
    product = np.empty_like(grad_sum)
    through, added = grad_sum.reshape(size), product.reshape(size)
    one, tiny = hidden.dtype.type(1), np.finfo(hidden.dtype).tiny
    for t in range(steps - 1, -1, -1):
        after, grad, before = (
            hidden[t + 1].reshape(size),
            grad_hidden[t + 1].reshape(size),
            grad_hidden[t].reshape(size),
        )
        for i in range(size):
            through[i] = grad[i] * (one - after[i] * after[i])
        np.dot(grad_sum, weight_hh, product)
        for i in range(size):
            before[i] = _normal(before[i] + added[i], tiny)
    return grad_hidden


def rnn_gate_gradients(hidden, grad_hidden):
    """Compute the gradients at the sums inside tanh; see `bppsa_nb.cells.rnn.gate_gradients`."""
    grad_sum = _rnn_gate_gradients(hidden, grad_hidden)
    return grad_sum, grad_sum


@_compile
def _rnn_gate_gradients(hidden, grad_hidden):
    grad_sum = np.empty_like(hidden[1:])
    size = grad_sum.size
    one, tiny = hidden.dtype.type(1), np.finfo(hidden.dtype).tiny
    after, grad, result = hidden[1:].reshape(size), grad_hidden[1:].reshape(size), grad_sum.reshape(size)
    for i in range(size):
        result[i] = _normal(_normal(grad[i], tiny) * (one - after[i] * after[i]), tiny)
    return grad_sum


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
    constants = _tanh_constants(x.dtype)
    for t in range(steps):
        for gate in range(3):
            np.dot(hidden[t], weights[gate], products[gate])
        r, z, n = gates[0, t].reshape(size), gates[1, t].reshape(size), gates[2, t].reshape(size)
        m, before, after = gates[3, t].reshape(size), hidden[t].reshape(size), hidden[t + 1].reshape(size)
        for i in range(size):
            reset = _sigmoid(r[i] + h_r[i] + bias[0, i], constants)
            update = _sigmoid(z[i] + h_z[i] + bias[1, i], constants)
            added = h_n[i] + bias[3, i]
            new = _tanh(n[i] + bias[2, i] + reset * added, constants)
            r[i], z[i], n[i], m[i] = reset, update, new, added
            after[i] = new + update * (before[i] - new)


@njit(inline="always")
def _slopes(r, z, n, m, before, one):
    """Compute the derivatives of h_t by R_t, Z_t, N_t and M_t; see `bppsa_nb.cells.gru.slopes`."""
    to_n = (one - n * n) * (one - z)  # j6 j7
    return r * (one - r) * m * to_n, z * (one - z) * (before - n), to_n, r * to_n


@_compile
def gru_jacobians_T(weight_hh, hidden, gates):
    """Assemble the transposed Jacobians; see `bppsa_nb.cells.gru.jacobians_T`."""
    _, steps, batch, size = gates.shape
    W_r = np.ascontiguousarray(weight_hh[:size].T)
    W_z = np.ascontiguousarray(weight_hh[size : 2 * size].T)
    W_n = np.ascontiguousarray(weight_hh[2 * size :].T)
    jacobians_T = np.empty((steps, batch, size, size), hidden.dtype)
    to_r, to_z, to_m = np.empty(size, hidden.dtype), np.empty(size, hidden.dtype), np.empty(size, hidden.dtype)
    one = hidden.dtype.type(1)
    for t in range(steps):
        for b in range(batch):
            r, z, n, m, before = gates[0, t, b], gates[1, t, b], gates[2, t, b], gates[3, t, b], hidden[t, b]
            for j in range(size):
                to_r[j], to_z[j], _, to_m[j] = _slopes(r[j], z[j], n[j], m[j], before[j], one)
            for i in range(size):
                for j in range(size):
                    jacobians_T[t, b, i, j] = W_r[i, j] * to_r[j] + W_z[i, j] * to_z[j] + W_n[i, j] * to_m[j]
                jacobians_T[t, b, i, i] += z[i]
    return jacobians_T


@_compile
def gru_sweep(weight_hh, hidden, gates, grad_output, local_grads=None):
    """Back-propagate through time; see `bppsa_nb.cells.gru.sweep`."""
    grad_hidden = _start_sweep(hidden, grad_output, local_grads)
    _, steps, batch, hidden_size = gates.shape
    size = batch * hidden_size
    at_sums = np.empty((3, batch, hidden_size), hidden.dtype)
    products = np.empty((3, batch, hidden_size), hidden.dtype)
    at_r, at_z, at_m = at_sums[0].reshape(size), at_sums[1].reshape(size), at_sums[2].reshape(size)
    by_r, by_z, by_m = products[0].reshape(size), products[1].reshape(size), products[2].reshape(size)
    one, tiny = hidden.dtype.type(1), np.finfo(hidden.dtype).tiny
    for t in range(steps - 1, -1, -1):
        r, z, n = gates[0, t].reshape(size), gates[1, t].reshape(size), gates[2, t].reshape(size)
        m, h = gates[3, t].reshape(size), hidden[t].reshape(size)
        grad, before = grad_hidden[t + 1].reshape(size), grad_hidden[t].reshape(size)
        for i in range(size):
            to_r, to_z, _, to_m = _slopes(r[i], z[i], n[i], m[i], h[i], one)
            at_r[i], at_z[i] = _normal(grad[i] * to_r, tiny), _normal(grad[i] * to_z, tiny)
            at_m[i] = _normal(grad[i] * to_m, tiny)
        for gate in range(3):
            np.dot(at_sums[gate], weight_hh[gate * hidden_size : (gate + 1) * hidden_size], products[gate])
        for i in range(size):
            before[i] = _normal(before[i] + grad[i] * z[i] + by_r[i] + by_z[i] + by_m[i], tiny)
    return grad_hidden


def gru_gate_gradients(hidden, gates, grad_hidden):
    """Compute the gradients at the sums of the gates; see `bppsa_nb.cells.gru.gate_gradients`."""
    _, steps, batch, size = gates.shape
    from_x, from_h = (np.empty((steps, batch, 3 * size), hidden.dtype) for _ in range(2))
    _gru_gate_gradients(hidden, gates, grad_hidden, from_x, from_h)
    return from_x, from_h


@_compile
def _gru_gate_gradients(hidden, gates, grad_hidden, from_x, from_h):
    _, steps, batch, size = gates.shape
    one, tiny = hidden.dtype.type(1), np.finfo(hidden.dtype).tiny
    for t in range(steps):
        for b in range(batch):
            r, z, n, m, before = gates[0, t, b], gates[1, t, b], gates[2, t, b], gates[3, t, b], hidden[t, b]
            grad, row_x, row_h = grad_hidden[t + 1, b], from_x[t, b], from_h[t, b]
            for j in range(size):
                to_r, to_z, to_n, to_m = _slopes(r[j], z[j], n[j], m[j], before[j], one)
                g = _normal(grad[j], tiny)
                row_x[j] = row_h[j] = _normal(g * to_r, tiny)
                row_x[size + j] = row_h[size + j] = _normal(g * to_z, tiny)
                row_x[2 * size + j] = _normal(g * to_n, tiny)
                row_h[2 * size + j] = _normal(g * to_m, tiny)


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; see `bppsa_nb.cells.recurrent.parameter_gradients`."""
    inputs, size, sums = x.shape[2], hidden.shape[2], from_x.shape[2]
    shapes = {"weight_ih": (sums, inputs), "weight_hh": (sums, size), "bias_ih": sums, "bias_hh": sums}
    grads = {name: np.zeros(shape, x.dtype) for name, shape in shapes.items()}
    _add_parameter_gradients(x, hidden, from_x, from_h, *grads.values())
    return grads


@_compile
def _add_parameter_gradients(x, hidden, from_x, from_h, weight_ih, weight_hh, bias_ih, bias_hh):
    """Add up in blocks of many steps, each large enough for BLAS and small enough to stay in the cache."""
    steps, batch, inputs = x.shape
    size, sums = hidden.shape[2], from_x.shape[2]
    block = max(1, 512 // batch)
    ones = np.ones(block * batch, x.dtype)
    for start in range(0, steps, block):
        stop = min(start + block, steps)
        rows = (stop - start) * batch
        of_x, of_h = from_x[start:stop].reshape(rows, sums), from_h[start:stop].reshape(rows, sums)
        weight_ih += np.dot(of_x.T, x[start:stop].reshape(rows, inputs))
        weight_hh += np.dot(of_h.T, hidden[start:stop].reshape(rows, size))
        bias_ih += np.dot(ones[:rows], of_x)
        bias_hh += np.dot(ones[:rows], of_h)


@_compile
def input_gradients(weight_ih, from_x):
    """Compute the gradients at a layer's input; see `bppsa_nb.cells.recurrent.input_gradients`."""
    steps, batch, sums = from_x.shape
    return np.dot(from_x.reshape(steps * batch, sums), weight_ih).reshape(steps, batch, weight_ih.shape[1])
