"""Chains of stored transposed Jacobians, in NumPy: the loop, and the scan over one operand per link.

They take ``jacobians_T`` [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]; ``grad_output`` [shape=(B, H)], the gradient at
x_T; and ``local_grads`` [shape=(T + 1, B, H)], loss terms that enter at every x_t, or None, the term at x_T being in
`grad_output`. `sweep`, `chunked` and `levels` return the gradients at x_0 ... x_T [shape=(T + 1, B, H)].
"""

from functools import reduce

import numpy as np

from bppsa_nb.chains import listed
from bppsa_nb.operands import rows
from bppsa_nb.operands.dense import Dense
from bppsa_nb.operands.scaled import Scaled
from bppsa_nb.scan.operator import diamond


def sweep(jacobians_T, grad_output, local_grads=None):
    """Go back one link after the other (Equation 3)."""
    gradients = np.empty((len(jacobians_T) + 1, *grad_output.shape), grad_output.dtype)
    gradients[-1] = grad_output
    for t in reversed(range(len(jacobians_T))):
        gradients[t] = (jacobians_T[t] @ gradients[t + 1][..., None])[..., 0]
        if local_grads is not None:
            gradients[t] += local_grads[t]
    return gradients


def chunked(jacobians_T, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk, `length` links each: reduce, then scan (Equation 6, with n / p links per worker)."""
    return _scan(jacobians_T, grad_output, local_grads, "chunked", length=length)


def levels(jacobians_T, grad_output, local_grads=None, levels=None):
    """Scan level by level: Algorithm 1, or with so many levels only."""
    method = "blelloch" if levels is None else "truncated"
    return _scan(jacobians_T, grad_output, local_grads, method, levels=levels)


def _scan(jacobians_T, grad_output, local_grads, method, **how):
    operands = [Dense(jacobian_T) for jacobian_T in jacobians_T]
    return np.stack(listed.scan_operands(operands, grad_output, local_grads, method, **how))


def products(jacobians_T, length):
    """Multiply the links of each chunk; arguments and results are those of `bppsa_nb.chains.structured.products`."""
    found = []
    for start in range(0, len(jacobians_T), length):
        links = (Scaled(Dense(link)) for link in jacobians_T[start : start + length][::-1])
        product = reduce(diamond, links)
        found.append(by_rows(product.operand.matrix, product.exponent))
    return tuple(map(np.stack, zip(*found, strict=True)))


def by_rows(matrices, exponents):
    """Return where unit vectors end: the columns of scaled matrices as rows, with a power of two each."""
    columns = np.swapaxes(matrices, -1, -2).copy()
    return rows.normalize(columns, np.broadcast_to(np.asarray(exponents)[..., None], columns.shape[:-1]))
