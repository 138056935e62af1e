"""What a training step on a GPU launches beside its cells and its scan: loss, range, and the optimizers' updates."""

import math
from functools import cache

import numpy as np

from bppsa_nb.machine.arrays_cuda import over
from bppsa_nb.machine.cuda import inline, reduced
from bppsa_nb.machine.cuda_compiler import cuda

U = np.uint32  # see `dot_of`
_THREADS = 256  # of a kernel's only block; a power of two, for which every kernel has registers
NUMBERS = 8  # that the optimizers' kernels read
# How a step ended: chunks of the time loop may not converge; LOST is `DynamicRangeError`; or something overflowed.
DONE, UNCONVERGED, LOST, OVERFLOWED = range(4)


@inline
def _softmax(logits, labels, shared):
    """Turn logits into their gradients; return a thread's share of the losses."""
    tid, threads, batch, classes = U(cuda.threadIdx.x), U(cuda.blockDim.x), U(logits.shape[0]), U(logits.shape[1])
    team = U(min(max(threads // batch, U(1)), classes))  # threads of a sample
    sample, member, mean, b, share = U(tid // team), U(tid % team), 0.0, U(tid // team), 1.0 / batch
    while b - sample < batch:
        top, shares, works = logits.dtype.type(-math.inf), 0.0, sample < threads // team and b < batch
        if works:
            c = U(0)
            while c < classes:
                top = max(top, logits[b, c])
                c += U(1)
            c = member
            while c < classes:
                shares += math.exp(np.float64(logits[b, c]) - np.float64(top))
                c += team
        shared[tid] = shares
        cuda.syncthreads()
        label = U(labels[b]) if works else U(0)
        if works:
            shares, k = 0.0, U(0)
            while k < team:
                shares += shared[sample * team + k]
                k += U(1)
            if member == U(0):
                mean += math.log(shares) - (np.float64(logits[b, label]) - np.float64(top))
        cuda.syncthreads()
        if works:
            scale, c = 1.0 / shares, member
            while c < classes:
                value = math.exp(np.float64(logits[b, c]) - np.float64(top)) * scale
                logits[b, c] = (value - 1.0 if c == label else value) * share
                c += team
        b += threads // team
    return mean


@cuda.jit
def cross_entropy(logits, labels, loss, status, lost):
    """Compute the mean softmax cross-entropy, and turn logits into their gradients. One block.

    The loss is worked out in double precision, as in `bppsa_nb.training.loss.cross_entropy`; compiled, `float` would
    leave it single.
    """
    shared, tid, threads = cuda.shared.array(_THREADS, np.float64), U(cuda.threadIdx.x), U(cuda.blockDim.x)
    batch, classes, zero = U(logits.shape[0]), U(logits.shape[1]), logits.dtype.type(0)
    if tid == U(0):
        status[0], status[1] = zero, zero
        lost[0] = 0
    cuda.syncthreads()
    q = tid
    while q < batch * classes:
        logit = logits[q // classes, q % classes]
        if logit - logit != zero:  # infinite, or not a number
            status[0] = logits.dtype.type(OVERFLOWED)
        q += threads
    cuda.syncthreads()
    shared[tid] = _softmax(logits, labels, shared)
    mean = reduced(shared, tid, threads, True)
    if tid == U(0):
        loss[0] = mean / batch


@cuda.jit
def flag_overflow(grads, status, lost, unconverged):
    """Say in ``status[0]`` whether the gradients [shape=(P,)] are to be used. One block.

    What the update finds goes to ``status[1]``: other threads of it may not have looked at the first yet.
    """
    zero = grads.dtype.type(0)
    if cuda.threadIdx.x == 0:
        if unconverged[0] != 0:  # whatever came of it
            status[0] = grads.dtype.type(UNCONVERGED)
            unconverged[0] = 0
        elif status[0] == zero and lost[0] != 0:
            status[0] = grads.dtype.type(LOST)
    cuda.syncthreads()
    good = status[0] == zero
    cuda.syncthreads()
    for q in range(cuda.threadIdx.x, grads.shape[0], cuda.blockDim.x):
        if grads[q] - grads[q] != zero and good:
            status[0] = grads.dtype.type(OVERFLOWED)


@cache
def update_of(rule, averages):
    """Make the kernel of an optimizer's rule, which has so many averages: a parameter per thread."""
    rule = inline(rule)

    @cuda.jit
    def update(params, grads, first, second, numbers, status):
        q, zero = cuda.grid(1), params.dtype.type(0)
        if q < params.shape[0] and status[0] == zero:
            param, one, other = rule(params[q], grads[q], first[q], second[q], numbers)
            params[q] = param
            if averages > 0:
                first[q] = one
            if averages > 1:
                second[q] = other
            if param - param != zero or one - one != zero or other - other != zero:  # not for the host
                status[1] = params.dtype.type(OVERFLOWED)

    return update


def launch_update(optimizer, params, grads, averages, numbers, flags, stream):
    """Launch an optimizer's step, which does nothing where `flags` (status, lost, unconverged) say so."""
    one_block(flag_overflow, stream)(grads, *flags)
    first, second = [*averages, params, params][:2]
    update = update_of(optimizer.rule_of(math.sqrt), len(averages))
    over(update, params, stream)(params, grads, first, second, numbers, flags[0])


def one_block(kernel, stream):
    """Configure a kernel to run as one block."""
    return kernel[1, _THREADS, stream]
