"""Oracles of operators of convolutional networks: loops over Python floats, importing nothing of the package."""

import math

import numpy as np


def conv2d(x, weight, stride, padding, dilation):
    """Convolve one image (C_in, h, w) with filters (C_out, C_in, kh, kw); the last three arguments are pairs."""
    outputs, inputs, kernel_h, kernel_w = weight.shape
    _, height, width = x.shape
    out_h = (height + 2 * padding[0] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (width + 2 * padding[1] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    out = np.zeros((outputs, out_h, out_w))
    for o in range(outputs):
        for i in range(out_h):
            for j in range(out_w):
                total = 0.0
                for c in range(inputs):
                    for a in range(kernel_h):
                        for b in range(kernel_w):
                            y = i * stride[0] - padding[0] + a * dilation[0]
                            z = j * stride[1] - padding[1] + b * dilation[1]
                            if 0 <= y < height and 0 <= z < width:
                                total += float(weight[o, c, a, b]) * float(x[c, y, z])
                out[o, i, j] = total
    return out


def windows(x, kernel, stride):
    """List the windows of each channel of an image (C, h, w): dict from (c, i, j) to a list of numbers, row by row."""
    channels, height, width = x.shape
    found = {}
    for c in range(channels):
        for i in range((height - kernel[0]) // stride[0] + 1):
            for j in range((width - kernel[1]) // stride[1] + 1):
                rows = [x[c, i * stride[0] + a, j * stride[1] :] for a in range(kernel[0])]
                found[c, i, j] = [float(row[b]) for row in rows for b in range(kernel[1])]
    return found


def pool(x, kernel, stride, function):
    """Apply a function to every window of an image."""
    found = windows(x, kernel, stride)
    out = np.zeros(tuple(1 + max(place[axis] for place in found) for axis in range(3)))
    for place, values in found.items():
        out[place] = function(values)
    return out


def max_pool2d(x, kernel, stride):
    return pool(x, kernel, stride, max)


def avg_pool2d(x, kernel, stride):
    return pool(x, kernel, stride, lambda values: sum(values) / len(values))


def linear(x, weight):
    return np.array([sum(float(w) * float(v) for w, v in zip(row, x, strict=True)) for row in weight])


def elementwise(x, name):
    """Apply "relu", "tanh" or "sigmoid" to every entry."""
    functions = {"relu": lambda v: max(v, 0.0), "tanh": math.tanh, "sigmoid": lambda v: 1 / (1 + math.exp(-v))}
    return np.array([functions[name](float(v)) for v in x.reshape(-1)]).reshape(x.shape)


def jacobian_T(function, x, step):
    """Differentiate numerically, one input after the other: transposed Jacobian (inputs, outputs), in float64."""
    x = np.array(x, float)
    rows = []
    for i in range(x.size):
        moved = x.copy()
        moved.reshape(-1)[i] = x.reshape(-1)[i] + step
        above = function(moved).reshape(-1)
        moved.reshape(-1)[i] = x.reshape(-1)[i] - step
        below = function(moved).reshape(-1)
        rows.append([(float(a) - float(b)) / (2 * step) for a, b in zip(above, below, strict=True)])
    return np.array(rows)
