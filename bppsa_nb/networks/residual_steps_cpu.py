"""Steps of a residual network compiled for CPUs; counterparts of `bppsa_nb.networks.residual_steps`.

A dense layer is a convolution, too: of an image with one row, whose pixels are the samples of a group and whose kernel
is a single pixel. So one loop serves both: it keeps the state of an image at hand, row by row with all channels of a
row together, and multiplies weights with it tile by tile (`machine.tiles`), as views that are one pixel apart for each
column of the kernel. Every number is the same sum in the same order, however images and blocks are shared out.
Numbers below the smallest normal one count as zero.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided

import bppsa_nb.machine.elementary  # noqa: F401  what is in `pointwise`, for compiled code
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.intrinsics import flush, restore
from bppsa_nb.machine.tiles import multiply, multiply_T, product
from bppsa_nb.machine.workers import CHUNKS, THREADS, parallel_for
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.networks.residual_steps import ADJOINT, sweeps

# These NumPy serves.
host, take, put, difference, norms = steps.host, steps.take, steps.put, steps.difference, steps.norms

_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use
_COPY, _ADD, _TIMES = range(3)
result = inline(steps.result)
_LINE = 64  # bytes of an image's row at least: no vector register is longer; of two such, where samples are the pixels


def load(array):
    """Return the array as sweeps take it: contiguous and writable."""
    return np.require(array, requirements=("C", "W"))


def _sweep(points, source, blocks, weights, biases, slopes, kind):
    """Go through blocks; see `sweeps`."""
    arrivals = np.empty((len(blocks[0]) - 1, *points.shape[1:]), points.dtype)
    none = np.empty(0, points.dtype)
    source, biases, slopes = (none if array is None else array for array in (source, biases, slopes))
    images = _images(points[0], weights, 2 * _LINE // points.itemsize)
    # A block's images go together, for they share the weights; apart, if there are too few blocks for all cores.
    parts = min(images[0], -(-CHUNKS * THREADS // len(arrivals)))
    flat = tuple(array.reshape(-1) for array in (points, source, arrivals, weights, biases, slopes))
    work = len(blocks[1]) * arrivals[0].size * weights[0, 0].size
    arguments = flat, blocks, kind, images, parts
    parallel_for(_steps, len(arrivals) * parts, product(points.dtype), *arguments, parallel=work > _THRESHOLD)
    return arrivals


forward_sweep, adjoint_sweep, slopes = sweeps(_sweep, load)


def _images(state, weights, samples):
    """Describe a state as images, those of dense layers of so many samples each.

    Images are told by their number, their channels, rows and columns, and the columns of the last one; by how far
    apart images, channels, rows and columns are in memory; and by the size of the kernel that slides over them.
    """
    if weights.ndim == 3:
        (batch, size), width = state.shape, min(len(state), samples)
        count = -(-batch // width)
        return (count, size, 1, width, batch - (count - 1) * width, width * size, 1, size, size, 1)
    count, channels, height, width = state.shape
    area = height * width
    return (count, channels, height, width, width, channels * area, area, width, 1, weights.shape[-1])


@compiled
def _steps(product, arrays, blocks, kind, images, parts, first, last):
    """Go through blocks: piece ``block * parts + part`` is one part of the images in one block."""
    points, source, arrivals, weights, biases, slopes = arrays
    bounds, layers, sizes = blocks
    count, channels, height, width, kernel = images[0], images[1], images[2], images[3], images[9]
    many, columns, pad = (count + parts - 1) // parts, max(width, _LINE // points.itemsize), kernel // 2
    numbers, size = channels * columns, arrivals.size // (len(bounds) - 1)
    states = np.zeros((many, height, channels, columns), points.dtype)
    padded = np.zeros((height + 2 * pad, channels, columns + 2 * pad), points.dtype)
    sums, added = np.empty((channels, columns), points.dtype), np.zeros((channels, columns), points.dtype)
    turned = np.zeros(channels * channels * kernel * kernel if kernel > 1 else 1, points.dtype)
    before = flush()
    for piece in range(first, last):
        block, part = piece // parts, piece % parts
        begin, end = count * part // parts, count * (part + 1) // parts
        for image in range(begin, end):
            here = _image(points, bounds[block] * size, image, images)
            _put(_COPY, here, states[image - begin])
        for k in range(bounds[block], bounds[block + 1]):
            layer = layers[k]
            rows = _rows(weights, layer, channels, kernel, kind == ADJOINT, turned)
            if biases.size:
                for c in range(channels):
                    added[c] = biases[layer * channels + c]
            for image in range(begin, end):
                state, seen = states[image - begin], padded
                if kind == ADJOINT:
                    factors = _image(slopes, layer * size, image, images)
                    middle = padded[pad : pad + height, :, pad : pad + factors.shape[2]]
                    _put(_COPY, factors, middle)
                    _put(_TIMES, state[:, :, : middle.shape[2]], middle)
                elif kernel == 1:
                    seen = state
                else:
                    _put(_COPY, state[:, :, :width], padded[pad : pad + height, :, pad:])
                for y in range(height):
                    at = _seen(seen, y, kernel, columns)
                    multiply(product, rows, at, sums, (at.shape[0], channels, at.shape[1]), (0, 0, 0), 0)
                    _update(state[y].reshape(numbers), sums.reshape(numbers), added.reshape(numbers), sizes[k], kind)
                if source.size:
                    _put(_ADD, _image(source, k * size, image, images), state)
                if k + 1 == bounds[block + 1]:
                    there = _image(arrivals, block * size, image, images)
                else:
                    there = _image(points, (k + 1) * size, image, images)
                _put(_COPY, state[:, :, : there.shape[2]], there)
    restore(before)


@compiled
def _image(flat, start, image, images):
    """Return a view of one image of a state [shape=(height, channels, width)]; the state begins at `start`."""
    count, channels, height, width, width_of_last, to_image, to_channel, to_row, to_column, _ = images
    shape = (height, channels, width_of_last if image == count - 1 else width)
    item = flat.itemsize
    return as_strided(flat[start + image * to_image :], shape, (to_row * item, to_channel * item, to_column * item))


@compiled
def _put(how, image, out):
    """Copy an image, or add it to what is there, or multiply that by it."""
    for y in range(image.shape[0]):
        for c in range(image.shape[1]):
            for x in range(image.shape[2]):
                value, there = image[y, c, x], out[y, c, x]
                out[y, c, x] = value if how == _COPY else there + value if how == _ADD else there * value


@compiled
def _fetch(matrix, sink):
    """Read a number of every cache line in order, at which memory is faster than at the order of a product."""
    for i in range(0, matrix.size, _LINE // matrix.itemsize):
        sink[0] += matrix[i]  # what goes nowhere, the compiler would not read


@compiled
def _rows(weights, layer, channels, kernel, transposed, turned):
    """Return a layer's weights as rows that multiply what a kernel's columns see [shape=(k, channels, k channels)]."""
    size, item = channels * channels * kernel * kernel, weights.itemsize
    matrix = weights[layer * size : (layer + 1) * size]
    if kernel == 1:  # a matrix, which stays where it is
        _fetch(matrix, turned)
        down, across = (1, channels) if transposed else (channels, 1)
        return as_strided(matrix, (1, channels, channels), (size * item, down * item, across * item))
    for a in range(channels):
        for b in range(channels):
            for i in range(kernel):
                for j in range(kernel):
                    weight = matrix[((a * channels + b) * kernel + i) * kernel + j]
                    if transposed:
                        o, c, di, dj = b, a, kernel - 1 - i, kernel - 1 - j
                    else:
                        o, c, di, dj = a, b, i, j
                    turned[((dj * channels + o) * kernel + di) * channels + c] = weight
    row = kernel * channels * item
    return as_strided(turned, (kernel, channels, kernel * channels), (channels * row, row, item))


@compiled
def _seen(padded, y, kernel, columns):
    """Return what the kernel's columns see from row y of an image [shape=(k, k channels, columns)]."""
    channels, across, item = padded.shape[1], padded.shape[2], padded.itemsize
    return as_strided(padded[y:], (kernel, kernel * channels, columns), (item, across * item, item))


