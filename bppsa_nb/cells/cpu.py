"""The cells compiled for CPUs; twins of the NumPy functions, with the same arguments.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs once over all their numbers,
in a loop that the compiler vectorizes. Samples never wait for each other, so cores share out groups of them; what waits
for no other step is computed for all steps at once, and shared out by time.

Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C that arrives while Numba wraps them up
turns into a SystemError.
"""

import numpy as np

from bppsa_nb.cells.fused import backward  # noqa: F401  that of both cells
from bppsa_nb.cells.recurrent import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.compiling import njit
from bppsa_nb.machine.elementary import sigmoid, tanh
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import GROUP, multiply, product
from bppsa_nb.machine.views import add, numbers
from bppsa_nb.machine.workers import one_blas_thread, share_out

keep_freed_memory()

# Without the "numpy" error model every division would carry a branch (ZeroDivisionError), and its loop would
# not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and infinity keep their meaning.
_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)

_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use
_WORTH_NUMBERS = 2**18  # the same for numbers that are read and written once
_STEPS = 32  # whose inputs are multiplied at once: few enough for what they add to stay in the cache
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
    (steps, batch, _), size = x.shape, weight_hh.shape[1]
    by_x, by_h = (
        np.ascontiguousarray(weight.reshape(sums, size, -1).transpose(0, 2, 1)) for weight in (weight_ih, weight_hh)
    )
    added = np.tile(bias.reshape(-1, size), batch)  # repeated for all samples
    arrays = product(x.dtype), x, by_x, by_h, added, np.empty((sums, batch, size), x.dtype), *filled
    share_out(function, -(-batch // GROUP), *arrays, worth=steps * batch * (by_x.size + by_h.size) > _WORTH)


@_compile
def _rnn_forward(product, x, weights_x, weights_h, added, from_h, hidden, first, last):
    (steps, batch, inputs), width = x.shape, hidden.shape[2]
    begin, end = first * GROUP, min(last * GROUP, batch)
    low, n = begin * width, (end - begin) * width
    together = _STEPS if end - begin == batch else 1  # steps whose inputs lie side by side, so are multiplied at once
    x_rows, rows = x.reshape(1, steps * batch, inputs), hidden.reshape((steps + 1) * batch, width)
    to_sum, of_h, sums = numbers(added, low, n), numbers(from_h, low, n), from_h[0, begin:end]
    for start in range(0, steps, together):
        stop = min(start + together, steps)
        top, bottom = start * batch + begin, (stop - 1) * batch + end
        multiply(product, x_rows[:, top:bottom], weights_x, rows[batch + top : batch + bottom])
        for t in range(start, stop):
            multiply(product, hidden[t : t + 1, begin:end], weights_h, sums)
            after = numbers(hidden, (t + 1) * batch * width + low, n)
            for i in range(n):
                after[i] = tanh(after[i] + to_sum[i] + of_h[i])
    return True


@_compile
def _gru_forward(product, x, weights_x, weights_h, added, from_h, hidden, gates, first, last):
    (steps, batch, inputs), width = x.shape, hidden.shape[2]
    begin, end, state = first * GROUP, min(last * GROUP, batch), batch * width
    low, n, gate = begin * width, (end - begin) * width, steps * batch * width
    together = _STEPS if end - begin == batch else 1
    x_rows, rows = x.reshape(1, steps * batch, inputs), gates.reshape(4, steps * batch, width)
    h_r, h_z, h_n = numbers(from_h, low, n), numbers(from_h, state + low, n), numbers(from_h, 2 * state + low, n)
    to_r, to_z = numbers(added, low, n), numbers(added, state + low, n)
    to_n, to_m = numbers(added, 2 * state + low, n), numbers(added, 3 * state + low, n)
    for start in range(0, steps, together):
        stop = min(start + together, steps)
        top, bottom = start * batch + begin, (stop - 1) * batch + end
        for k in range(3):
            multiply(product, x_rows[:, top:bottom], weights_x[k : k + 1], rows[k, top:bottom])
        for t in range(start, stop):
            for k in range(3):
                multiply(product, hidden[t : t + 1, begin:end], weights_h[k : k + 1], from_h[k, begin:end])
            here = t * state + low
            r, z = numbers(gates, here, n), numbers(gates, gate + here, n)  # until now what inputs add to the sums
            n_, m = numbers(gates, 2 * gate + here, n), numbers(gates, 3 * gate + here, n)
            before, after = numbers(hidden, here, n), numbers(hidden, here + state, n)
            for i in range(n):
                reset = sigmoid(r[i] + to_r[i] + h_r[i])
                update = sigmoid(z[i] + to_z[i] + h_z[i])
                state_sum = h_n[i] + to_m[i]
                new = tanh(n_[i] + to_n[i] + reset * state_sum)
                r[i], z[i], n_[i], m[i] = reset, update, new, state_sum
                after[i] = new + update * (before[i] - new)
    return True


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
    rows, block = steps * batch, max(1, _ROWS // batch) * batch
    parts = max(1, min(_PARTS, -(-rows // block)))  # not as many as there are threads: sums shall not depend on those
    shapes = (count, size * inputs), (count, size * size), (2 * count, size)
    sums = [np.zeros((parts, *shape), x.dtype) for shape in shapes]
    seen = x.reshape(rows, inputs), hidden[:steps].reshape(rows, size)
    at_sums = tuple(at.reshape(rows, size) for at in (*from_x, *from_h))
    with one_blas_thread():
        share_out(_add_up, parts, *seen, at_sums, block, *sums, worth=rows * (inputs + size) * count * size > _WORTH)
    by_x, by_h, biases = (found.sum(axis=0) for found in sums)
    return {
        "weight_ih": by_x.reshape(-1, inputs),
        "weight_hh": by_h.reshape(-1, size),
        "bias_ih": biases[:count].reshape(-1),
        "bias_hh": biases[count:].reshape(-1),
    }


@_compile
def _add_up(x, hidden, at_sums, block, by_x, by_h, biases, first, last):
    """Add up for parts first ... last - 1 of all rows, block after block."""
    (rows, size), count, parts = at_sums[0].shape, len(at_sums) // 2, len(biases)
    blocks = (rows + block - 1) // block
    found_x, found_h = np.empty((size, x.shape[1]), x.dtype), np.empty((size, size), x.dtype)
    for part in range(first, last):
        for start in range(blocks * part // parts * block, blocks * (part + 1) // parts * block, block):
            stop = min(start + block, rows)
            for k in range(2 * count):
                if k < count:
                    seen, found, total = x, found_x, by_x[part, k]
                else:
                    seen, found, total = hidden, found_h, by_h[part, k - count]
                at = at_sums[k][start:stop]
                np.dot(at.T, seen[start:stop], found)
                add(total, numbers(found, 0, found.size))
                for i in range(len(at)):
                    add(biases[part, k], at[i])
    return True
