"""The vanilla RNN on a GPU; counterpart of `bppsa_nb.cells.rnn`."""

import math
from functools import cache, partial

import numpy as np

from bppsa_nb.cells import chunked_cuda, layer_cuda
from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.machine.arrays_cuda import EACH, mine, taken
from bppsa_nb.machine.cuda import dot_of, inline
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`


@cache
def steps_of(size, real):
    """Make what loads weights and runs steps, for one H: a thread per hidden unit, one barrier a step."""
    dot = dot_of(size, real)

    @inline
    def run_steps(products, weights, bias_hh, states, hidden, gates, b, start, stop):
        i, last = U(cuda.threadIdx.x), stop - 1
        bias, h, here = bias_hh[i], states[i], U(0)  # which half of `states` is h_t's; h_{t+1} goes to the other
        # Read four steps ahead, so that none waits for memory.
        x0, x1 = products[U(start), b, i], products[U(min(start + 1, last)), b, i]
        x2, x3 = products[U(min(start + 2, last)), b, i], products[U(min(start + 3, last)), b, i]
        cuda.syncthreads()
        for t in range(start, stop):
            added = x0 + bias
            x0, x1, x2, x3 = x1, x2, x3, products[U(min(t + 4, last)), b, i]
            h = math.tanh(dot(added, weights, states, here * U(size)))
            here = U(1) - here
            states[here * U(size) + i] = h
            hidden[U(t + 1), b, i] = h
            cuda.syncthreads()
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
    """Compute ``1 - h_t²``; both arrays are one line, and ``hidden[0]`` has no slopes."""
    states, (q, threads) = cuda.local.array(EACH, hidden.dtype), mine()
    first = W(hidden.shape[0] - slopes.shape[0])
    taken(states, hidden, first + q, threads, W(hidden.shape[0]))
    for k in range(EACH):
        if q < W(slopes.shape[0]):
            slopes[q] = slopes.dtype.type(1) - states[k] * states[k]
        q += threads


CELL = layer_cuda.Cell(steps_of, (layer_cuda.leave, run_steps), run_slopes, sums=1, room=2)
forward = partial(layer_cuda.forward, CELL)
solve = partial(chunked_cuda.solve, CELL)
chain = partial(layer_cuda.chain, CELL)
gate_gradients = partial(layer_cuda.gate_gradients, CELL)
