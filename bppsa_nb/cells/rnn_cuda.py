"""The vanilla RNN on a GPU; twin of `bppsa_nb.cells.rnn`."""

import math
from functools import cache, partial

import numpy as np
from numba import cuda

from bppsa_nb.cells import layer_cuda
from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.machine.cuda import dot_of

U = np.uint32  # see `dot_of`


@cache
def run_forward_of(size, real):
    """Make `run_forward` for one H: a thread per hidden unit, its weights in registers, one barrier a step."""
    dot = dot_of(size, real)

    @cuda.jit
    def run_forward(products, weight_hh_T, bias_hh, hidden):
        states = cuda.shared.array(0, hidden.dtype)  # h_t, and where h_{t+1} goes meanwhile
        weights = cuda.local.array(size, real)
        b, i = U(cuda.blockIdx.x), U(cuda.threadIdx.x)
        steps, last = products.shape[0], products.shape[0] - 1
        for j in range(size):
            weights[j] = weight_hh_T[j, i]
        bias, here = bias_hh[i], U(0)  # which half of `states` is h_t's
        states[i] = hidden[U(0), b, i]
        # Read four steps ahead, so that none waits for memory.
        x0, x1 = products[U(0), b, i], products[U(min(1, last)), b, i]
        x2, x3 = products[U(min(2, last)), b, i], products[U(min(3, last)), b, i]
        cuda.syncthreads()
        for t in range(steps):
            added = x0 + bias
            x0, x1, x2, x3 = x1, x2, x3, products[U(min(t + 4, last)), b, i]
            h = math.tanh(dot(added, weights, states, here * U(size)))
            here = U(1) - here
            states[here * U(size) + i] = h
            hidden[U(t + 1), b, i] = h
            cuda.syncthreads()

    return run_forward


@cuda.jit
def run_forward(products, weight_hh_T, bias_hh, hidden):
    """Run Equation 9 over time for any H, one sample per block; ``hidden[0]`` and the input products are given."""
    before = cuda.shared.array(0, hidden.dtype)
    b, steps, size = cuda.blockIdx.x, products.shape[0], hidden.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    for j in range(tid, size, threads):
        before[j] = hidden[0, b, j]
    ahead = products[0, b, tid]
    for t in range(steps):
        now, ahead = ahead, products[min(t + 1, steps - 1), b, tid]  # read ahead: no step waits for memory
        cuda.syncthreads()
        for i in range(tid, size, threads):
            added = now if i == tid else products[t, b, i]
            hidden[t + 1, b, i] = math.tanh(added + bias_hh[i] + dot(weight_hh_T, i, before, 0))
        cuda.syncthreads()
        for i in range(tid, size, threads):
            before[i] = hidden[t + 1, b, i]


@cuda.jit
def run_slopes(hidden, slopes):
    """Compute ``1 - h_t²``, one number per thread; both arrays are one line, and ``hidden[0]`` has no slopes."""
    q = cuda.grid(1)
    if q < slopes.shape[0]:
        h = hidden[q + hidden.shape[0] - slopes.shape[0]]
        slopes[q] = slopes.dtype.type(1) - h * h


CELL = layer_cuda.Cell(run_forward_of, run_forward, run_slopes, sums=1, room=1)
forward = partial(layer_cuda.forward, CELL)
chain = partial(layer_cuda.chain, CELL)
gate_gradients = partial(layer_cuda.gate_gradients, CELL)
