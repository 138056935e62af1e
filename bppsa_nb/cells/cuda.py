"""The cells on a GPU: their time loops, the diagonals of their chains, and gradients as products over all steps.

A time loop is one launch with one sample per block; what does not wait for another step (input products, diagonals,
gradients at the sums, gradients of the parameters) is spread over all steps and samples.

Launchers take device arrays and a stream, allocate nothing and wait for nothing: `training.device` records them.
The functions with a cell's name are the twins of its NumPy functions, with host arrays in and out.
"""

import math

import numpy as np
from numba import cuda

from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.cuda import MAX_THREADS, shared_bytes

_device = cuda.jit(device=True, inline="always")
_THREADS = 128  # of a block in kernels without shared memory
PARTS = 256  # into how many sums the rows of a weight's gradient are split, at most


@cuda.jit
def input_products(x, weight_ih, bias_ih, out):
    """Compute ``out = x @ weight_ih.T + bias_ih`` for all steps and samples, one number per thread."""
    q = cuda.grid(1)
    row, g = q // out.shape[2], q % out.shape[2]
    t, b = row // out.shape[1], row % out.shape[1]
    if t < out.shape[0]:
        total = bias_ih[g]
        for i in range(x.shape[2]):
            total += weight_ih[g, i] * x[t, b, i]
        out[t, b, g] = total


@cuda.jit
def transpose(matrix, out):
    """Write a matrix out by columns, one number per thread."""
    q = cuda.grid(1)
    i, j = q // out.shape[1], q % out.shape[1]
    if i < out.shape[0]:
        out[i, j] = matrix[j, i]


@cuda.jit
def rnn_forward_kernel(products, weight_hh_T, bias_hh, hidden):
    """Run Equation 9 over time, one sample per block; ``hidden[0]`` and the input products are given."""
    before = cuda.shared.array(0, hidden.dtype)
    b, steps, size = cuda.blockIdx.x, products.shape[0], hidden.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    for j in range(tid, size, threads):
        before[j] = hidden[0, b, j]
    ahead = products[0, b, tid]
    for t in range(steps):
        now, ahead = ahead, products[min(t + 1, steps - 1), b, tid]  # read ahead: no step waits for memory
        cuda.syncthreads()
        for i in range(tid, size, threads):
            added = now if i == tid else products[t, b, i]
            hidden[t + 1, b, i] = math.tanh(added + bias_hh[i] + dot(weight_hh_T, i, before, 0))
        cuda.syncthreads()
        for i in range(tid, size, threads):
            before[i] = hidden[t + 1, b, i]


@_device
def _sigmoid(x, one):
    small = math.exp(-abs(x))  # which does not overflow: the simulator's exp, Python's own, would refuse to
    return (small if x < 0 else one) / (one + small)


@cuda.jit
def gru_forward_kernel(products, weight_hh_T, bias_hh, hidden, gates):
    """Run Equation 10 over time and keep the gates, one sample per block; arguments as for the RNN's."""
    before = cuda.shared.array(0, hidden.dtype)  # the state, r, z, M, and what the input adds to n
    b, steps, size, sums = cuda.blockIdx.x, products.shape[0], hidden.shape[2], products.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    one = hidden.dtype.type(1)
    for j in range(tid, size, threads):
        before[j] = hidden[0, b, j]
    ahead = products[0, b, tid]
    for t in range(steps):
        now, ahead = ahead, products[min(t + 1, steps - 1), b, tid]  # read ahead: no step waits for memory
        cuda.syncthreads()
        for g in range(tid, sums, threads):
            added = now if g == tid else products[t, b, g]
            total = bias_hh[g] + dot(weight_hh_T, g, before, 0)
            if g < 2 * size:
                before[size + g] = _sigmoid(added + total, one)
            else:
                before[size + g] = total
                before[2 * size + g] = added
        cuda.syncthreads()
        for i in range(tid, size, threads):
            r, z, m = before[size + i], before[2 * size + i], before[3 * size + i]
            n = math.tanh(before[4 * size + i] + r * m)
            gates[0, t, b, i] = r
            gates[1, t, b, i] = z
            gates[2, t, b, i] = n
            gates[3, t, b, i] = m
            before[i] = n + z * (before[i] - n)
            hidden[t + 1, b, i] = before[i]


