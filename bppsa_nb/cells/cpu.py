"""The cells compiled for CPUs; twins of the NumPy functions, with the same arguments.

A step multiplies the states of a few samples tile by tile (`bppsa_nb.tiles`), then runs once over all their numbers,
in a loop that the compiler vectorizes. Samples never wait for each other, so cores share out groups of them; what waits
for no other step is computed for all steps at once, and shared out by time.

Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C that arrives while Numba wraps them up
turns into a SystemError.
"""

import numpy as np
from numba import njit

from bppsa_nb.cells.elementary import sigmoid, tanh
from bppsa_nb.cells.fused import backward  # noqa: F401  that of both cells
from bppsa_nb.cells.recurrent import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.structured.chain import StructuredChain
from bppsa_nb.subnormals import flush, restore
from bppsa_nb.tiles import GROUP, multiply
from bppsa_nb.workers import one_blas_thread, share_out

keep_freed_memory()

# Without the "numpy" error model every division would carry a branch (ZeroDivisionError), and its loop would
# not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and infinity keep their meaning.
_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)

_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use
_WORTH_NUMBERS = 2**18  # the same for numbers that are read and written once
_PARTS = 8  # sums of parameter gradients that are added up apart, for as many workers at most
_ROWS = 256  # of a product that adds to them: enough for BLAS, and small enough to stay in the cache


def rnn_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 9 over time; see `bppsa_nb.cells.rnn.forward`."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    hidden[0] = h0
    _share_samples(_rnn_forward, 1, x, weight_ih, weight_hh, bias_ih + bias_hh, hidden)
    return hidden


def gru_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 10 over time; see `bppsa_nb.cells.gru.forward`."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    gates = np.empty((4, len(x), *h0.shape), x.dtype)
    hidden[0] = h0
    bias, size = np.concatenate([bias_ih, bias_hh[-h0.shape[1] :]]), len(h0[0])
    bias[: 2 * size] += bias_hh[: 2 * size]
    _share_samples(_gru_forward, 3, x, weight_ih, weight_hh, bias, hidden, gates)
    return hidden, gates


