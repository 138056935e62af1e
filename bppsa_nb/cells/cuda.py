"""The cells on a GPU: kernels that prepare the scan's transposed Jacobians, and the step-by-step sweep.

The kernels of :mod:`bppsa_nb.scan.cuda` take over from `rnn_scan`'s first launch; nothing returns to the host in
between. The forward pass is the CPU's, as the paper leaves it to another library (Section 4.1).
"""

import math

import numpy as np
from numba import cuda

from bppsa_nb.scan.cuda import MAX_THREADS, collect, launch_prepare, launch_scan, rescale, workspace


@cuda.jit
def rnn_prepare(weight_hh, hidden, mats, exps, lost):
    """Assemble ``W_hh^T diag(1 - h_{t+1}²)``, scaled: one step of one sample per block."""
    shared = cuda.shared.array(0, mats.dtype)
    t, b = cuda.blockIdx.x // mats.shape[1], cuda.blockIdx.x % mats.shape[1]
    size = mats.shape[2]
    one = mats.dtype.type(1)
    high = mats.dtype.type(0)
    low = mats.dtype.type(math.inf)
    for q in range(cuda.threadIdx.x, size * size, cuda.blockDim.x):
        i, j = q // size, q % size
        h = hidden[t + 1, b, j]
        value = weight_hh[j, i] * (one - h * h)
        mats[t, b, i, j] = value
        high = max(high, abs(value))
        if value != 0:
            low = min(low, abs(value))
    exponent = rescale(mats[t, b], high, low, shared, lost)
    if cuda.threadIdx.x == 0:
        exps[t, b] = exponent


@cuda.jit
def rnn_sweep_kernel(weight_hh, hidden, grad_hidden):
    """Walk back through time (Equation 3), one sample per block; ``grad_hidden[T]`` is given."""
    shared = cuda.shared.array(0, grad_hidden.dtype)
    b, size = cuda.blockIdx.x, grad_hidden.shape[2]
    one = grad_hidden.dtype.type(1)
    for t in range(grad_hidden.shape[0] - 2, -1, -1):
        for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            h = hidden[t + 1, b, j]
            shared[j] = grad_hidden[t + 1, b, j] * (one - h * h)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            total = grad_hidden.dtype.type(0)
            for j in range(size):
                total += weight_hh[j, i] * shared[j]
            grad_hidden[t, b, i] = total
        cuda.syncthreads()


def rnn_sweep(weight_hh, hidden, grad_output):
    """Back-propagate through time; see `bppsa_nb.cells.rnn.sweep`."""
    grad_hidden = np.empty_like(hidden)
    grad_hidden[-1] = grad_output
    on_device = cuda.to_device(grad_hidden)
    size = hidden.shape[2]
    rnn_sweep_kernel[hidden.shape[1], min(size, MAX_THREADS), 0, size * hidden.dtype.itemsize](
        cuda.to_device(weight_hh), cuda.to_device(hidden), on_device
    )
    return on_device.copy_to_host()


def rnn_scan(weight_hh, hidden, grad_output, levels):
    """Scan transposed Jacobians that are assembled on the device and never leave it.

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    grad_output : np.ndarray [shape=(B, H)]
    levels : int or None
        k of the truncated scan; None for Blelloch's.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
        Gradients at all hidden states.

    Raises
    ------
    bppsa_nb.operator.RangeLost
        If a product could not keep its entries in range.
    """
    T, batch, size = len(hidden) - 1, hidden.shape[1], hidden.shape[2]
    if T == 0:
        return grad_output[None].copy()
    mats, exps, vecs, lost = workspace(T, batch, batch, size, hidden.dtype)
    vecs[T + 1].copy_to_device(grad_output)
    launch_prepare(rnn_prepare, (cuda.to_device(weight_hh), cuda.to_device(hidden)), mats, exps, lost)
    launch_scan(mats, exps, vecs, False, levels, lost)
    return collect(vecs, lost)
