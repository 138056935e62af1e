r"""The operator of the scan, :math:`A \diamond B = B A`, and the operands that know it.

The law: ⋄ is associative, ``(A ⋄ B) ⋄ C == A ⋄ (B ⋄ C)``, and **not** commutative. Its identity is the
identity matrix, which is never stored: `IDENTITY` is a symbol. An operand kind is a class whose
``__matmul__`` multiplies two of its kind (matrix times matrix) or one of its kind and a gradient
(matrix times vector); everything else is left to the scans in :mod:`bppsa_nb.scan`.

==========  =========================================================================
kind        an operand is
==========  =========================================================================
`Dense`     a matrix, or one matrix per sample
`CSR`       a sparse matrix
`Planned`   sparse matrices of several samples, one pattern; products by plan
`Scaled`    one of these times an exact power of two, so that products stay in range
`Affine`    ``x -> M x + c``: a matrix and the loss term that enters at that step
`Pattern`   where a matrix may be non-zero: counts multiply-adds
`Traced`    nothing but its name: records who was combined with whom
==========  =========================================================================

Gradients are plain arrays for the first five kinds.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from bppsa_nb.checks import Fixed, check_floats
from bppsa_nb.shown import shown
from bppsa_nb.sparse import products
from bppsa_nb.sparse.pattern import CSRPattern


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

    def __repr__(self):
        return shown(self, "matrix")

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return np.matmul(self.matrix, other[..., None])[..., 0]
        product = self.matrix @ other.matrix
        return CSR(product) if sparse.issparse(product) else Dense(product)

    def extent(self):
        """Return the largest and the smallest non-zero size of each sample's entries."""
        return products.extent(self._values)

    def scaled(self, exponents, fresh=False):
        """Return the operand times a power of two per sample; `fresh` says that its entries may be overwritten."""
        values = products.scale(self._values, exponents, out=self._values if fresh else None)
        return Dense(values.reshape(self.matrix.shape))

    @property
    def _values(self):
        return self.matrix.reshape(*self.matrix.shape[:-2], -1)


class CSR:
    """A sparse transposed Jacobian.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array [shape=(m, n)]
    """

    def __init__(self, matrix):
        self.matrix = matrix

    def __repr__(self):
        return shown(self, "matrix")

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.matrix @ other
        product = self.matrix @ other.matrix
        return CSR(product) if sparse.issparse(product) else Dense(product)

    def extent(self):
        """Return the largest and the smallest non-zero size of the stored entries."""
        return products.extent(self.matrix.data)

    def scaled(self, exponents, fresh=False):
        """Return the operand times a power of two; `fresh` says that its entries may be overwritten."""
        values = products.scale(self.matrix.data, exponents, out=self.matrix.data if fresh else None)
        return CSR(sparse.csr_array((values, self.matrix.indices, self.matrix.indptr), shape=self.matrix.shape))


class Planned:
    """Sparse transposed Jacobians of several samples that share one pattern; their products are planned once.

    Parameters
    ----------
    pattern : CSRPattern [shape=(m, n)]
        Keeps the plans of its products; what is made anew every time is planned anew every time.
    values : array [shape=(B, nnz)] or [shape=(1, nnz)]
        Of each sample, or shared by all: where `backend` keeps them, see `bppsa_nb.sparse.products.twins`.
    backend : {"numpy", "cpu", "cuda"}
    """

    def __init__(self, pattern, values, backend):
        self.pattern = pattern
        self.values = values
        self.backend = backend
        self._twin = products.twins(backend)

    def __repr__(self):
        return shown(self, "pattern", "values", "backend")

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self._twin.apply(self.pattern, self.values, other)
        plan = self.pattern.times(other.pattern)
        return Planned(plan.pattern, self._twin.product(plan, self.values, other.values), self.backend)

    def extent(self):
        """Return the largest and the smallest non-zero size of each sample's entries."""
        return self._twin.extent(self.values)

    def scaled(self, exponents, fresh=False):
        """Return the operand times a power of two per sample; `fresh` says that its entries may be overwritten."""
        values = self._twin.scale(self.values, exponents, self.values if fresh else None)
        return Planned(self.pattern, values, self.backend)