def _share_samples(function, sums, x, weight_ih, weight_hh, bias, *filled):
    """Have a compiled forward pass go through time, by groups of samples where that is worth it."""
    size = weight_hh.shape[1]
    by_x, by_h = (
        np.ascontiguousarray(weight.reshape(sums, size, -1).transpose(0, 2, 1)) for weight in (weight_ih, weight_hh)
    )
    work = len(x) * x.shape[1] * (by_x.size + by_h.size)
    share_out(function, -(-x.shape[1] // GROUP), x, by_x, by_h, bias.reshape(-1, size), *filled, worth=work > _WORTH)


@_compile
def _rnn_forward(x, weights_x, weights_h, bias, hidden, first, last):
    steps, batch, inputs = x.shape
    begin, end, width = first * GROUP, min(last * GROUP, batch), hidden.shape[2]
    samples = end - begin
    size = samples * width
    from_x, from_h = np.empty((samples, width), x.dtype), np.empty((samples, width), x.dtype)
    of_x, of_h, added = from_x.reshape(size), from_h.reshape(size), _repeated(bias, samples)[0]
    for t in range(steps):
        multiply(x[t, begin:end].reshape(1, samples, inputs), weights_x, from_x)
        multiply(hidden[t, begin:end].reshape(1, samples, width), weights_h, from_h)
        after = hidden[t + 1, begin:end].reshape(size)
        for i in range(size):
            after[i] = tanh(of_x[i] + added[i] + of_h[i])
    return True


@_compile
def _gru_forward(x, weights_x, weights_h, bias, hidden, gates, first, last):
    steps, batch, inputs = x.shape
    begin, end, width = first * GROUP, min(last * GROUP, batch), hidden.shape[2]
    samples = end - begin
    size = samples * width
    from_x, from_h = np.empty((3, samples, width), x.dtype), np.empty((3, samples, width), x.dtype)
    x_r, x_z, x_n = from_x[0].reshape(size), from_x[1].reshape(size), from_x[2].reshape(size)
    h_r, h_z, h_n = from_h[0].reshape(size), from_h[1].reshape(size), from_h[2].reshape(size)
    added = _repeated(bias, samples)
    to_r, to_z, to_n, to_m = added[0], added[1], added[2], added[3]
    for t in range(steps):
        inputs_now = x[t, begin:end].reshape(1, samples, inputs)
        states_now = hidden[t, begin:end].reshape(1, samples, width)
        for k in range(3):
            multiply(inputs_now, weights_x[k : k + 1], from_x[k])
            multiply(states_now, weights_h[k : k + 1], from_h[k])
        r, z = gates[0, t, begin:end].reshape(size), gates[1, t, begin:end].reshape(size)
        n, m = gates[2, t, begin:end].reshape(size), gates[3, t, begin:end].reshape(size)
        before, after = hidden[t, begin:end].reshape(size), hidden[t + 1, begin:end].reshape(size)
        for i in range(size):
            reset = sigmoid(x_r[i] + to_r[i] + h_r[i])
            update = sigmoid(x_z[i] + to_z[i] + h_z[i])
            state = h_n[i] + to_m[i]
            new = tanh(x_n[i] + to_n[i] + reset * state)
            r[i], z[i], n[i], m[i] = reset, update, new, state
            after[i] = new + update * (before[i] - new)
    return True


@_compile
def _repeated(bias, samples):
    """Repeat every row for all samples."""
    count, width = bias.shape
    rows = np.empty((count, samples * width), bias.dtype)
    for k in range(count):
        for i in range(samples * width):
            rows[k, i] = bias[k, i % width]
    return rows


def rnn_chain(weight_hh, hidden):
    """Take the transposed Jacobians for a chain of one weight; see `bppsa_nb.cells.rnn.chain`."""
    slopes = np.empty((1, *hidden[1:].shape), hidden.dtype)
    _share_numbers(_rnn_slopes, hidden[1:].reshape(-1), slopes.reshape(-1))
    return StructuredChain.made(weight_hh[None], slopes)


def gru_chain(weight_hh, hidden, gates):
    """Take the transposed Jacobians for a chain of three weights and a carry; see `bppsa_nb.cells.gru.chain`."""
    slopes = np.empty((3, *gates.shape[1:]), hidden.dtype)
    _share_numbers(_gru_slopes, hidden[:-1].reshape(-1), gates.reshape(4, -1), slopes.reshape(3, -1))
    return StructuredChain.made(weight_hh.reshape(3, -1, weight_hh.shape[1]), slopes, gates[1])


def rnn_gate_gradients(chain, hidden, grad_hidden):
    """Compute the gradients at the sums inside tanh, where the chain's slopes were.

    See `bppsa_nb.cells.rnn.gate_gradients`; the chain is used up.
    """
    _share_numbers(_rnn_gate_gradients, grad_hidden[1:].reshape(-1), chain.slopes.reshape(-1))
    return [chain.slopes[0]], [chain.slopes[0]]


def gru_gate_gradients(chain, hidden, gates, grad_hidden):
    """Compute the gradients at the sums of the gates, three of the four where the chain's slopes were.

    See `bppsa_nb.cells.gru.gate_gradients`; the chain is used up.
    """
    at_n = np.empty_like(gates[2])
    flat = grad_hidden[1:].reshape(-1), gates.reshape(4, -1), chain.slopes.reshape(3, -1), at_n.reshape(-1)
    _share_numbers(_gru_gate_gradients, *flat)
    at_r, at_z, at_m = chain.slopes
    return [at_r, at_z, at_n], [at_r, at_z, at_m]


def _share_numbers(function, array, *arrays):
    """Have compiled code go once over arrays, all steps and samples at once, in pieces where that is worth it."""
    share_out(function, array.size, array, *arrays, worth=array.size > _WORTH_NUMBERS)


@_compile
def _rnn_slopes(hidden, slopes, first, last):
    one = hidden.dtype.type(1)
    for i in range(first, last):
        slopes[i] = one - hidden[i] * hidden[i]
    return True


@_compile
def _gru_slopes(hidden, gates, slopes, first, last):
    one = hidden.dtype.type(1)
    r, z, n, m = gates[0], gates[1], gates[2], gates[3]
    to_r, to_z, to_m = slopes[0], slopes[1], slopes[2]
    for i in range(first, last):
        to_m[i] = r[i] * (one - n[i] * n[i]) * (one - z[i])
        to_r[i] = to_m[i] * (one - r[i]) * m[i]
        to_z[i] = z[i] * (one - z[i]) * (hidden[i] - n[i])
    return True


@_compile
def _rnn_gate_gradients(grad, at, first, last):
    before = flush()
    for i in range(first, last):
        at[i] *= grad[i]
    restore(before)
    return True


@_compile
def _gru_gate_gradients(grad, gates, at, at_n, first, last):
    one = grad.dtype.type(1)
    z, n = gates[1], gates[2]
    at_r, at_z, at_m = at[0], at[1], at[2]
    before = flush()
    for i in range(first, last):
        at_r[i] *= grad[i]
        at_z[i] *= grad[i]
        at_m[i] *= grad[i]
        at_n[i] = grad[i] * ((one - n[i] * n[i]) * (one - z[i]))
    restore(before)
    return True


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; see `bppsa_nb.cells.recurrent.parameter_gradients`."""
    (steps, batch, inputs), size, count = x.shape, hidden.shape[2], len(from_x)
    block = max(1, _ROWS // batch)
    parts = max(1, min(_PARTS, -(-steps // block)))  # not as many as there are threads: sums shall not depend on those
    shapes = {"weight_ih": (size, inputs), "weight_hh": (size, size), "bias_ih": (size,), "bias_hh": (size,)}
    sums = {name: np.zeros((parts, count, *shape), x.dtype) for name, shape in shapes.items()}
    work = steps * batch * (inputs + size) * count * size
    arrays = x, hidden, tuple(from_x), tuple(from_h), block, *sums.values()
    with one_blas_thread():
        share_out(_add_up, parts, *arrays, worth=work > _WORTH)
    return {name: found.sum(axis=0).reshape(-1, *found.shape[3:]) for name, found in sums.items()}


@_compile
def _add_up(x, hidden, from_x, from_h, block, weight_ih, weight_hh, bias_ih, bias_hh, first, last):
    """Add up for parts first ... last - 1 of all steps, block after block."""
    steps, batch = len(x), x.shape[1]
    blocks, parts, ones = (steps + block - 1) // block, len(weight_ih), np.ones(block * batch, x.dtype)
    for part in range(first, last):
        for start in range(blocks * part // parts * block, blocks * (part + 1) // parts * block, block):
            stop = min(start + block, steps)
            for k in range(len(from_x)):
                _add_products(ones, from_x[k][start:stop], x[start:stop], weight_ih[part, k], bias_ih[part, k])
                _add_products(ones, from_h[k][start:stop], hidden[start:stop], weight_hh[part, k], bias_hh[part, k])
    return True


@_compile
def _add_products(ones, sums, factors, weight, bias):
    rows = sums.shape[0] * sums.shape[1]
    at = sums.reshape(rows, sums.shape[2])
    weight += np.dot(at.T, factors.reshape(rows, factors.shape[2]))
    bias += np.dot(ones[:rows], at)
