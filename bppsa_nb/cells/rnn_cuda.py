"""The vanilla RNN on a GPU; counterpart of `bppsa_nb.cells.rnn`."""

import math
from functools import cache, partial

import numpy as np

from bppsa_nb.cells import chunked_cuda, layer_cuda
from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.machine.arrays_cuda import EACH, mine, taken
from bppsa_nb.machine.cuda import base_of, dot_of, inline
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`


@cache
def steps_of(size, real):
    """Make what loads weights and runs steps, for one H: a thread per hidden unit, one barrier a step."""
    dot = dot_of(size, real)

    @inline
    def step(added, weights, states, before, after, hidden, t, b):
        h = math.tanh(dot(added, weights, states, before))
        states[after] = h
        hidden[t + U(1), b, U(cuda.threadIdx.x)] = h
        return h

    @inline
    def run_steps(products, weights, bias_hh, states, hidden, gates, b, start, stop):
        i, t, end, last = U(cuda.threadIdx.x), U(start), U(stop), U(stop - 1)
        bias, h, even, odd = bias_hh[i], states[i], base_of(size), base_of(size) + U(size)  # where h_t stands
        # Read four steps ahead, so that none waits for memory. Steps are written out, each with a number of its own:
        # to move one that is on its way would be to wait for it.
        x0, x1 = products[t, b, i], products[min(t + U(1), last), b, i]
        x2, x3 = products[min(t + U(2), last), b, i], products[min(t + U(3), last), b, i]
        cuda.syncthreads()
        while t < end:
            h = step(x0 + bias, weights, states, even, U(size) + i, hidden, t, b)
            x0 = products[min(t + U(4), last), b, i]
            cuda.syncthreads()
            if t + U(1) < end:
                h = step(x1 + bias, weights, states, odd, i, hidden, t + U(1), b)
                x1 = products[min(t + U(5), last), b, i]
                cuda.syncthreads()
            if t + U(2) < end:
                h = step(x2 + bias, weights, states, even, U(size) + i, hidden, t + U(2), b)
                x2 = products[min(t + U(6), last), b, i]
                cuda.syncthreads()
            if t + U(3) < end:
                h = step(x3 + bias, weights, states, odd, i, hidden, t + U(3), b)
                x3 = products[min(t + U(7), last), b, i]
                cuda.syncthreads()
            t += U(4)
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
