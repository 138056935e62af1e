"""Sparse products by plan in NumPy, the numeric phase; and the range and scale of values, sparse or dense.

Plans are `bppsa_nb.operands.pattern.PlannedProduct`; its counterparts are `products_cpu` and `products_cuda`.
"""

import numpy as np
from scipy import sparse


def send(values):
    """Leave values where they are, in this computer's memory."""
    return values


def batch_of(a, b):
    """Return how many samples the product of two arrays of values has; the one with one row is shared by all."""
    return a.shape[0] if b.shape[0] == 1 else b.shape[0]


def product(plan, a, b, out=None):
    """Run the numeric phase of a planned product, in NumPy: for every multiply-add, where it reads and writes.

    Values `a` and `b` are [shape=(B, nnz)], those of each sample, or [shape=(1, nnz)], those that all samples share;
    those of the product, which `out` takes if given, [shape=(B, plan.pattern.nnz)].
    """
    left, right, pattern = plan.left, plan.right, plan.pattern
    lengths = np.diff(right.indptr)[left.indices]  # every entry of a meets one row of b
    from_a = np.repeat(np.arange(left.nnz), lengths)
    before = np.cumsum(lengths) - lengths
    from_b = np.arange(len(from_a)) + np.repeat(right.indptr[left.indices] - before, lengths)
    # Entries are told apart by row and column in one number; the pattern has them in order.
    number = lambda rows, columns: rows * np.int64(pattern.shape[1]) + columns  # noqa: E731
    entries = number(_row_of_each(pattern), pattern.indices)
    to_c = np.searchsorted(entries, number(_row_of_each(left)[from_a], right.indices[from_b]))
    values = np.empty((batch_of(a, b), pattern.nnz), a.dtype) if out is None else out
    for sample, terms in enumerate(a[:, from_a] * b[:, from_b]):
        values[sample] = np.bincount(to_c, weights=terms, minlength=pattern.nnz)
    return values


def _row_of_each(pattern):
    return np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))


def apply(pattern, values, vectors):
    """Multiply each sample's matrix, values [shape=(B, nnz)] or [shape=(1, nnz)], and vector [shape=(B, n)]."""
    each = np.broadcast_to(values, (len(vectors), pattern.nnz))
    matrices = (sparse.csr_array((v, pattern.indices, pattern.indptr), shape=pattern.shape) for v in each)
    return np.stack([matrix @ x for matrix, x in zip(matrices, vectors, strict=True)])


def magnitude_range(values):
    """Find the largest and the smallest non-zero size of each sample's values (..., nnz); 0 and infinity for none."""
    sizes = np.abs(values)
    return sizes.max(axis=-1, initial=0), np.min(sizes, axis=-1, initial=np.inf, where=sizes != 0)


def scale(values, exponents, out=None):
    """Multiply each sample's values [shape=(..., nnz)] by a power of two; `out` may be `values`."""
    return np.ldexp(values, exponents[..., None], out=out)
