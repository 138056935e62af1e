"""Optimizers' steps compiled for CPUs: all parameters in one call, which changes everything or nothing.

Operations have the order that they have in `bppsa_nb.training.optimizers`, and give the same bits: none is contracted.
Bounds tell beforehand whether a step stays within the range of the dtype, so that it can write at once where it reads.
A step that may leave the range changes nothing and returns False; `bppsa_nb.training.optimizers` has the answer then.
"""

import math

import numpy as np

from bppsa_nb.machine.compiling import njit
from bppsa_nb.machine.views import pointer
from bppsa_nb.training.optimizers import Adam

_MOST = {np.dtype(kind): float(np.finfo(kind).max) / 8 for kind in (np.float32, np.float64)}
_compile = njit(cache=True, error_model="numpy", nogil=True)

# `arrays` are all parameters, as rows of numbers, then every average of each of them; `grads` [shape=(P,)] are in the
# order of the parameters, `settings` what `factors` returns of the optimizer; `count` [shape=(1,)] counts steps. All
# parameters are looked at, and then all written: by one loop, for two take the compiler twice as long.


def factors(optimizer, dtype):
    """Return what the next step multiplies by; first a bound of parameters, and one of what `lr` multiplies.

    For settings that are no plain numbers, or no good ones, bounds are 0, which nothing keeps to.
    """
    most, steps, betas = _MOST[dtype], optimizer.count.item() + 1, getattr(optimizer, "betas", ())
    settings = [getattr(optimizer, name) for name in ("lr", "momentum", "eps") if hasattr(optimizer, name)]
    plain = {*map(type, settings), *map(type, betas)} <= {float, int}
    if not plain or not 0 < steps < 2**62 or not 0 <= min(betas, default=0) <= max(betas, default=0) < 1:
        return np.zeros(10, dtype)
    if not isinstance(optimizer, Adam):
        lr, moving = float(dtype.type(optimizer.lr)), len(optimizer.state)
        return np.array([most, most / max(abs(lr), 1), moving, optimizer.momentum, lr], dtype)
    beta1, beta2 = betas
    eps, rate = (float(dtype.type(number)) for number in (optimizer.eps, optimizer.lr / (1 - beta1**steps)))
    bounds = most, most * min(eps, 1) / max(abs(rate), 1)
    first = 1 - beta1 < 0.5, 1 - beta1, beta1  # whether the old average weighs more
    second = beta2, 1 - beta2, (1 - beta2**steps) ** 0.5
    return np.array([*bounds, *first, *second, eps, rate], dtype)


@_compile
def sgd(arrays, grads, settings, count):
    """Take a step of `SGD`."""
    most, bound, moving, momentum, lr = settings[0], settings[1], settings[2] != 0, settings[3], settings[4]
    several = len(arrays) // 2 if moving else len(arrays)
    for writes in range(2):
        lost = start = 0
        for k in range(several):
            size, params, at = arrays[k].size, pointer(arrays[k], 0), pointer(grads, start)
            velocity = pointer(arrays[k + len(arrays) - several], 0)
            for i in range(size):
                change = at[i] + velocity[i] * momentum if moving else at[i]
                if writes:
                    if moving:
                        velocity[i] = change
                    params[i] -= lr * change
                else:
                    lost += not (abs(params[i]) < most and abs(change) < bound)
            start += size
        if lost:
            return False
    count[0] += 1
    return True


@_compile
def adam(arrays, grads, settings, count):
    """Take a step of `Adam`."""
    most, bound, scale, eps, rate = settings[0], settings[1], settings[7], settings[8], settings[9]
    from_old, new, old, kept, squared = settings[2] != 0, settings[3], settings[4], settings[5], settings[6]
    several = len(arrays) // 3
    for writes in range(2):
        lost = start = 0
        for k in range(several):
            size, params, at = arrays[k].size, pointer(arrays[k], 0), pointer(grads, start)
            averages, squares = pointer(arrays[several + k], 0), pointer(arrays[2 * several + k], 0)
            for i in range(size):
                change = at[i] - averages[i]
                average = change * new + averages[i] if from_old else at[i] - change * old
                square = squares[i] * kept + squared * at[i] * at[i]
                if writes:
                    averages[i], squares[i] = average, square
                    params[i] -= average * rate / (math.sqrt(square) / scale + eps)
                else:
                    lost += not (abs(params[i]) < most and abs(average) < bound and 0 <= square < most)
            start += size
        if lost:
            return False
    count[0] += 1
    return True
