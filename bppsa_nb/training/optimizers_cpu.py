"""Steps of optimizers compiled for CPUs: all parameters in one call, which changes everything or nothing.

The rules are those of `bppsa_nb.training.optimizers`, and give the same bits: nothing is contracted.
"""

import math
from array import array
from functools import cache

import numpy as np

from bppsa_nb.machine.compiling import inline, njit


@cache
def _loop(rule):
    """Compile a rule for arrays in one line; averages that it does not have are None."""
    rule = inline(rule)

    @njit(cache=True, error_model="numpy", nogil=True)
    def update(params, first, second, grads, numbers, count):
        for writes in range(2):  # all is looked at before anything is written: by one loop, which compiles sooner
            lost = 0
            for i in range(params.size):
                one = first[i] if first is not None else params[i]
                other = second[i] if second is not None else params[i]
                param, one, other = rule(params[i], grads[i], one, other, numbers)
                if not writes:
                    lost += not (param - param == one - one == other - other == 0)
                    continue
                params[i] = param
                if first is not None:
                    first[i] = one
                if second is not None:
                    second[i] = other
            if lost:
                return False
        count[0] += 1
        return True

    return update


def step(optimizer, params, grads):
    """Take a step of `Parameters` by gradients [shape=(P,)]; see `bppsa_nb.training.optimizers.step`."""
    state = optimizer.state
    try:
        averages = [*optimizer.flats(params), None, None][:2]
    except ValueError:
        return False
    # In Python's arrays, numbers too large for the dtype are infinite without a warning; the update finds them.
    numbers = np.frombuffer(array(grads.dtype.char, optimizer.numbers()), grads.dtype)
    done = _loop(optimizer.rule_of(math.sqrt))(params.flat, *averages, grads, numbers, optimizer.count)
    if not done:
        optimizer.state = state
    return done
