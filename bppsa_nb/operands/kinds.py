r"""What can be scanned: operands that know :math:`A \diamond B = B A`.

An operand kind is a class whose ``__matmul__`` multiplies two of its kind (matrix times matrix) or one of its kind and
a gradient, a plain array (matrix times vector); everything else is left to :mod:`bppsa_nb.scan`.

=========  ====================================================================
kind       an operand is
=========  ====================================================================
`Dense`    a matrix, or one matrix per sample
`CSR`      a sparse matrix
`Scaled`   one of these times an exact power of two, so that products stay in range
`Affine`   ``x -> M x + c``: a matrix and the loss term that enters at that step
=========  ====================================================================

More kinds are in `bppsa_nb.operands.pattern`: `Planned` is sparse matrices of several samples, whose products are
planned; `Pattern` says where a matrix may be non-zero, and counts multiply-adds. `bppsa_nb.scan.trace.Traced` is
nothing but its name, and records who was combined with whom.
"""

import numpy as np
from scipy import sparse

from bppsa_nb.machine.checks import with_repr
from bppsa_nb.operands import products
from bppsa_nb.operands.range import DynamicRangeError, narrow, threshold


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


@with_repr("operand", "exponent")
class Scaled:
    """An operand times a power of two, ``operand * 2**exponent``, the largest entry of each sample being in [1/2, 1).

    A sample that is zero stays as it is. Scaling by powers of two is exact, so nothing is rounded that the unscaled
    product would not have rounded. `fresh` says that nobody else needs the operand as it was: a product that was just
    made is scaled where it stands. Raises DynamicRangeError if the entries of one sample differ by so much that a
    product could drop some of them; and so does a product with a vector where it may have lost a term.
    """

    def __init__(self, operand, exponent=0, fresh=False):
        values, there = operand.values, operand.products
        peak, floor = there.magnitude_range(values)
        if not narrow(peak, floor).all():
            raise DynamicRangeError
        power = np.maximum(np.frexp(peak)[1], np.finfo(peak.dtype).minexp)  # `range.shift`
        self.operand = operand.with_values(there.scale(values, -power, values if fresh else None))
        self.exponent = exponent + power

    def __matmul__(self, other):
        if not isinstance(other, np.ndarray):
            return Scaled(self.operand @ other.operand, self.exponent + other.exponent, fresh=True)
        peak, floor = products.magnitude_range(other)
        power = np.frexp(peak)[1]
        product = self.operand @ np.ldexp(other, -power[..., None])
        if (~narrow(peak, floor)[..., None] & (np.abs(product) < threshold(other.dtype))).any():
            raise DynamicRangeError
        return np.ldexp(product, (self.exponent + power)[..., None])


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
