"""Sparse matrices of several samples that share one pattern: as links, and as operands whose products are planned."""

import numpy as np

from bppsa_nb.machine.checks import Fixed, check_floats, check_kind
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.operands import products
from bppsa_nb.operands.pattern import CSRPattern


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
        The pattern, and the plans made for its products. Links of the next iteration need no new plans if `of` makes
        them from this pattern.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not a CSR pattern of integers and that shape, or `values` not float32 or float64 rows of nnz.
    """

    _fixed = ("pattern", "values")

    def __init__(self, values, indices, indptr, shape):
        self._hold(CSRPattern(indptr, indices, shape), values)

    @classmethod
    def of(cls, pattern, values):
        """Put values, a np.ndarray [shape=(B, nnz)] or [shape=(1, nnz)], into a CSRPattern."""
        check_kind("pattern", pattern, CSRPattern, "a CSRPattern")
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


@with_repr("pattern", "values", "backend")
class Planned:
    """Sparse transposed Jacobians of several samples that share one pattern, which keeps the plans of its products.

    Values [shape=(B, nnz)] or [shape=(1, nnz)] are where the backend's form of `bppsa_nb.operands.products` has them.
    """

    def __init__(self, pattern, values, backend):
        self.pattern = pattern
        self.values = values
        self.backend = backend
        self.products = implementation(products.__name__, backend)

    @classmethod
    def of(cls, link, backend):
        """Make an operand of a `BatchedCSR`, with its values where the backend keeps them."""
        send = implementation(products.__name__, backend).send
        return cls(link.pattern, send(np.ascontiguousarray(link.values)), backend)

    def __reduce__(self):  # whoever receives a pickle puts the values where it computes
        values = self.values.copy_to_host() if hasattr(self.values, "copy_to_host") else self.values
        return Planned, (self.pattern, values, "numpy")

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):
            return self.products.apply(self.pattern, self.values, other)
        plan = self.pattern.times(other.pattern)
        return Planned(plan.pattern, self.products.product(plan, self.values, other.values), self.backend)

    def with_values(self, values):
        """Return an operand of the same pattern with other entries."""
        return Planned(self.pattern, values, self.backend)
