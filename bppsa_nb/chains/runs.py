"""Runs of steps of a chain that do not wait for each other, in NumPy: gone back along, and multiplied.

A chain is a `StructuredChain` or a `StoredChain`; its `back` goes back one step. All runs take a step at once.
"""

import numpy as np

from bppsa_nb.machine.memory import require
from bppsa_nb.operands import rows


def pass_back(chain, bounds, ends, gradients, keep=True):
    """Go back along runs of as many steps each, run r from x_bounds[r + 1] to x_bounds[r] (Equation 3).

    `ends` [shape=(runs, B, H)] are the gradients at their ends, and `gradients` [shape=(T + 1, B, H)] hold loss terms,
    or zeros, where they will hold gradients. Unless these are kept there, those at the runs' starts take the place of
    `ends`.
    """
    runs, length = len(ends), bounds[1] - bounds[0]
    below = gradients[bounds[0] : bounds[0] + runs * length].reshape(runs, length, *gradients.shape[1:])
    grads = ends
    for link, here in zip(reversed(chain.cut(bounds[0], runs, length)), below.swapaxes(0, 1)[::-1], strict=True):
        moved = chain.back(link, grads)
        if keep:
            here += moved
            grads = here
        else:
            grads = moved + here
    if not keep:
        ends[...] = grads


def multiply(chain, first, count, length):
    """Multiply the Jacobians of chunks ``first ... first + count - 1`` of `length` steps, back from the unit vectors.

    Row j of a product [shape=(count, B, H, H)] is where unit vector j ends, times a power of two, which the exponents
    [shape=(count, B, H)] hold. Raises DynamicRangeError if a product leaves the range, MemoryError if they do not fit.
    """
    _, B, H = chain.shape
    require(3 * count * B * H * H * chain.dtype.itemsize, f"multiplying {count} chunks of {length} steps")
    products, exponents = np.broadcast_to(np.eye(H, dtype=chain.dtype), (count, B, H, H)), np.zeros((count, B, H), int)
    links, powers, floor = chain.factors(first * length, count, length)
    for link, power in zip(reversed(links), reversed(powers), strict=True):
        products, exponents = rows.normalize(chain.back(link, products), exponents + power[..., None], floor)
    return products, exponents


def jacobians_T(chain):
    """Write the transposed Jacobians out [shape=(T, B, H, H)]; raise MemoryError if they do not fit."""
    T, B, H = chain.shape
    require(T * B * H * H * chain.dtype.itemsize, f"storing {T} x {B} transposed Jacobians of {H} x {H}")
    assembled, size = np.zeros((T, B, H, H), chain.dtype), chain.weights.shape[2]
    # Blocks of H x H: rows of one of the S vectors of a state, columns of another.
    blocks = assembled.reshape(T, B, chain.states, size, chain.states, size)
    for weight, slopes in zip(chain.weights, chain.slopes, strict=True):
        blocks[:, :, 0] += weight.T[:, None] * slopes.reshape(T, B, 1, chain.states, size)
    for s, carry in enumerate(chain.carries):
        np.einsum("tbisi->tbsi", blocks[:, :, s])[...] += carry.reshape(T, B, chain.states, size)
    return assembled
