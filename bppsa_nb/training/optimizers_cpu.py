"""Optimizers' steps compiled for CPUs: all parameters in one call, which changes everything or nothing.

Operations have the order that they have in `bppsa_nb.training.optimizers`, and give the same bits: none is contracted.
"""

import math

from bppsa_nb.machine.compiling import inline, njit
from bppsa_nb.machine.views import copy, flat_view
from bppsa_nb.training.optimizers import Adam

_compile = njit(cache=True, error_model="numpy", nogil=True)

# `arrays` are all parameters, as rows of numbers, then every average of each of them; `found` [shape=(1 + averages, P)]
# is room for them side by side. `grads` [shape=(P,)] are in the order of the parameters, `settings` what `factors`
# returns of the optimizer, `count` [shape=(1,)] counts steps. A step that leaves the range of the dtype changes nothing
# and returns False.


def factors(optimizer):
    """Return what the next step multiplies by; of `Adam` first, which average weighs more (1: the old one)."""
    if not isinstance(optimizer, Adam):
        return [optimizer.lr, optimizer.momentum]
    (beta1, beta2), steps = optimizer.betas, optimizer.count.item() + 1
    second = [beta2, 1 - beta2, (1 - beta2**steps) ** 0.5]
    return [1 - beta1 < 0.5, 1 - beta1, beta1, *second, optimizer.eps, optimizer.lr / (1 - beta1**steps)]


@inline
def _gather(arrays, found):
    start = 0
    for array in arrays:
        copy(array, flat_view(found, start, array.size))
        start += array.size


@inline
def _scatter(found, arrays, count):
    start = 0
    for array in arrays:
        copy(flat_view(found, start, array.size), array)
        start += array.size
    count[0] += 1


@_compile
def sgd(arrays, grads, found, settings, count):
    """Take a step of `SGD`."""
    _gather(arrays, found)
    lr, momentum = settings[0], settings[1]
    moved, lost = len(found) > 1, 0
    params, velocity = found[0], found[len(found) - 1]
    for i in range(grads.size):
        grad = grads[i]
        if moved:
            grad += velocity[i] * momentum
            velocity[i] = grad
        params[i] -= lr * grad
        lost += not math.isfinite(params[i])
    if not lost:
        _scatter(found, arrays, count)
    return lost == 0


@_compile
def adam(arrays, grads, found, settings, count):
    """Take a step of `Adam`."""
    _gather(arrays, found)
    from_old, new, old = settings[0] != 0, settings[1], settings[2]
    kept, squared, scale, eps, rate = settings[3], settings[4], settings[5], settings[6], settings[7]
    params, averages, squares, lost = found[0], found[1], found[2], 0
    for i in range(grads.size):
        grad = grads[i]
        change = grad - averages[i]
        average = change * new + averages[i] if from_old else grad - change * old
        square = squares[i] * kept + squared * grad * grad
        found_here = params[i] - average * rate / (math.sqrt(square) / scale + eps)
        lost += not (math.isfinite(found_here) and math.isfinite(square))
        params[i], averages[i], squares[i] = found_here, average, square
    if not lost:
        _scatter(found, arrays, count)
    return lost == 0
