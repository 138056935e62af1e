r"""The operator of the scan, :math:`A \diamond B = B A`, and the operands that know it.

The law: ⋄ is associative, ``(A ⋄ B) ⋄ C == A ⋄ (B ⋄ C)``, and **not** commutative. Its identity is the
identity matrix, which is never stored: `IDENTITY` is a symbol. An operand kind is a class whose
``__matmul__`` multiplies two of its kind (matrix times matrix) or one of its kind and a gradient
(matrix times vector); everything else is left to the scans in :mod:`bppsa_nb.scan`.

==========  =========================================================================
kind        an operand is
==========  =========================================================================
`Dense`     a matrix, or one matrix per sample
`CSR`       a sparse matrix (several samples: one block-diagonal matrix)
`Scaled`    one of these times an exact power of two, so that products stay in range
`Affine`    ``x -> M x + c``: a matrix and the loss term that enters at that step
`Pattern`   where a matrix may be non-zero: counts multiply-adds
`Traced`    nothing but its name: records who was combined with whom
==========  =========================================================================

Gradients are plain arrays for the first four kinds.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse


class _Identity:
    """The identity of ⋄, as a symbol: the green squares of Figure 3."""

    def __repr__(self):
        return "IDENTITY"


IDENTITY = _Identity()


def diamond(a, b):
    """Combine two operands: ``A ⋄ B = B A`` (Section 3.1).

    Parameters
    ----------
    a : operand or gradient or IDENTITY
        The operand that is closer to the loss.
    b : operand or IDENTITY
        The next one.

    Returns
    -------
    operand or gradient
        ``b @ a``: a gradient if `a` is one.
    """
    if a is IDENTITY:
        return b
    if b is IDENTITY:
        return a
    return b @ a


class RangeLost(ArithmeticError):
    """A product's entries spread over more powers of two than its dtype can carry."""


class Dense:
    """A dense transposed Jacobian, or one for each sample.

    Parameters
    ----------
    matrix : np.ndarray [shape=(..., m, n)]
        Leading axes are samples; they broadcast against those of a gradient [shape=(..., n)].
    """

    def __init__(self, matrix):
        self.matrix = matrix

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return np.matmul(self.matrix, other[..., None])[..., 0]
        product = self.matrix @ other.matrix
        return CSR(product) if sparse.issparse(product) else Dense(product)

    @property
    def values(self):
        """np.ndarray [shape=(..., m * n)]: the stored entries."""
        return self.matrix.reshape(*self.matrix.shape[:-2], -1)

    def with_values(self, values):
        """Return the same kind of operand with other entries."""
        return Dense(values.reshape(self.matrix.shape))


class CSR:
    """A sparse transposed Jacobian.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array [shape=(m, n)]
    """

    def __init__(self, matrix):
        self.matrix = matrix

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.matrix @ other
        product = self.matrix @ other.matrix
        return CSR(product) if sparse.issparse(product) else Dense(product)

    @property
    def values(self):
        """np.ndarray [shape=(nnz,)]: the stored entries."""
        return self.matrix.data

    def with_values(self, values):
        """Return the same kind of operand with other entries."""
        return CSR(sparse.csr_array((values, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape))


@dataclass(frozen=True)
class BatchedCSR:
    """Sparse matrices of several samples that share one pattern.

    Parameters
    ----------
    values : np.ndarray [shape=(B, nnz)]
        The entries of each sample, in the pattern's order.
    indices, indptr : np.ndarray of int [shape=(nnz,)], [shape=(m + 1,)]
        The pattern, in SciPy's CSR layout.
    shape : tuple of int
        ``(m, n)``, the shape of one sample's matrix.

    Raises
    ------
    TypeError
        If the pattern does not consist of integers.
    ValueError
        If it is no CSR pattern of that shape, or `values` does not have one row of nnz numbers per sample.
    """

    values: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple

    def __post_init__(self):
        sizes = self.shape if isinstance(self.shape, tuple) else ()
        if len(sizes) != 2 or not all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes):
            raise ValueError(f"shape must be two integers (m, n), got {self.shape!r}")
        for name in ("indices", "indptr"):
            value = np.asarray(getattr(self, name))
            if value.dtype.kind not in "iu":
                raise TypeError(f"{name} must hold integers, got {value.dtype}")
            if value.ndim != 1:
                raise ValueError(f"{name} must be 1-d, got shape {value.shape}")
            object.__setattr__(self, name, value)
        (rows, columns), nnz = self.shape, len(self.indices)
        if len(self.indptr) != rows + 1:
            raise ValueError(f"indptr must have m + 1 = {rows + 1} entries, got {len(self.indptr)}")
        if self.indptr[0] != 0 or self.indptr[-1] != nnz or np.any(self.indptr[1:] < self.indptr[:-1]):
            raise ValueError(f"indptr must rise from 0 to the number of indices, {nnz}, got {self.indptr}")
        if nnz and not 0 <= self.indices.min() <= self.indices.max() < columns:
            wrong = self.indices[(self.indices < 0) | (self.indices >= columns)][0]
            raise ValueError(f"indices must be from 0 to n - 1 = {columns - 1}, got {wrong}")
        if not isinstance(self.values, np.ndarray) or self.values.ndim != 2 or self.values.shape[1] != nnz:
            got = getattr(self.values, "shape", type(self.values).__name__)
            raise ValueError(f"values must be an array of shape (B, nnz) with nnz = {nnz}, got {got}")

    def block_diagonal(self):
        """Return all samples as one operand: a block-diagonal `CSR` [shape=(B * m, B * n)]."""
        (rows, columns), (batch, nnz) = self.shape, self.values.shape
        starts = np.arange(batch)[:, None]
        indices = (np.asarray(self.indices, dtype=np.int64) + starts * columns).ravel()
        ends = np.asarray(self.indptr, dtype=np.int64)[1:] + starts * nnz
        indptr = np.concatenate([[0], ends.ravel()])
        return CSR(sparse.csr_array((self.values.ravel(), indices, indptr), shape=(batch * rows, batch * columns)))


