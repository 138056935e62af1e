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
def _scatter(found, arrays, count):
    start = 0
    for array in arrays:
        copy(flat_view(found, start, array.size), array)
        start += array.size
    count[0] += 1


@_compile
def sgd(arrays, grads, found, settings, count):
    """Take a step of `SGD`."""
    lr, momentum = settings[0], settings[1]
    kinds, many, start, lost = len(found), found.shape[1], 0, 0
    for k in range(len(arrays) // kinds):
        before, n = arrays[k], arrays[k].size
        velocity, grad = arrays[len(arrays) - len(arrays) // kinds + k], flat_view(grads, start, n)
        params, moved = flat_view(found, start, n), flat_view(found, (kinds - 1) * many + start, n)
        for i in range(n):
            change = grad[i]
            if kinds > 1:
                change += velocity[i] * momentum
                moved[i] = change
            params[i] = before[i] - lr * change
            lost += not math.isfinite(params[i])
        start += n
    if not lost:
        _scatter(found, arrays, count)
    return lost == 0


@_compile
def adam(arrays, grads, found, settings, count):
    """Take a step of `Adam`."""
    from_old, new, old = settings[0] != 0, settings[1], settings[2]
    kept, squared, scale, eps, rate = settings[3], settings[4], settings[5], settings[6], settings[7]
    several, many, start, lost = len(arrays) // 3, found.shape[1], 0, 0
    for k in range(several):
        before, averages, squares = arrays[k], arrays[several + k], arrays[2 * several + k]
        n, grads_here = before.size, flat_view(grads, start, before.size)
        params, first = flat_view(found, start, n), flat_view(found, many + start, n)
        second = flat_view(found, 2 * many + start, n)
        for i in range(n):
            grad = grads_here[i]
            change = grad - averages[i]
            average = change * new + averages[i] if from_old else grad - change * old
            square = squares[i] * kept + squared * grad * grad
            param = before[i] - average * rate / (math.sqrt(square) / scale + eps)
            lost += not (math.isfinite(param) and math.isfinite(square))
            params[i], first[i], second[i] = param, average, square
        start += n
    if not lost:
        _scatter(found, arrays, count)
    return lost == 0