@cuda.jit
def rnn_slopes(hidden, slopes):
    """Compute ``1 - h_t²``, one number per thread."""
    q = cuda.grid(1)
    batch, size = slopes.shape[2], slopes.shape[3]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < slopes.shape[1]:
        h = hidden[t + 1, b, i]
        slopes[0, t, b, i] = slopes.dtype.type(1) - h * h


@cuda.jit
def gru_slopes(hidden, gates, slopes):
    """Compute the derivatives of h_t by R_t, Z_t, M_t and N_t, those of one hidden unit per thread.

    See `bppsa_nb.cells.gru.slopes`. The first three are those of the chain; N_t sees the input only.
    """
    q = cuda.grid(1)
    batch, size = slopes.shape[2], slopes.shape[3]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < slopes.shape[1]:
        one = slopes.dtype.type(1)
        r, z, n, m = gates[0, t, b, i], gates[1, t, b, i], gates[2, t, b, i], gates[3, t, b, i]
        to_n = (one - n * n) * (one - z)  # j6 j7
        slopes[0, t, b, i] = r * (one - r) * m * to_n
        slopes[1, t, b, i] = z * (one - z) * (hidden[t, b, i] - n)
        slopes[2, t, b, i] = r * to_n
        slopes[3, t, b, i] = to_n


@cuda.jit
def at_sums(slopes, grad_hidden):
    """Turn slopes into the gradients at their sums, in place: times the gradient at the state, one per thread."""
    q = cuda.grid(1)
    steps, batch, size = slopes.shape[1], slopes.shape[2], slopes.shape[3]
    b, i = q // size % batch, q % size
    t, k = q // (batch * size) % steps, q // (batch * size) // steps
    if k < slopes.shape[0]:
        slopes[k, t, b, i] *= grad_hidden[t + 1, b, i]


@cuda.jit
def outer_products(at, count, last, right, parts):
    """Compute ``at.T @ right`` and the sums of `at` over a share of the steps per block; the shares are the parts.

    Of `at` [shape=(..., T, B, H)], the first ``count - 1`` and number `last` are taken; `parts` is
    [shape=(parts, K H, I + 1)].
    """
    steps, batch, size = at.shape[1], at.shape[2], at.shape[3]
    columns = parts.shape[2]
    share = (steps + parts.shape[0] - 1) // parts.shape[0]
    first = cuda.blockIdx.x * share
    for q in range(cuda.threadIdx.x, count * size * columns, cuda.blockDim.x):
        row, column = q // columns, q % columns
        k, i = row // size, row % size
        k = last if k == count - 1 else k
        total = parts.dtype.type(0)
        for t in range(first, min(first + share, steps)):
            for b in range(batch):
                if column < columns - 1:
                    total += at[k, t, b, i] * right[t, b, column]
                else:
                    total += at[k, t, b, i]
        parts[cuda.blockIdx.x, row, column] = total


@cuda.jit
def sum_parts(parts, weight, bias):
    """Add the parts up in their order, one number per thread: the same sum at every run."""
    q = cuda.grid(1)
    row, column = q // parts.shape[2], q % parts.shape[2]
    if row < parts.shape[1]:
        total = parts.dtype.type(0)
        for part in range(parts.shape[0]):
            total += parts[part, row, column]
        if column < parts.shape[2] - 1:
            weight[row, column] = total
        else:
            bias[row] = total


@cuda.jit
def input_gradients_kernel(at, count, last, weight_ih, out):
    """Compute the gradients at a layer's input, one number per thread; `at` as for `outer_products`."""
    q = cuda.grid(1)
    row, column = q // out.shape[2], q % out.shape[2]
    t, b = row // out.shape[1], row % out.shape[1]
    if t < out.shape[0]:
        size = at.shape[3]
        total = out.dtype.type(0)
        for k in range(count):
            source = last if k == count - 1 else k
            for i in range(size):
                total += at[source, t, b, i] * weight_ih[k * size + i, column]
        out[t, b, column] = total


