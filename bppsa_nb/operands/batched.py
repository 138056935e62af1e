"""Sparse matrices of several samples that share one pattern: as links, and as operands whose products are planned."""

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import checked
from bppsa_nb.machine.checks import Fixed, wrong_shape
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.operands import products
from bppsa_nb.operands.pattern import CSRPattern, Length


class BatchedCSR(Fixed):
    """Sparse matrices of several samples that share one pattern.

    Parameters
    ----------
    values
        A row of entries for each sample, in the pattern's order, or a single row, which all samples share.
    indices, indptr, shape
        The pattern, in SciPy's CSR layout; see `bppsa_nb.sparse.CSRPattern`.

    Attributes
    ----------
    pattern : CSRPattern
        The pattern, and the plans made for its products. Links of the next iteration need no new plans if `of` makes
        them from this pattern.
    """

    _fixed = ("pattern", "values")

    @checked
    def __init__(
        self, values: Annotated[np.ndarray, "float[B, ...]"], indices: Annotated[ArrayLike, "int[...]"],
        indptr: Annotated[ArrayLike, "int[i]"], shape: tuple[Length, Length],
    ):  # fmt: skip
        self._hold(CSRPattern(indptr, indices, shape), values)

    @classmethod
    @checked
    def of(cls, pattern: CSRPattern, values: Annotated[np.ndarray, "float[B, ...]"]) -> "BatchedCSR":
        """Put a row of values for each sample, or a single row for all, into a pattern."""
        link = object.__new__(cls)
        link._hold(pattern, values)
        return link

    def _hold(self, pattern: CSRPattern, values: np.ndarray):
        if values.shape[1:] != (pattern.nnz,):
            raise wrong_shape("values", values, ("B", pattern.nnz))
        self.pattern, self.values = pattern, values

    @property
    def shape(self) -> tuple[int, int]:
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