@compiled
def _update(u, sums, added, size, kind):
    zero, one = u.dtype.type(0), u.dtype.type(1)
    for x in range(u.size):
        u[x] = result(u[x], sums[x] + added[x], size, kind, zero, one)


def parameter_gradients(states, gradients, weights, biases, h, activation):
    """Compute the gradients of all layers' parameters; see `bppsa_nb.networks.residual_steps.parameter_gradients`."""
    states, gradients, weights, biases = map(load, (states, gradients, weights, biases))
    grad_preacts = slopes(states, weights, biases, activation)
    grad_weights, grad_biases = np.empty(weights.shape, weights.dtype), np.zeros(biases.shape, biases.dtype)
    images = _images(states[0], weights, len(states[0]))
    flat = tuple(array.reshape(-1) for array in (states, gradients, grad_preacts, grad_weights, grad_biases))
    work, h = states.size * weights[0, 0].size, states.dtype.type(h)
    parallel_for(_add_up, len(weights), product(weights.dtype), flat, h, images, parallel=work > _THRESHOLD)
    return grad_weights, grad_biases


@compiled
def _add_up(product, arrays, h, images, first, last):
    """Multiply gradients at the sums with what a row of the kernel saw, pixel by pixel and image by image."""
    states, gradients, slopes, grad_weights, grad_biases = arrays
    count, channels, height, width, kernel = images[0], images[1], images[2], images[3], images[9]
    layers, pad, row, item = grad_biases.size // channels, kernel // 2, kernel * channels, states.itemsize
    size, weights, line = slopes.size // layers, row * row, (width + 2 * pad) * channels * item
    grad_preacts, slope = np.empty((2, height, width, channels), states.dtype)
    padded = np.zeros((height + 2 * pad, width + 2 * pad, channels), states.dtype)
    found, total = np.empty((channels, row), states.dtype), np.empty((kernel, channels, row), states.dtype)
    whole = kernel == 1 and count == 1  # a product is all there is to add up
    before = flush()
    for layer in range(first, last):
        bias = grad_biases[layer * channels : (layer + 1) * channels]
        matrix = grad_weights[layer * weights : (layer + 1) * weights]
        if whole:
            found = matrix.reshape(channels, channels)
        else:
            total[:] = 0
        for image in range(count):
            _put(_COPY, _image(states, layer * size, image, images).transpose(0, 2, 1), padded[pad:, pad:])
            _put(_COPY, _image(slopes, layer * size, image, images).transpose(0, 2, 1), slope)
            _put(_COPY, _image(gradients, (layer + 1) * size, image, images).transpose(0, 2, 1), grad_preacts)
            for y in range(height):
                for x in range(width):
                    sums, factors = grad_preacts[y, x], slope[y, x]
                    for c in range(channels):
                        sums[c] *= h * factors[c]
                    for c in range(channels):
                        bias[c] += sums[c]
            for i in range(kernel):
                seen = as_strided(padded[i:], (height, width, row), (line, channels * item, item))
                multiply_T(product, grad_preacts, seen, found, (height, channels, width), (0, 0, 0), 0)
                if not whole:
                    for c in range(channels):
                        for j in range(row):
                            total[i, c, j] += found[c, j]
        if not whole:
            for o in range(channels):
                for c in range(channels):
                    for i in range(kernel):
                        for j in range(kernel):
                            matrix[((o * channels + c) * kernel + i) * kernel + j] = total[i, o, j * channels + c]
    restore(before)
