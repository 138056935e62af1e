"""The cells on a GPU: their time loops, the scan's transposed Jacobians, and gradients as batched products.

A time loop is one launch with one sample per block; what does not wait for another step (input products, Jacobians,
gradients at the gates, gradients of the parameters) is spread over all steps and samples. Arguments are host arrays
or, where one function takes what another returned, device arrays.
"""

import math

import numpy as np
from numba import cuda

from bppsa_nb.scan.cuda import (
    MAX_THREADS,
    SHARED_BYTES,
    collect,
    launch_prepare,
    launch_scan,
    rescale,
    workspace,
)

_device = cuda.jit(device=True, inline="always")
_THREADS = 128  # of a block in kernels without shared memory
_PARTS = 256  # into how many sums the rows of a weight's gradient are split, at most


@cuda.jit
def row_products(rows, matrix, bias, out):
    """Compute ``out = rows @ matrix + bias``, one number per thread."""
    q = cuda.grid(1)
    row, column = q // out.shape[1], q % out.shape[1]
    if row < out.shape[0]:
        total = bias[column]
        for k in range(rows.shape[1]):
            total += rows[row, k] * matrix[k, column]
        out[row, column] = total


@cuda.jit
def outer_products(left, right, parts):
    """Compute ``left.T @ right`` over a share of the rows per block; the shares' sums are the parts."""
    columns = right.shape[1]
    share = (left.shape[0] + parts.shape[0] - 1) // parts.shape[0]
    first = cuda.blockIdx.x * share
    last = min(first + share, left.shape[0])
    for q in range(cuda.threadIdx.x, left.shape[1] * columns, cuda.blockDim.x):
        total = parts.dtype.type(0)
        for row in range(first, last):
            total += left[row, q // columns] * right[row, q % columns]
        parts[cuda.blockIdx.x, q // columns, q % columns] = total


@cuda.jit
def sum_parts(parts, out):
    """Add the parts up in their order, one number per thread: the same sum at every run."""
    q = cuda.grid(1)
    row, column = q // out.shape[1], q % out.shape[1]
    if row < out.shape[0]:
        total = parts.dtype.type(0)
        for part in range(parts.shape[0]):
            total += parts[part, row, column]
        out[row, column] = total


@cuda.jit
def rnn_forward_kernel(products, weight_hh_T, hidden):
    """Run Equation 9 over time; ``hidden[0]`` and all that is added to the recurrent products are given."""
    before = cuda.shared.array(0, hidden.dtype)
    b, size = cuda.blockIdx.x, hidden.shape[2]
    for t in range(products.shape[0]):
        for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            before[j] = hidden[t, b, j]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            total = products[t, b, i]
            for j in range(size):
                total += weight_hh_T[j, i] * before[j]
            hidden[t + 1, b, i] = math.tanh(total)
        cuda.syncthreads()


@_device
def _sigmoid(x, half):
    return half + half * math.tanh(half * x)


@cuda.jit
def gru_forward_kernel(products, weight_hh_T, bias_hh, hidden, gates):
    """Run Equation 10 over time and keep the gates; ``hidden[0]`` and the input products are given."""
    before = cuda.shared.array(0, hidden.dtype)
    b, size = cuda.blockIdx.x, hidden.shape[2]
    half = hidden.dtype.type(0.5)
    for t in range(products.shape[0]):
        for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            before[j] = hidden[t, b, j]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            h_r, h_z, m = bias_hh[i], bias_hh[size + i], bias_hh[2 * size + i]
            for j in range(size):
                h_r += weight_hh_T[j, i] * before[j]
                h_z += weight_hh_T[j, size + i] * before[j]
                m += weight_hh_T[j, 2 * size + i] * before[j]
            r = _sigmoid(products[t, b, i] + h_r, half)
            z = _sigmoid(products[t, b, size + i] + h_z, half)
            n = math.tanh(products[t, b, 2 * size + i] + r * m)
            gates[0, t, b, i] = r
            gates[1, t, b, i] = z
            gates[2, t, b, i] = n
            gates[3, t, b, i] = m
            hidden[t + 1, b, i] = n + z * (before[i] - n)
        cuda.syncthreads()


@_device
def _slopes(hidden, gates, t, b, i):
    """Compute the derivatives of h_t by R_t, Z_t, N_t and M_t; see `bppsa_nb.cells.gru.slopes`."""
    one = hidden.dtype.type(1)
    r, z, n, m = gates[0, t, b, i], gates[1, t, b, i], gates[2, t, b, i], gates[3, t, b, i]
    to_n = (one - n * n) * (one - z)  # j6 j7
    return r * (one - r) * m * to_n, z * (one - z) * (hidden[t, b, i] - n), to_n, r * to_n


@cuda.jit
def rnn_prepare(weight_hh, hidden, mats, exps, lost):
    """Assemble ``W_hh^T diag(1 - h_{t+1}²)``, scaled: one step of one sample per block."""
    shared = cuda.shared.array(0, mats.dtype)
    t, b = cuda.blockIdx.x // mats.shape[1], cuda.blockIdx.x % mats.shape[1]
    size = mats.shape[2]
    one = mats.dtype.type(1)
    high = mats.dtype.type(0)
    low = mats.dtype.type(math.inf)
    for q in range(cuda.threadIdx.x, size * size, cuda.blockDim.x):
        i, j = q // size, q % size
        h = hidden[t + 1, b, j]
        value = weight_hh[j, i] * (one - h * h)
        mats[t, b, i, j] = value
        high = max(high, abs(value))
        if value != 0:
            low = min(low, abs(value))
    exponent = rescale(mats[t, b], high, low, shared, lost)
    if cuda.threadIdx.x == 0:
        exps[t, b] = exponent


@cuda.jit
def gru_prepare(weight_hh, hidden, gates, mats, exps, lost):
    """Assemble Equation 11 from weights and gates, scaled: one step of one sample per block."""
    shared = cuda.shared.array(0, mats.dtype)
    t, b = cuda.blockIdx.x // mats.shape[1], cuda.blockIdx.x % mats.shape[1]
    size = mats.shape[2]
    for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        to_r, to_z, _, to_m = _slopes(hidden, gates, t, b, j)
        shared[j] = to_r
        shared[size + j] = to_z
        shared[2 * size + j] = to_m
    cuda.syncthreads()
    high = mats.dtype.type(0)
    low = mats.dtype.type(math.inf)
    for q in range(cuda.threadIdx.x, size * size, cuda.blockDim.x):
        i, j = q // size, q % size
        value = weight_hh[j, i] * shared[j]  # J1 j2 j3 j6 j7
        value += weight_hh[2 * size + j, i] * shared[2 * size + j]  # J4 j5 j6 j7
        value += weight_hh[size + j, i] * shared[size + j]  # J8 j9 j10
        if i == j:
            value += gates[1, t, b, i]  # J11
        mats[t, b, i, j] = value
        high = max(high, abs(value))
        if value != 0:
            low = min(low, abs(value))
    exponent = rescale(mats[t, b], high, low, shared, lost)
    if cuda.threadIdx.x == 0:
        exps[t, b] = exponent


@cuda.jit
def rnn_sweep_kernel(weight_hh, hidden, grad_hidden):
    """Walk back through time (Equation 3), one sample per block; what enters from outside is given."""
    shared = cuda.shared.array(0, grad_hidden.dtype)
    b, size = cuda.blockIdx.x, grad_hidden.shape[2]
    one = grad_hidden.dtype.type(1)
    for t in range(grad_hidden.shape[0] - 2, -1, -1):
        for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            h = hidden[t + 1, b, j]
            shared[j] = grad_hidden[t + 1, b, j] * (one - h * h)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            total = grad_hidden[t, b, i]
            for j in range(size):
                total += weight_hh[j, i] * shared[j]
            grad_hidden[t, b, i] = total
        cuda.syncthreads()


@cuda.jit
def gru_sweep_kernel(weight_hh, hidden, gates, grad_hidden):
    """Walk back through time (Equation 3), one sample per block; what enters from outside is given."""
    shared = cuda.shared.array(0, grad_hidden.dtype)
    b, size = cuda.blockIdx.x, grad_hidden.shape[2]
    for t in range(grad_hidden.shape[0] - 2, -1, -1):
        for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            grad = grad_hidden[t + 1, b, j]
            to_r, to_z, _, to_m = _slopes(hidden, gates, t, b, j)
            shared[j] = grad * to_r
            shared[size + j] = grad * to_z
            shared[2 * size + j] = grad * to_m
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            total = grad_hidden[t, b, i] + gates[1, t, b, i] * grad_hidden[t + 1, b, i]
            for k in range(3 * size):
                total += weight_hh[k, i] * shared[k]
            grad_hidden[t, b, i] = total
        cuda.syncthreads()


@cuda.jit
def rnn_gate_kernel(hidden, grad_hidden, grad_sum):
    """Compute the gradients at the sums inside tanh, one per thread."""
    q = cuda.grid(1)
    batch, size = grad_sum.shape[1], grad_sum.shape[2]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < grad_sum.shape[0]:
        h = hidden[t + 1, b, i]
        grad_sum[t, b, i] = grad_hidden[t + 1, b, i] * (grad_sum.dtype.type(1) - h * h)


@cuda.jit
def gru_gate_kernel(hidden, gates, grad_hidden, from_x, from_h):
    """Compute the gradients at the sums of the gates, those of one hidden unit per thread."""
    q = cuda.grid(1)
    batch, size = gates.shape[2], gates.shape[3]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < gates.shape[1]:
        grad = grad_hidden[t + 1, b, i]
        to_r, to_z, to_n, to_m = _slopes(hidden, gates, t, b, i)
        from_x[t, b, i] = grad * to_r
        from_h[t, b, i] = grad * to_r
        from_x[t, b, size + i] = grad * to_z
        from_h[t, b, size + i] = grad * to_z
        from_x[t, b, 2 * size + i] = grad * to_n
        from_h[t, b, 2 * size + i] = grad * to_m


def rnn_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 9 over time; see `bppsa_nb.cells.rnn.forward`."""
    hidden = _start(len(x), h0)
    if len(x):
        products = _input_products(x, weight_ih, bias_ih + bias_hh)
        _launch_in_time(rnn_forward_kernel, hidden, 1, products, _transposed(weight_hh), hidden)
    return hidden.copy_to_host()


def gru_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 10 over time; see `bppsa_nb.cells.gru.forward`."""
    hidden = _start(len(x), h0)
    gates = np.empty((4, len(x), *h0.shape), h0.dtype)
    if len(x):
        products, on_device = _input_products(x, weight_ih, bias_ih), cuda.device_array_like(gates)
        bias_hh = cuda.to_device(bias_hh)
        _launch_in_time(gru_forward_kernel, hidden, 1, products, _transposed(weight_hh), bias_hh, hidden, on_device)
        gates = on_device.copy_to_host()
    return hidden.copy_to_host(), gates


def rnn_sweep(weight_hh, hidden, grad_output, local_grads=None):
    """Back-propagate through time; see `bppsa_nb.cells.rnn.sweep`."""
    return _sweep(rnn_sweep_kernel, 1, (weight_hh, hidden), grad_output, local_grads)


def gru_sweep(weight_hh, hidden, gates, grad_output, local_grads=None):
    """Back-propagate through time; see `bppsa_nb.cells.gru.sweep`."""
    return _sweep(gru_sweep_kernel, 3, (weight_hh, hidden, gates), grad_output, local_grads)


def _sweep(kernel, rows, saved, grad_output, local_grads):
    hidden = saved[1]
    grad_hidden = np.zeros_like(hidden) if local_grads is None else local_grads.copy()
    grad_hidden[-1] += grad_output
    if len(hidden) == 1:
        return grad_hidden
    on_device = cuda.to_device(grad_hidden)
    _launch_in_time(kernel, on_device, rows, *map(cuda.to_device, saved), on_device)
    return on_device.copy_to_host()


def rnn_scan(weight_hh, hidden, grad_output, local_grads, levels):
    """Scan transposed Jacobians that are assembled on the device and never leave it.

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    grad_output : np.ndarray [shape=(B, H)]
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
        Loss terms that enter at every hidden state.
    levels : int or None
        k of the truncated scan; None for Blelloch's.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
        Gradients at all hidden states.

    Raises
    ------
    bppsa_nb.operator.RangeLost
        If a product could not keep its entries in range.
    """
    return _scan(rnn_prepare, (weight_hh, hidden), grad_output, local_grads, levels)


def gru_scan(weight_hh, hidden, gates, grad_output, local_grads, levels):
    """Scan transposed Jacobians that are assembled on the device and never leave it.

    `gates` are those of `gru_forward` [shape=(4, T, B, H)]; for the rest see `rnn_scan`.
    """
    return _scan(gru_prepare, (weight_hh, hidden, gates), grad_output, local_grads, levels)


def _scan(prepare, saved, grad_output, local_grads, levels):
    hidden = saved[1]
    T, batch, size = len(hidden) - 1, hidden.shape[1], hidden.shape[2]
    if local_grads is not None:
        grad_output = grad_output + local_grads[T]
    if T == 0:
        return grad_output[None].copy()
    mats, exps, vecs, lost = workspace(T, batch, batch, size, hidden.dtype)
    if local_grads is not None:
        vecs[1 : T + 1].copy_to_device(local_grads[:T])
    vecs[T + 1].copy_to_device(grad_output)
    launch_prepare(prepare, tuple(map(cuda.to_device, saved)), mats, exps, lost)
    launch_scan(mats, exps, vecs, local_grads is not None, levels, lost)
    return collect(vecs, lost)


def rnn_gate_gradients(hidden, grad_hidden):
    """Compute the gradients at the sums inside tanh; see `bppsa_nb.cells.rnn.gate_gradients`."""
    grad_sum = cuda.device_array_like(hidden[1:])
    if grad_sum.size:
        rnn_gate_kernel[_blocks(grad_sum.size), _THREADS](cuda.to_device(hidden), cuda.to_device(grad_hidden), grad_sum)
    return grad_sum, grad_sum


def gru_gate_gradients(hidden, gates, grad_hidden):
    """Compute the gradients at the sums of the gates; see `bppsa_nb.cells.gru.gate_gradients`."""
    _, steps, batch, size = gates.shape
    from_x, from_h = (cuda.device_array((steps, batch, 3 * size), gates.dtype) for _ in range(2))
    if steps:
        gru_gate_kernel[_blocks(steps * batch * size), _THREADS](
            *map(cuda.to_device, (hidden, gates, grad_hidden)), from_x, from_h
        )
    return from_x, from_h


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; see `bppsa_nb.cells.recurrent.parameter_gradients`."""
    ones = cuda.to_device(np.ones((x.shape[0] * x.shape[1], 1), x.dtype))
    return {
        "weight_ih": _outer_products(_rows(from_x), _rows(cuda.to_device(x))),
        "weight_hh": _outer_products(_rows(from_h), _rows(cuda.to_device(hidden[:-1]))),
        "bias_ih": _outer_products(_rows(from_x), ones)[:, 0].copy(),
        "bias_hh": _outer_products(_rows(from_h), ones)[:, 0].copy(),
    }


def input_gradients(weight_ih, from_x):
    """Compute the gradients at a layer's input; see `bppsa_nb.cells.recurrent.input_gradients`."""
    steps, batch, _ = from_x.shape
    shape = (steps, batch, weight_ih.shape[1])
    if steps == 0:
        return np.zeros(shape, weight_ih.dtype)
    none = cuda.to_device(np.zeros(shape[2], weight_ih.dtype))
    return _row_products(_rows(from_x), cuda.to_device(weight_ih), none).copy_to_host().reshape(shape)


def _start(steps, h0):
    hidden = cuda.device_array((steps + 1, *h0.shape), h0.dtype)
    hidden[0].copy_to_device(h0)
    return hidden


def _launch_in_time(kernel, hidden, rows, *arguments):
    """Launch a time loop over arrays like `hidden`, with `rows` rows of H numbers in shared memory."""
    _, batch, size = hidden.shape
    shared = rows * size * hidden.dtype.itemsize
    if shared > SHARED_BYTES:
        raise ValueError(
            f"hidden_size: {rows} rows of H = {size} numbers take {shared} bytes, but a thread block has "
            f"{SHARED_BYTES} bytes of shared memory; use backend='cpu'"
        )
    kernel[batch, min(size, MAX_THREADS), 0, shared](*arguments)


def _input_products(x, weight_ih, bias):
    steps, batch, _ = x.shape
    products = _row_products(_rows(cuda.to_device(x)), _transposed(weight_ih), cuda.to_device(bias))
    return products.reshape(steps, batch, len(weight_ih))


def _row_products(rows, matrix, bias):
    out = cuda.device_array((rows.shape[0], matrix.shape[1]), rows.dtype)
    row_products[_blocks(out.size), _THREADS](rows, matrix, bias, out)
    return out


def _outer_products(left, right):
    shape = (left.shape[1], right.shape[1])
    if left.shape[0] == 0:
        return np.zeros(shape, left.dtype)
    parts = cuda.device_array((min(_PARTS, left.shape[0]), *shape), left.dtype)
    outer_products[len(parts), _THREADS](left, right, parts)
    out = cuda.device_array(shape, left.dtype)
    sum_parts[_blocks(out.size), _THREADS](parts, out)
    return out.copy_to_host()


def _rows(array):
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])


def _transposed(weight):
    return cuda.to_device(np.ascontiguousarray(weight.T))


def _blocks(count):
    return -(-count // _THREADS)
