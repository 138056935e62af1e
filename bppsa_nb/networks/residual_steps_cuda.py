"""Steps of a residual network on a GPU; counterparts of `bppsa_nb.networks.residual_steps`, on device arrays.

A sweep is one launch: a thread block for every block of layers and every sample. What it finds goes to memory at every
step, for the next one to read or for the coarser level to come. A dense layer is a convolution of one pixel.
"""

import math

import numpy as np

from bppsa_nb.machine.arrays_cuda import line, over
from bppsa_nb.machine.cuda import inline, reduced
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.machine.items_cuda import host
from bppsa_nb.machine.pointwise import tanh, where, with_own
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.networks.residual_steps import ADJOINT, sweeps

_THREADS = 128
_OWN = {tanh: inline(lambda x: math.tanh(x)), where: inline(lambda condition, x, y: x if condition else y)}
result = inline(with_own(steps.result, _OWN))


@cuda.jit
def sweep_layers(points, source, with_source, arrivals, bounds, layers, sizes, weights, biases, slopes, kind):
    """Go through a block of layers with one sample; one pixel of a channel per thread.

    Arrays are those of `bppsa_nb.networks.residual_steps.forward_sweep`; biases [shape=(N C,)], slopes for the adjoint.
    """
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
            u = result(points[k, b, o, y, x], total, sizes[k], kind, zero, one)
            if with_source:
                u += source[k, b, o, y, x]
            if last:
                arrivals[block, b, o, y, x] = u
            else:
                points[k + 1, b, o, y, x] = u
        cuda.syncthreads()


@cuda.jit
def add_up_gradients(states, gradients, slopes, h, grad_weights, grad_biases):
    """Sum up the gradient of a parameter over images and pixels, one parameter per thread: biases after weights."""
    q, w = cuda.grid(1), grad_weights.size
    _, batch, channels, height, width = slopes.shape
    kernel = grad_weights.shape[4]
    pad, area = kernel // 2, kernel * kernel
    if q < w + grad_biases.size:
        total, of_bias = states.dtype.type(0), q >= w
        # A bias is a weight of what is 1 at every pixel.
        place = (q - w) * channels * area + pad * kernel + pad if of_bias else q
        j, i, c = place % kernel, place // kernel % kernel, place // area % channels
        o, layer = place // (area * channels) % channels, place // (area * channels * channels)
        for b in range(batch):
            for y in range(max(0, pad - i), min(height, height + pad - i)):
                for x in range(max(0, pad - j), min(width, width + pad - j)):
                    at = h * slopes[layer, b, o, y, x] * gradients[layer + 1, b, o, y, x]
                    total += at if of_bias else at * states[layer, b, c, y + i - pad, x + j - pad]
        if of_bias:
            grad_biases[layer, o] = total
        else:
            grad_weights[layer, o, c, i, j] = total


@cuda.jit
def copy_points(source, target, index, back):
    """Copy the points that `index` lists, or with `back` to those, one number per thread [shape=(points, numbers)]."""
    q = cuda.grid(1)
    k, i = q // source.shape[1], q % source.shape[1]
    if k < index.size:
        if back:
            target[index[k], i] = source[k, i]
        else:
            target[k, i] = source[index[k], i]


@cuda.jit
def subtract(a, b, out):
    """Compute a - b, one number per thread."""
    q = cuda.grid(1)
    if q < out.size:
        out[q] = a[q] - b[q]


@cuda.jit
def square_sums(values, largest, sums):
    """Find max |r| and the sum of (r / max |r|)² for every row r of the values, one per block."""
    shared = cuda.shared.array(0, values.dtype)
    zero, one = values.dtype.type(0), values.dtype.type(1)
    k, tid, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    found = zero
    for i in range(tid, values.shape[1], threads):
        found = max(found, abs(values[k, i]))
    shared[tid] = found
    peak = reduced(shared, tid, threads, False)
    scale = peak if zero < peak < values.dtype.type(math.inf) else one
    cuda.syncthreads()  # until all have read it
    found = zero
    for i in range(tid, values.shape[1], threads):
        r = values[k, i] / scale
        found += r * r
    shared[tid] = found
    total = reduced(shared, tid, threads, True)
    if tid == 0:
        largest[k], sums[k] = scale, total


def _images(*arrays):
    """View states or weights of dense layers as images of one pixel."""
    return [array.reshape(*array.shape, *[1] * (5 - array.ndim)) for array in arrays]


def _sweep(points, source, blocks, weights, biases, slopes, kind):
    bounds, _, sizes = blocks
    arrivals = cuda.device_array((len(bounds) - 1, *points.shape[1:]), points.dtype)
    with_source = source is not None
    # What a kernel does not read is still an array.
    source, slopes = (points if array is None else array for array in (source, slopes))
    biases = sizes if biases is None else biases.reshape(biases.size)
    states, source, ends, weights, slopes = _images(points, source, arrivals, weights, slopes)
    kernel = sweep_layers[len(arrivals) * points.shape[1], min(_THREADS, points[0, 0].size)]
    kernel(states, source, with_source, ends, *blocks, weights, biases, slopes, kind)
    return arrivals


def parameter_gradients(states, gradients, weights, biases, h, activation):
    """Compute the gradients of all layers' parameters, from the host and back there; see the NumPy form."""
    states, gradients, weights, biases = map(load, (states, gradients, weights, biases))
    arrays = _images(states, gradients, slopes(states, weights, biases, activation))
    grad_weights, grad_biases = (cuda.device_array(array.shape, array.dtype) for array in (weights, biases))
    blocks = -(-(weights.size + biases.size) // _THREADS)
    add_up_gradients[blocks, _THREADS](*arrays, states.dtype.type(h), *_images(grad_weights), grad_biases)
    return host(grad_weights), host(grad_biases)


def load(array):
    """Return a copy on the device."""
    return cuda.to_device(np.ascontiguousarray(array))


forward_sweep, adjoint_sweep, slopes = sweeps(_sweep, load)


def take(points, index):
    """Return a copy of some points."""
    out = cuda.device_array((len(index), *points.shape[1:]), points.dtype)
    over(copy_points, out, threads=_THREADS)(_rows(points), _rows(out), index, False)
    return out


def put(points, index, values):
    """Write values to some points."""
    over(copy_points, values, threads=_THREADS)(_rows(values), _rows(points), index, True)


def difference(a, b):
    """Return a - b."""
    out = cuda.device_array(a.shape, a.dtype)
    over(subtract, out, threads=_THREADS)(*map(line, (a, b, out)))
    return out


def norms(values):
    """Compute the norm of the values at every point; no square leaves its range."""
    largest, sums = (cuda.device_array(len(values), values.dtype) for _ in range(2))
    square_sums[len(values), _THREADS, 0, _THREADS * values.dtype.itemsize](_rows(values), largest, sums)
    return host(largest).astype(np.float64) * np.sqrt(host(sums).astype(np.float64))


def _rows(array):
    return array.reshape(len(array), array.size // len(array))