def launch_forward(x, params, weight_hh_T, products, hidden, gates=None, stream=0):
    """Launch a layer's forward pass.

    Parameters
    ----------
    x : device array [shape=(T, B, I)]
        T at least 1.
    params : tuple of device arrays
        weight_ih, weight_hh, bias_ih and bias_hh.
    weight_hh_T : device array [shape=(H, G)]
    products : device array [shape=(T, B, G)]
        Both are worked on.
    hidden : device array [shape=(T + 1, B, H)]
        ``hidden[0]`` is given.
    gates : device array [shape=(4, T, B, H)], optional
        A GRU's.
    stream : stream
    """
    weight_ih, weight_hh, bias_ih, bias_hh = params
    _, batch, size = hidden.shape
    sums = len(weight_hh)
    input_products[_blocks(products.size), _THREADS, stream](x, weight_ih, bias_ih, products)
    transpose[_blocks(weight_hh.size), _THREADS, stream](weight_hh, weight_hh_T)
    arguments = products, weight_hh_T, bias_hh, hidden
    if gates is None:
        shared = shared_bytes(size, hidden.dtype, f"H = {size}")
        rnn_forward_kernel[batch, min(size, MAX_THREADS), stream, shared](*arguments)
    else:
        shared = shared_bytes(5 * size, hidden.dtype, f"5 H = {5 * size}")
        gru_forward_kernel[batch, min(sums, MAX_THREADS), stream, shared](*arguments, gates)


def launch_slopes(hidden, gates, slopes, stream=0):
    """Launch a layer's diagonals: `slopes` is [shape=(1, T, B, H)] for an RNN, [shape=(4, T, B, H)] for a GRU."""
    blocks = _blocks(slopes[0].size)
    if gates is None:
        rnn_slopes[blocks, _THREADS, stream](hidden, slopes)
    else:
        gru_slopes[blocks, _THREADS, stream](hidden, gates, slopes)


def launch_at_sums(slopes, grad_hidden, stream=0):
    """Launch the gradients at a layer's sums, in place of the slopes, from those at its states."""
    at_sums[_blocks(slopes.size), _THREADS, stream](slopes, grad_hidden)


def launch_gradients(x, hidden, slopes, parts_ih, parts_hh, grads, stream=0):
    """Launch the gradients of a layer's parameters: its δW.

    Parameters
    ----------
    x : device array [shape=(T, B, I)]
    hidden : device array [shape=(T + 1, B, H)]
    slopes : device array
        Gradients at the sums by now, from `launch_at_sums`.
    parts_ih, parts_hh : device array [shape=(parts, K H, I + 1)], [shape=(parts, K H, H + 1)]
        Worked on.
    grads : tuple of device arrays
        Of weight_ih, weight_hh, bias_ih and bias_hh.
    stream : stream
    """
    count, last_x, last_h = _gates_of(slopes)
    for parts, last, right, weight, bias in (
        (parts_ih, last_x, x, grads[0], grads[2]),
        (parts_hh, last_h, hidden, grads[1], grads[3]),
    ):
        outer_products[len(parts), _THREADS, stream](slopes, count, last, right, parts)
        sum_parts[_blocks(parts[0].size), _THREADS, stream](parts, weight, bias)


def launch_input_gradients(slopes, weight_ih, out, stream=0):
    """Launch the gradients at a layer's input [shape=(T, B, I)]; `slopes` are gradients at the sums by now."""
    count, last, _ = _gates_of(slopes)
    input_gradients_kernel[_blocks(out.size), _THREADS, stream](slopes, count, last, weight_ih, out)


def _gates_of(slopes):
    """Return how many sums a cell has, and which row is the last one's by the input and by the state."""
    return (1, 0, 0) if len(slopes) == 1 else (3, 3, 2)


