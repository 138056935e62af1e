"""Operands that are matrices, and affine maps made of them."""

import numpy as np
from scipy import sparse

from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.operands import products


@with_repr("matrix")
class Dense:
    """A dense transposed Jacobian, or one for each sample.

    Leading axes of the matrix [shape=(..., m, n)] are samples; they broadcast against those of a gradient [shape=(...,
    n)].
    """

    products = products  # which find the range of values, and scale them

    def __init__(self, matrix):
        self.matrix = matrix

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return np.matmul(self.matrix, other[..., None])[..., 0]
        product = self.matrix @ other.matrix
        return CSR(product) if sparse.issparse(product) else Dense(product)

    @property
    def values(self):
        """Entries of each sample [shape=(..., nnz)], those that are stored."""
        return self.matrix.reshape(*self.matrix.shape[:-2], -1)

    def with_values(self, values):
        """Return an operand of the same shape and pattern with other entries."""
        return Dense(values.reshape(self.matrix.shape))


class CSR(Dense):
    """A sparse transposed Jacobian, a SciPy CSR array [shape=(m, n)]."""

    def __matmul__(self, other):
        return self.matrix @ other if isinstance(other, np.ndarray) else super().__matmul__(other)

    @property
    def values(self):  # noqa: D102 - as of Dense
        return self.matrix.data

    def with_values(self, values):  # noqa: D102 - as of Dense
        return CSR(sparse.csr_array((values, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape))


@with_repr("linear", "offset")
class Affine:
    """The map ``x -> M x + c``: an operand of another kind, and the loss term [shape=(..., m)] that enters below it."""

    def __init__(self, linear, offset):
        self.linear = linear
        self.offset = offset

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.linear @ other + self.offset
        # M_b (M_a x + c_a) + c_b
        return Affine(self.linear @ other.linear, self.linear @ other.offset + self.offset)
