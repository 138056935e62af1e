"""Chains that tests of every backend draw, and how far gradients may be from the oracle."""

import numpy as np

METHODS = [("linear", None), ("blelloch", None), ("chunked", None), *(("truncated", k) for k in (0, 2, 50))]
BACKENDS = ["numpy", "cpu"]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


def chain(T, B, H, rng, local=False):
    """Make a norm-preserving chain whose numbers float32 holds exactly, so that one oracle serves both dtypes.

    A long one has a hundred links in a random order, again and again: rotations take long to make.
    """
    jacobians_T = np.linalg.qr(rng.standard_normal((min(T, 100), B, H, H)))[0].astype(np.float32)
    if T > 100:
        jacobians_T = jacobians_T[rng.integers(100, size=T)]
    grad_output = rng.standard_normal((B, H)).astype(np.float32)
    local_grads = rng.standard_normal((T + 1, B, H)).astype(np.float32) if local else None
    return np.ascontiguousarray(jacobians_T), grad_output, local_grads


def cast(dtype, *arrays):
    return [None if array is None else array.astype(dtype) for array in arrays]


def error(result, oracle):
    return np.abs(result - oracle).max() / np.abs(oracle).max()


def hills(size, rng, rate, period=32, T=640):
    """Make a gradient that falls and climbs by `rate` a step, for `period` steps each, around 1."""
    jacobians_T, grad_output, _ = chain(T, 2, size, rng)
    growing = np.arange(T) // period % 2 == 0
    jacobians_T *= np.where(growing, np.float32(rate), np.float32(1 / rate))[:, None, None, None]
    return jacobians_T, grad_output * np.float32(rate) ** (period // 2)
