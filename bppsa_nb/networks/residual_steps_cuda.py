"""Steps of a residual network on a GPU; counterparts of `bppsa_nb.networks.residual_steps`, on device arrays.

A sweep is one launch: a thread block for every block of layers, and for every few samples of a dense network or every
image of a convolutional one. What it finds goes to memory at every step, for the next one to read or for the coarser
level to come.
"""

import math

import numpy as np

from bppsa_nb.machine.arrays_cuda import over
from bppsa_nb.machine.cuda import inline, reduced, shared_bytes
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.networks.residual_steps import ADJOINT, RELU, TANH, TANH_SLOPE, compiled_sweeps

_THREADS = 128
_TILE = 16  # columns of a dense layer's weights that stand in shared memory at a time
_SAMPLES = 4  # that share them: each has a sum in the kernel


@inline
def _result(u, total, size, kind, zero, one):
    """Return what a step makes of a number of the state and of the sum for it, bias included."""
    if kind == ADJOINT:
        return u + size * total
    if kind == TANH:
        return u + size * math.tanh(total)
    if kind == RELU:
        return u + size * (zero if total <= zero else total)  # NaN passes through
    if kind == TANH_SLOPE:
        t = math.tanh(total)
        return one - t * t
    return one if total > zero else zero


@cuda.jit
def dense_sweep(points, source, with_source, arrivals, bounds, layers, sizes, weights, biases, slopes, kind):
    """Go through a block of dense layers with a few samples; one output at a time per thread.

    Arrays are those of `bppsa_nb.networks.residual_steps.forward_sweep`; biases [shape=(N q,)], slopes for the adjoint.
    """
    # The states of the samples, what weights multiply, and a tile of those, each row one number longer: no bank of
    # the memory has two numbers of a column.
    shared = cuda.shared.array(0, points.dtype)
    zero, one = points.dtype.type(0), points.dtype.type(1)
    batch, size, line = points.shape[1], points.shape[2], _TILE + 1
    groups = (batch + _SAMPLES - 1) // _SAMPLES
    block, first = cuda.blockIdx.x // groups, cuda.blockIdx.x % groups * _SAMPLES
    samples = min(_SAMPLES, batch - first)
    tid, threads, factors, tile = cuda.threadIdx.x, cuda.blockDim.x, _SAMPLES * size, 2 * _SAMPLES * size
    for q in range(tid, _SAMPLES * size, threads):
        shared[q] = points[bounds[block], first + q // size, q % size] if q < samples * size else zero
    for k in range(bounds[block], bounds[block + 1]):
        layer, last = layers[k], k + 1 == bounds[block + 1]
        cuda.syncthreads()
        for q in range(tid, _SAMPLES * size, threads):
            factor = shared[q]
            if kind == ADJOINT and q < samples * size:
                factor *= slopes[layer, first + q // size, q % size]
            shared[factors + q] = factor
        for top in range(0, size, threads):
            i = top + tid
            total_0, total_1, total_2, total_3 = zero, zero, zero, zero
            for left in range(0, size, _TILE):
                cuda.syncthreads()
                for q in range(tid, threads * _TILE, threads):  # threads side by side read numbers side by side
                    row = q % threads if kind == ADJOINT else q // _TILE
                    column = q // threads if kind == ADJOINT else q % _TILE
                    if top + row < size and left + column < size:
                        if kind == ADJOINT:
                            weight = weights[layer, left + column, top + row]
                        else:
                            weight = weights[layer, top + row, left + column]
                        shared[tile + row * line + column] = weight
                cuda.syncthreads()
                if i < size:
                    for column in range(min(_TILE, size - left)):
                        weight, q = shared[tile + tid * line + column], factors + left + column
                        total_0 += weight * shared[q]
                        total_1 += weight * shared[q + size]
                        total_2 += weight * shared[q + 2 * size]
                        total_3 += weight * shared[q + 3 * size]
            if i < size:
                bias = zero if kind == ADJOINT else biases[layer * size + i]
                for s in range(samples):
                    total = total_3  # by statements: for a chain of choices, numba-cuda-mlir keeps the sums in memory
                    if s == 0:
                        total = total_0
                    if s == 1:
                        total = total_1
                    if s == 2:
                        total = total_2
                    u = _result(shared[s * size + i], total + bias, sizes[k], kind, zero, one)
                    if with_source:
                        u += source[k, first + s, i]
                    shared[s * size + i] = u
                    if last:
                        arrivals[block, first + s, i] = u
                    else:
                        points[k + 1, first + s, i] = u


@cuda.jit
def convolution_sweep(points, source, with_source, arrivals, bounds, layers, sizes, weights, biases, slopes, kind):
    """Go through a block of convolutions with one image, as `dense_sweep`; one pixel of a channel per thread."""
    zero, one = points.dtype.type(0), points.dtype.type(1)
    _, batch, channels, height, width = points.shape
    kernel, area = weights.shape[4], height * width
    pad = kernel // 2
    block, b = cuda.blockIdx.x // batch, cuda.blockIdx.x % batch
    for k in range(bounds[block], bounds[block + 1]):
        layer, last = layers[k], k + 1 == bounds[block + 1]
        for q in range(cuda.threadIdx.x, channels * area, cuda.blockDim.x):
            o, y, x = q // area, q % area // width, q % width
            total = zero if kind == ADJOINT else biases[layer * channels + o]
            for c in range(channels):
                for i in range(max(0, pad - y), min(kernel, height + pad - y)):
                    for j in range(max(0, pad - x), min(kernel, width + pad - x)):
                        row, column = y + i - pad, x + j - pad
                        factor = points[k, b, c, row, column]
                        if kind == ADJOINT:
                            factor *= slopes[layer, b, c, row, column]
                            total += weights[layer, c, o, kernel - 1 - i, kernel - 1 - j] * factor
                        else:
                            total += weights[layer, o, c, i, j] * factor
            u = _result(points[k, b, o, y, x], total, sizes[k], kind, zero, one)
            if with_source:
                u += source[k, b, o, y, x]
            if last:
                arrivals[block, b, o, y, x] = u
            else:
                points[k + 1, b, o, y, x] = u
        cuda.syncthreads()


@cuda.jit
def grad_preacts(slopes, gradients, h):
    """Turn slopes into gradients at the sums, in place, one number per thread; `gradients` has one more state."""
    q = cuda.grid(1)
    if q < slopes.size:
        slopes[q] *= h * gradients[gradients.size - slopes.size + q]


@cuda.jit
def weight_gradients(states, at, grads):
    """Sum up the gradient of a weight over images and pixels, one weight per thread.

    States and gradients at the sums are images [shape=(..., batch, channels, height, width)]; so are those of dense
    layers, of one pixel.
    """
    q = cuda.grid(1)
    layers, batch, channels, height, width = at.shape
    kernel = grads.shape[4]
    pad = kernel // 2
    if q < grads.size:
        j, i, c = q % kernel, q // kernel % kernel, q // (kernel * kernel) % channels
        o, layer = q // (kernel * kernel * channels) % channels, q // (kernel * kernel * channels * channels)
        total = states.dtype.type(0)
        for b in range(batch):
            for y in range(max(0, pad - i), min(height, height + pad - i)):
                for x in range(max(0, pad - j), min(width, width + pad - j)):
                    total += at[layer, b, o, y, x] * states[layer, b, c, y + i - pad, x + j - pad]
        grads[layer, o, c, i, j] = total


@cuda.jit
def bias_gradients(at, grads):
    """Sum up the gradient of a bias over images and pixels, one per thread; arguments as for `weight_gradients`."""
    q = cuda.grid(1)
    layers, batch, channels, height, width = at.shape
    if q < layers * channels:
        total = at.dtype.type(0)
        for b in range(batch):
            for y in range(height):
                for x in range(width):
                    total += at[q // channels, b, q % channels, y, x]
        grads[q // channels, q % channels] = total


@cuda.jit
def take_points(points, index, out):
    """Copy points, one number per thread; points and those below are [shape=(points, numbers)]."""
    q = cuda.grid(1)
    k, i = q // out.shape[1], q % out.shape[1]
    if k < out.shape[0]:
        out[k, i] = points[index[k], i]


@cuda.jit
def put_points(points, index, values):
    """Write values to points, one number per thread."""
    q = cuda.grid(1)
    k, i = q // values.shape[1], q % values.shape[1]
    if k < values.shape[0]:
        points[index[k], i] = values[k, i]


@cuda.jit
def subtract(a, b, out):
    """Compute a - b, one number per thread."""
    q = cuda.grid(1)
    k, i = q // out.shape[1], q % out.shape[1]
    if k < out.shape[0]:
        out[k, i] = a[k, i] - b[k, i]


@cuda.jit
def square_sums(a, points, index, largest, sums):
    """Find max |r| and the sum of (r / max |r|)² for every ``r = a[k] - points[index[k]]``, one per block."""
    shared = cuda.shared.array(0, a.dtype)
    zero, one = a.dtype.type(0), a.dtype.type(1)
    k, tid, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    found = zero
    for i in range(tid, a.shape[1], threads):
        found = max(found, abs(a[k, i] - points[index[k], i]))
    shared[tid] = found
    peak = reduced(shared, tid, threads, False)
    scale = peak if zero < peak < a.dtype.type(math.inf) else one
    cuda.syncthreads()  # until all have read it
    found = zero
    for i in range(tid, a.shape[1], threads):
        r = (a[k, i] - points[index[k], i]) / scale
        found += r * r
    shared[tid] = found
    total = reduced(shared, tid, threads, True)
    if tid == 0:
        largest[k], sums[k] = scale, total


def _sweep(points, source, blocks, weights, biases, slopes, kind):
    bounds, _, sizes = blocks
    count, batch = len(bounds) - 1, points.shape[1]
    arrivals = cuda.device_array((count, *points.shape[1:]), points.dtype)
    with_source = source is not None
    # What a kernel does not read is still an array.
    source, slopes = (points if array is None else array for array in (source, slopes))
    biases = sizes if biases is None else biases.reshape(biases.size)
    arguments = points, source, with_source, arrivals, *blocks, weights, biases, slopes, kind
    if points.ndim == 3:
        threads = min(_THREADS, points.shape[2])
        dense_sweep[count * -(-batch // _SAMPLES), threads, 0, _shared_bytes(points, threads)](*arguments)
    else:
        convolution_sweep[count * batch, min(_THREADS, points[0, 0].size)](*arguments)
    return arrivals


def _shared_bytes(points, threads):
    """Return how many bytes of shared memory a block of `dense_sweep` needs, or raise ValueError if there are fewer."""
    size = points.shape[2]
    numbers = 2 * _SAMPLES * size + threads * (_TILE + 1)
    return shared_bytes(numbers, points.dtype.itemsize, f"weights: layers of q = {size}")


def parameter_gradients(states, gradients, weights, biases, h, activation):
    """Compute the gradients of all layers' parameters, from the host and back there; see the NumPy form."""
    states, gradients, weights, biases = map(load, (states, gradients, weights, biases))
    at = slopes(states, weights, biases, activation)
    flat = at.reshape(at.size), gradients.reshape(gradients.size)
    over(grad_preacts, at, threads=_THREADS)(*flat, states.dtype.type(h))
    grad_weights, grad_biases = (cuda.device_array(array.shape, array.dtype) for array in (weights, biases))
    pixel = (1, 1) if weights.ndim == 3 else ()
    states, at, grads = (array.reshape(*array.shape, *pixel) for array in (states, at, grad_weights))
    over(weight_gradients, grads, threads=_THREADS)(states, at, grads)
    over(bias_gradients, grad_biases, threads=_THREADS)(at, grad_biases)
    return host(grad_weights), host(grad_biases)


def load(array):
    """Return a copy on the device."""
    return cuda.to_device(np.ascontiguousarray(array))


def host(array):
    """Return a NumPy array of what is on the device."""
    return array.copy_to_host()


forward_sweep, adjoint_sweep, slopes = compiled_sweeps(_sweep, load)


def take(points, index):
    """Return a copy of some points."""
    out = cuda.device_array((len(index), *points.shape[1:]), points.dtype)
    over(take_points, out, threads=_THREADS)(_rows(points), index, _rows(out))
    return out


def put(points, index, values):
    """Write values to some points."""
    over(put_points, values, threads=_THREADS)(_rows(points), index, _rows(values))


def difference(a, b):
    """Return a - b."""
    out = cuda.device_array(a.shape, a.dtype)
    over(subtract, out, threads=_THREADS)(_rows(a), _rows(b), _rows(out))
    return out


def norms(a, points, index):
    """Compute ||a_k - points[index_k]|| for every k; no square leaves its range."""
    largest, sums = (cuda.device_array(len(a), a.dtype) for _ in range(2))
    square_sums[len(a), _THREADS, 0, _THREADS * a.dtype.itemsize](_rows(a), _rows(points), index, largest, sums)
    return host(largest).astype(np.float64) * np.sqrt(host(sums).astype(np.float64))


def _rows(array):
    return array.reshape(len(array), array.size // len(array))