class BatchedCSR(Fixed):
    """Sparse matrices of several samples that share one pattern.

    Parameters
    ----------
    values : np.ndarray [shape=(B, nnz)] or [shape=(1, nnz)]
        The entries of each sample, in the pattern's order, or those that all samples share.
    indices, indptr : np.ndarray of int [shape=(nnz,)], [shape=(m + 1,)]
        The pattern, in SciPy's CSR layout.
    shape : tuple of int
        ``(m, n)``, the shape of one sample's matrix.

    Attributes
    ----------
    pattern : CSRPattern
        The pattern, and the plans made for its products. Links of the next iteration that are made of it by
        `of` need no new plans.

    Raises
    ------
    TypeError
        If the pattern does not consist of integers, or `values` not of float32 or float64.
    ValueError
        If it is no CSR pattern of that shape, or `values` does not have one row of nnz numbers per sample.
    """

    _fixed = ("pattern", "values")

    def __init__(self, values, indices, indptr, shape):
        self._hold(CSRPattern(indptr, indices, shape), values)

    @classmethod
    def of(cls, pattern, values):
        """Put values into a pattern.

        Parameters
        ----------
        pattern : CSRPattern
        values : np.ndarray [shape=(B, nnz)] or [shape=(1, nnz)]

        Returns
        -------
        BatchedCSR
        """
        if not isinstance(pattern, CSRPattern):
            raise TypeError(f"pattern must be a CSRPattern, got {type(pattern).__name__}")
        link = object.__new__(cls)
        link._hold(pattern, values)
        return link

    def _hold(self, pattern, values):
        check_floats("values", values, ("B", "nnz"))
        if values.shape[1] != pattern.nnz:
            raise ValueError(f"values must have shape (B, nnz) with nnz = {pattern.nnz}, got {values.shape}")
        self._fix(pattern=pattern, values=values)

    @property
    def shape(self):
        """Shape ``(m, n)`` of one sample's matrix."""
        return self.pattern.shape

    def __repr__(self):
        return f"BatchedCSR(batch={len(self.values)}, pattern={self.pattern})"


class Scaled:
    """An operand times a power of two, the largest stored entry of each sample being in [1/2, 1).

    Products of hundreds of Jacobians leave the range of a float long before the gradient does. Scaling by
    powers of two is exact, so nothing is rounded that the unscaled product would not have rounded.

    Parameters
    ----------
    operand : Dense, CSR or Planned
    exponent : np.ndarray of int [shape=(...)] or int
        The operand stands for ``operand * 2**exponent``.
    fresh : bool
        Whether nobody else needs the operand as it was: a product that was just made is scaled where it stands.

    Raises
    ------
    RangeLost
        If the entries of one sample differ by so much that a product could drop some of them.
    """

    def __init__(self, operand, exponent=0, fresh=False):
        peak, floor = operand.extent()
        if not _narrow(peak, floor):
            raise RangeLost
        shift = np.maximum(np.frexp(peak)[1], np.finfo(peak.dtype).minexp)
        self.operand = operand.scaled(-shift, fresh)
        self.exponent = exponent + shift

    def __repr__(self):
        return shown(self, "operand", "exponent")

    def __matmul__(self, other):
        if not isinstance(other, np.ndarray):
            return Scaled(self.operand @ other.operand, self.exponent + other.exponent, fresh=True)
        peak, floor = products.extent(other)
        shift = np.frexp(peak)[1]
        product = self.operand @ np.ldexp(other, -shift[..., None])
        info = np.finfo(other.dtype)
        if not _narrow(peak, floor) and np.abs(product).min(initial=1) < np.ldexp(1.0, info.minexp + info.nmant + 8):
            raise RangeLost
        return np.ldexp(product, (self.exponent + shift)[..., None])


def _narrow(peak, floor):
    # With every entry within half of the dtype's exponent range below the largest, no term of a product of two
    # such operands underflows.
    return not np.any(floor < np.ldexp(peak, np.finfo(peak.dtype).minexp // 2))


class Affine:
    """The map ``x -> M x + c``: a transposed Jacobian and the loss term that enters below it.

    Parameters
    ----------
    linear : Dense, CSR, Planned or Scaled
        M.
    offset : np.ndarray [shape=(..., m)]
        c.
    """

    def __init__(self, linear, offset):
        self.linear = linear
        self.offset = offset

    def __repr__(self):
        return shown(self, "linear", "offset")

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.linear @ other + self.offset
        # M_b (M_a x + c_a) + c_b
        return Affine(self.linear @ other.linear, self.linear @ other.offset + self.offset)


class Cost(NamedTuple):
    """What a product of patterns costs.

    Attributes
    ----------
    kind : {"mm", "mv"}
    multiply_adds : int
    entries : int
        Of the product, as they are stored.
    """

    kind: str
    multiply_adds: int
    entries: int


class Pattern:
    """Where an operand may be non-zero. Multiplying patterns counts what the numbers would cost.

    Parameters
    ----------
    structure : CSRPattern [shape=(m, n)] or None
        None stands for a gradient, taken as dense.
    costs : list of Cost
        Every product appends its own.
    """

    def __init__(self, structure, costs):
        self.structure = structure
        self.costs = costs

    def __repr__(self):
        return shown(self, "structure")

    def __matmul__(self, other):
        if other.structure is None:
            self.costs.append(Cost("mv", self.structure.nnz, self.structure.shape[0]))
            return Pattern(None, self.costs)
        plan = self.structure.times(other.structure)
        self.costs.append(Cost("mm", plan.multiply_adds, plan.pattern.nnz))
        return Pattern(plan.pattern, self.costs)


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
