"""Scans over a list of operands, one per link: Equation 5's array, and Algorithm 1 over it.

Stored Jacobians in NumPy go this way, and so do links of whatever sizes: BatchedCSR on any backend, matrices in NumPy.
"""

import math

import numpy as np
from scipy import sparse

from bppsa_nb.operands.kinds import CSR, Affine, Dense, Scaled
from bppsa_nb.operands.pattern import BatchedCSR, Planned
from bppsa_nb.scan import scan


def levels(jacobians_T, grad_output, local_grads=None, levels=None):
    """Scan stored Jacobians level by level: Algorithm 1, or with so many levels only.

    ``jacobians_T`` are [shape=(T, B, H, H)] or [shape=(T, 1, H, H)], `grad_output` [shape=(B, H)], and `local_grads`
    [shape=(T + 1, B, H)] or None, the term at x_T being in `grad_output`; the result is [shape=(T + 1, B, H)].
    """
    method = "blelloch" if levels is None else "truncated"
    return np.stack(scan_operands(list(map(Dense, jacobians_T)), grad_output, local_grads, method, levels))


def operand(link, backend):
    """Return the operand that a link of a list is."""
    if isinstance(link, BatchedCSR):
        return Planned.of(link, backend)
    return CSR(sparse.csr_array(link)) if sparse.issparse(link) else Dense(link)


def go_back(links, grad_output, local_grads, backend, method, levels=None):
    """Return the gradients along links, a list; arguments are `backprop`'s, checked, the last term in `grad_output`."""
    return scan_operands([operand(link, backend) for link in links], grad_output, local_grads, method, levels)


def chunk_length(method, count):
    """Return how many of a list's links make a chunk: about as many as there are chunks; None for other methods."""
    return math.isqrt(count) + 1 if method == "chunked" else None


def scan_operands(operands, grad_output, local_grads, method, levels=None):
    """Scan over operands: links in the order of time in, gradients in the order of time out, a list of arrays."""
    # The linear scan multiplies no matrices, so it needs no scaling.
    links = operands if method == "linear" else [Scaled(link) for link in operands]
    if local_grads is not None:
        links = list(map(Affine, links, local_grads))  # the last term is in the gradient
    array = [grad_output, *reversed(links)]  # Equation 5's, which starts at the loss
    found = scan(array, method, levels, chunk_length(method, len(operands)))[::-1]
    return [np.array(gradient).reshape(*grad_output.shape[:-1], -1) for gradient in found]
