"""The vanilla RNN on a GPU; counterpart of `bppsa_nb.cells.rnn`."""

import math
from functools import cache, partial

import numpy as np

from bppsa_nb.cells import chunked_cuda, layer_cuda
from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.machine.cuda import dot_of, inline
from bppsa_nb.machine.cuda_compiler import cuda

U = np.uint32  # see `dot_of`


@cache
def steps_of(size, real):
    """Make what loads weights and runs steps, for one H: a thread per hidden unit, one barrier a step."""
    dot, ahead = dot_of(size, real), layer_cuda.AHEAD

    @inline
    def run_steps(products, weights, bias_hh, states, hidden, gates, b, start, stop):
        now, i = cuda.local.array(ahead, real), U(cuda.threadIdx.x)
        t, end, base, bias, h = U(start), U(stop), i // U(size) * U(4), bias_hh[i], states[i]
        for a in range(ahead):
            now[a] = products[min(t + U(a), end - U(1)), b, i]
        cuda.syncthreads()
        while t < end:
            for a in range(ahead):
                if t + U(a) < end:
                    # h_t stands in one half of `states`, h_{t+1} goes to the other.
                    h = math.tanh(dot(now[a] + bias, weights, states, base + U(a % 2 * size)))
                    states[U((a + 1) % 2 * size) + i] = h
                    hidden[t + U(a + 1), b, i] = h
                    now[a] = products[min(t + U(a + ahead), end - U(1)), b, i]
                    cuda.syncthreads()
            t += U(ahead)
        states[i] = h

    return layer_cuda.load_of(size, real), run_steps


@inline
def run_steps(products, weight_hh_T, bias_hh, states, hidden, gates, b, start, stop):
    """Run Equation 9 from step `start` to `stop` for any H, a sample per block; ``states[:H]`` is given and left."""
    size, tid, threads = hidden.shape[2], cuda.threadIdx.x, cuda.blockDim.x
    ahead = products[start, b, tid]
    for t in range(start, stop):
        now, ahead = ahead, products[min(t + 1, stop - 1), b, tid]  # read ahead: no step waits for memory
        cuda.syncthreads()
        for i in range(tid, size, threads):
            added = now if i == tid else products[t, b, i]
            hidden[t + 1, b, i] = math.tanh(added + bias_hh[i] + dot(weight_hh_T, i, states, 0))
        cuda.syncthreads()
        for i in range(tid, size, threads):
            states[i] = hidden[t + 1, b, i]


@cuda.jit
def run_slopes(hidden, slopes):
    """Compute ``1 - h_t²``, one number per thread; both arrays are one line, and ``hidden[0]`` has no slopes."""
    q = cuda.grid(1)
    if q < slopes.shape[0]:
        h = hidden[q + hidden.shape[0] - slopes.shape[0]]
        slopes[q] = slopes.dtype.type(1) - h * h


CELL = layer_cuda.Cell(steps_of, (layer_cuda.leave, run_steps), run_slopes, sums=1, room=2)
forward = partial(layer_cuda.forward, CELL)
solve = partial(chunked_cuda.solve, CELL)
chain = partial(layer_cuda.chain, CELL)
gate_gradients = partial(layer_cuda.gate_gradients, CELL)
