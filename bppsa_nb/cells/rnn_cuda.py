"""The vanilla RNN on a GPU; twin of `bppsa_nb.cells.rnn`."""

import math
from functools import partial

from numba import cuda

from bppsa_nb.cells import layer_cuda
from bppsa_nb.chains.kernels_cuda import dot


@cuda.jit
def run_forward(products, weight_hh_T, bias_hh, hidden):
    """Run Equation 9 over time, one sample per block; ``hidden[0]`` and the input products are given."""
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
    """Compute ``1 - h_t²``, one number per thread."""
    q = cuda.grid(1)
    batch, size = slopes.shape[2], slopes.shape[3]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < slopes.shape[1]:
        h = hidden[t + 1, b, i]
        slopes[0, t, b, i] = slopes.dtype.type(1) - h * h


CELL = layer_cuda.Cell(run_forward, run_slopes, sums=1, room=1)
forward = partial(layer_cuda.forward, CELL)
chain = partial(layer_cuda.chain, CELL)
gate_gradients = partial(layer_cuda.gate_gradients, CELL)
