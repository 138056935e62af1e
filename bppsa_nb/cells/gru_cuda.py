"""The GRU on a GPU; counterpart of `bppsa_nb.cells.gru`."""

import math
from functools import cache, partial

import numpy as np

from bppsa_nb.cells import chunked_cuda, layer_cuda
from bppsa_nb.chains.kernels_cuda import dot
from bppsa_nb.machine.arrays_cuda import EACH, mine
from bppsa_nb.machine.cuda import base_of, dot_of, inline
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`


@inline
def _sigmoid(x, one):
    small = math.exp(-abs(x))  # which does not overflow
    return (small if x < 0 else one) / (one + small)


@cache
def steps_of(size, real):
    """Make what loads weights and runs steps, for one H: a thread per row of the weights."""
    dot, one = dot_of(size, real), real(1)

    @inline
    def sums(added, total, shared):
        g = U(cuda.threadIdx.x)
        if g < U(2 * size):
            shared[U(size) + g] = _sigmoid(added + total, one)
        else:
            shared[U(size) + g] = total
            shared[U(2 * size) + g] = added

    @inline
    def state(shared, hidden, gates, t, b):
        g = U(cuda.threadIdx.x)
        cuda.syncthreads()
        if g < U(size):
            r, z, m, h = shared[U(size) + g], shared[U(2 * size) + g], shared[U(3 * size) + g], shared[g]
            n = math.tanh(shared[U(4 * size) + g] + r * m)
            h = n + z * (h - n)
            shared[g] = h
            hidden[t + U(1), b, g] = h
            gates[U(0), t, b, g] = r
            gates[U(1), t, b, g] = z
            gates[U(2), t, b, g] = n
            gates[U(3), t, b, g] = m
        cuda.syncthreads()

    @inline
    def run_steps(products, weights, bias_hh, shared, hidden, gates, b, start, stop):
        g, t, end, last, at = U(cuda.threadIdx.x), U(start), U(stop), U(stop - 1), base_of(4 * size)
        bias = bias_hh[g]
        # Four steps ahead, and written out, as the RNN's.
        x0, x1 = products[t, b, g], products[min(t + U(1), last), b, g]
        x2, x3 = products[min(t + U(2), last), b, g], products[min(t + U(3), last), b, g]
        cuda.syncthreads()
        while t < end:
            sums(x0, dot(bias, weights, shared, at), shared)
            x0 = products[min(t + U(4), last), b, g]
            state(shared, hidden, gates, t, b)
            if t + U(1) < end:
                sums(x1, dot(bias, weights, shared, at), shared)
                x1 = products[min(t + U(5), last), b, g]
                state(shared, hidden, gates, t + U(1), b)
            if t + U(2) < end:
                sums(x2, dot(bias, weights, shared, at), shared)
                x2 = products[min(t + U(6), last), b, g]
                state(shared, hidden, gates, t + U(2), b)
            if t + U(3) < end:
                sums(x3, dot(bias, weights, shared, at), shared)
                x3 = products[min(t + U(7), last), b, g]
                state(shared, hidden, gates, t + U(3), b)
            t += U(4)

    return layer_cuda.load_of(size, real), run_steps


@inline
def run_steps(products, weight_hh_T, bias_hh, before, hidden, gates, b, start, stop):
    """Run Equation 10 for any H and keep the gates; arguments as for the RNN's, `before` with room for five H."""
    size, sums, tid, threads = hidden.shape[2], products.shape[2], cuda.threadIdx.x, cuda.blockDim.x
    one = hidden.dtype.type(1)
    ahead = products[start, b, tid]
    for t in range(start, stop):
        now, ahead = ahead, products[min(t + 1, stop - 1), b, tid]  # read ahead: no step waits for memory
        cuda.syncthreads()
        for g in range(tid, sums, threads):
            added = now if g == tid else products[t, b, g]
            total = bias_hh[g] + dot(weight_hh_T, g, before, 0)
            if g < 2 * size:
                before[size + g] = _sigmoid(added + total, one)
            else:
                before[size + g] = total
                before[2 * size + g] = added
        cuda.syncthreads()
        for i in range(tid, size, threads):
            r, z, m = before[size + i], before[2 * size + i], before[3 * size + i]
            n = math.tanh(before[4 * size + i] + r * m)
            gates[0, t, b, i] = r
            gates[1, t, b, i] = z
            gates[2, t, b, i] = n
            gates[3, t, b, i] = m
            before[i] = n + z * (before[i] - n)
            hidden[t + 1, b, i] = before[i]


@cuda.jit
def run_slopes(hidden, gates, slopes):
    """Compute the derivatives of h_t by N_t, R_t, Z_t and M_t.

    See `bppsa_nb.cells.gru.slopes`, whose order it is. The last three are those of the chain; N_t sees the input only.
    All arrays are one line, of four parts each but `hidden`.
    """
    (q, threads), each, one = mine(), W(slopes.shape[0] // 4), slopes.dtype.type(1)
    for _ in range(EACH):
        if q < each:
            r, z, n, m = gates[q], gates[each + q], gates[W(2) * each + q], gates[W(3) * each + q]
            to_n = (one - n * n) * (one - z)  # j6 j7
            from_z = z * (one - z) * (hidden[q] - n)
            slopes[q] = to_n
            slopes[each + q] = r * (one - r) * m * to_n
            slopes[W(2) * each + q] = from_z
            slopes[W(3) * each + q] = r * to_n
        q += threads


CELL = layer_cuda.Cell(steps_of, (layer_cuda.leave, run_steps), run_slopes, sums=4, room=5)
forward = partial(layer_cuda.forward, CELL)
solve = partial(chunked_cuda.solve, CELL)
chain = partial(layer_cuda.chain, CELL)
gate_gradients = partial(layer_cuda.gate_gradients, CELL)