def _peak(values):
    return np.abs(values).max(axis=-1, initial=0)


def _narrow(values, peak):
    # With every entry within half of the dtype's exponent range below the largest, no term of a product of two
    # such operands underflows.
    half = np.finfo(values.dtype).minexp // 2
    return not np.any((np.abs(values) < np.ldexp(peak, half)[..., None]) & (values != 0))


class Scaled:
    """An operand times a power of two, the largest stored entry of each sample being in [1/2, 1).

    Products of hundreds of Jacobians leave the range of a float long before the gradient does. Scaling by
    powers of two is exact, so nothing is rounded that the unscaled product would not have rounded.

    Parameters
    ----------
    operand : Dense or CSR
    exponent : np.ndarray of int [shape=(...)] or int
        The operand stands for ``operand * 2**exponent``.

    Raises
    ------
    RangeLost
        If the entries of one sample differ by so much that a product could drop some of them.
    """

    def __init__(self, operand, exponent=0):
        peak = _peak(operand.values)
        shift = np.frexp(peak)[1]
        if not _narrow(operand.values, peak):
            raise RangeLost
        self.operand = operand.with_values(np.ldexp(operand.values, -shift[..., None]))
        self.exponent = exponent + shift

    def __matmul__(self, other):
        if not isinstance(other, np.ndarray):
            return Scaled(self.operand @ other.operand, self.exponent + other.exponent)
        peak = _peak(other)
        shift = np.frexp(peak)[1]
        product = self.operand @ np.ldexp(other, -shift[..., None])
        info = np.finfo(other.dtype)
        if not _narrow(other, peak) and np.abs(product).min(initial=1) < np.ldexp(1.0, info.minexp + info.nmant + 8):
            raise RangeLost
        return np.ldexp(product, (self.exponent + shift)[..., None])


class Affine:
    """The map ``x -> M x + c``: a transposed Jacobian and the loss term that enters below it.

    Parameters
    ----------
    linear : Dense, CSR or Scaled
        M.
    offset : np.ndarray [shape=(..., m)]
        c.
    """

    def __init__(self, linear, offset):
        self.linear = linear
        self.offset = offset

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.linear @ other + self.offset
        # M_b (M_a x + c_a) + c_b
        return Affine(self.linear @ other.linear, self.linear @ other.offset + self.offset)


class Pattern:
    """Where an operand may be non-zero. Multiplying patterns counts what the numbers would cost.

    Parameters
    ----------
    structure : scipy.sparse.csr_array [shape=(m, n)] or None
        Stored entries mark possible non-zeros; None stands for a gradient, taken as dense.
    costs : list
        Every product appends ``(kind, multiply_adds)`` to it, kind being ``"mm"`` or ``"mv"``.
    """

    def __init__(self, structure, costs):
        self.structure = structure
        self.costs = costs

    def __matmul__(self, other):
        if other.structure is None:
            self.costs.append(("mv", self.structure.nnz))
            return Pattern(None, self.costs)
        in_column = np.bincount(self.structure.indices, minlength=self.structure.shape[1])
        in_row = np.diff(other.structure.indptr)
        self.costs.append(("mm", int(in_column @ in_row)))
        product = self.structure.astype(bool) @ other.structure.astype(bool)
        return Pattern(sparse.csr_array(product), self.costs)


class Traced:
    """An operand that multiplies nothing and remembers everything.

    Parameters
    ----------
    kind : {"matrix", "vector"}
    span : tuple of int
        First and last position of Equation 5's array that went into it.
    log : list
        Every product appends itself to it, in the order of execution.
    parents : tuple of Traced
        ``(a, b)`` for ``a ⋄ b``; empty for an input.
    """

    __slots__ = ("kind", "log", "parents", "span")

    def __init__(self, kind, span, log, parents=()):
        self.kind = kind
        self.span = span
        self.log = log
        self.parents = parents

    def __matmul__(self, other):
        if other.span[1] + 1 != self.span[0] or self.kind == "vector":
            raise ValueError(f"{other!r} ⋄ {self!r} is not a product of neighbors in order")
        product = Traced(other.kind, (other.span[0], self.span[1]), self.log, (other, self))
        self.log.append(product)
        return product

    @property
    def product(self):
        """str: ``"mm"`` for a matrix-matrix, ``"mv"`` for a matrix-vector product, ``""`` for an input."""
        if not self.parents:
            return ""
        return "mv" if self.kind == "vector" else "mm"

    def __repr__(self):
        first, last = self.span
        return f"{self.kind}[{first}]" if first == last else f"{self.kind}[{first}:{last}]"