def _blocks(count):
    return -(-count // _THREADS)


def parts_of(steps):
    """Return into how many sums the rows of a weight's gradient are split."""
    return min(PARTS, steps)


def _forward(x, h0, params, gates):
    steps, batch, _ = x.shape
    hidden = np.empty((steps + 1, *h0.shape), h0.dtype)
    hidden[0] = h0
    if steps:
        params = [cuda.to_device(param) for param in params]
        work = [cuda.device_array(shape, h0.dtype) for shape in (params[1].shape[::-1], (steps, batch, len(params[1])))]
        found = cuda.to_device(hidden)
        kept = None if gates is None else cuda.device_array(gates.shape, gates.dtype)
        launch_forward(cuda.to_device(x), params, *work, found, kept)
        found.copy_to_host(hidden)
        if gates is not None:
            kept.copy_to_host(gates)
    return hidden


def rnn_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 9 over time; see `bppsa_nb.cells.rnn.forward`."""
    return _forward(x, h0, (weight_ih, weight_hh, bias_ih, bias_hh), None)


def gru_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 10 over time; see `bppsa_nb.cells.gru.forward`."""
    gates = np.empty((4, len(x), *h0.shape), h0.dtype)
    return _forward(x, h0, (weight_ih, weight_hh, bias_ih, bias_hh), gates), gates


def rnn_chain(weight_hh, hidden):
    """Take the transposed Jacobians for a chain of one weight; see `bppsa_nb.cells.rnn.chain`."""
    return _chain(1, weight_hh, hidden, None)


def gru_chain(weight_hh, hidden, gates):
    """Take the transposed Jacobians for a chain of three weights and a carry; see `bppsa_nb.cells.gru.chain`."""
    return _chain(3, weight_hh, hidden, gates)


def _chain(count, weight_hh, hidden, gates):
    size = weight_hh.shape[1]
    weights, shape = weight_hh.reshape(count, size, size), (1 if gates is None else 4, *hidden[1:].shape)
    if shape[1] == 0:
        return StructuredChain.made(weights, np.empty((count, *shape[1:]), hidden.dtype), None)
    slopes, gates = cuda.device_array(shape, hidden.dtype), None if gates is None else cuda.to_device(gates)
    launch_slopes(cuda.to_device(hidden), gates, slopes)
    return StructuredChain.made(weights, slopes[:count], None if gates is None else gates[1])


def rnn_gate_gradients(chain, hidden, grad_hidden):
    """Compute the gradients at the sums inside tanh; see `bppsa_nb.cells.rnn.gate_gradients`."""
    return _gate_gradients(hidden, None, grad_hidden)


def gru_gate_gradients(chain, hidden, gates, grad_hidden):
    """Compute the gradients at the sums of the gates; see `bppsa_nb.cells.gru.gate_gradients`."""
    return _gate_gradients(hidden, gates, grad_hidden)


def _gate_gradients(hidden, gates, grad_hidden):
    at = cuda.device_array((1 if gates is None else 4, *hidden[1:].shape), hidden.dtype)
    if at.size:
        launch_slopes(cuda.to_device(hidden), None if gates is None else cuda.to_device(gates), at)
        launch_at_sums(at, cuda.to_device(grad_hidden))
    if gates is None:
        return [at[0]], [at[0]]
    at_r, at_z, at_m, at_n = (at[k] for k in range(4))
    return [at_r, at_z, at_n], [at_r, at_z, at_m]


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; see `bppsa_nb.cells.recurrent.parameter_gradients`."""
    x, hidden = cuda.to_device(x), cuda.to_device(hidden)
    of_x = [_outer_product(at, x) for at in from_x]
    of_h = [_outer_product(at, hidden) for at in from_h]
    found = {"weight_ih": of_x, "weight_hh": of_h}
    grads = {name: np.concatenate([weight for weight, _ in pairs]) for name, pairs in found.items()}
    biases = {"bias_ih": of_x, "bias_hh": of_h}
    return grads | {name: np.concatenate([bias for _, bias in pairs]) for name, pairs in biases.items()}


def _outer_product(at, right):
    steps, batch, size = at.shape
    columns = right.shape[2]
    if steps == 0:
        return np.zeros((size, columns), at.dtype), np.zeros(size, at.dtype)
    parts = cuda.device_array((parts_of(steps), size, columns + 1), at.dtype)
    weight, bias = cuda.device_array((size, columns), at.dtype), cuda.device_array(size, at.dtype)
    outer_products[len(parts), _THREADS](at.reshape(1, steps, batch, size), 1, 0, right, parts)
    sum_parts[_blocks(parts[0].size), _THREADS](parts, weight, bias)
    return weight.copy_to_host(), bias.copy_to_host()


def input_gradients(weight_ih, from_x):
    """Compute the gradients at a layer's input; see `bppsa_nb.cells.recurrent.input_gradients`."""
    steps, batch, size = from_x[0].shape
    total = np.zeros((steps, batch, weight_ih.shape[1]), weight_ih.dtype)
    for at, weight in zip(from_x, np.split(weight_ih, len(from_x)), strict=True):
        if steps:
            out = cuda.device_array(total.shape, total.dtype)
            weight = cuda.to_device(np.ascontiguousarray(weight))
            input_gradients_kernel[_blocks(out.size), _THREADS](at.reshape(1, steps, batch, size), 1, 0, weight, out)
            total += out.copy_to_host()
    return total
