"""Sparsity patterns, and plans of their products: what is known before any number is.

A general sparse product first finds out which entries of the result exist, then merges indices while it multiplies.
Patterns of transposed Jacobians are known ahead of training, so both can be done ahead of it, too (Section 3.3):
the *symbolic phase* makes a `PlannedProduct`, the *numeric phase* runs it, for one matrix or for those of a batch.
Without any number, patterns are operands, too, and count what their products would cost.
"""

import weakref
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from bppsa_nb.machine import backends, checks
from bppsa_nb.machine.arguments import Backend, checked
from bppsa_nb.machine.checks import short_repr, with_repr
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.operands import products

Length = Annotated[int, ">= 0, <= 2147483648"]  # 2**31: 32 bits hold the number of the last column
Matrix: TypeAlias = sparse.csr_array | sparse.csr_matrix


class CSRPattern(checks.Fixed):
    """A sparsity pattern: the places where a matrix may be non-zero, in SciPy's CSR layout.

    Values are stored elsewhere, in the order of `indices`. The pattern of a transposed Jacobian depends only on the
    architecture (Section 3.3), so it is made once, for every iteration and sample, and so are plans of its products.

    Parameters
    ----------
    indptr, indices
        Row i has entries at columns ``indices[indptr[i]:indptr[i + 1]]``. Copied, as int32, or int64 for `indptr` if
        there are 2**31 entries or more; the copies are read-only.
    shape
        Rows and columns, ``(m, n)``.
    """

    __slots__ = ("__weakref__", "_plans", "indices", "indptr", "on_device", "shape")
    _fixed = __slots__

    @checked
    def __init__(
        self, indptr: Annotated[ArrayLike, "int[i]"], indices: Annotated[ArrayLike, "int[...]"],
        shape: tuple[Length, Length],
    ):  # fmt: skip
        if indices.ndim != 1:
            raise checks.wrong_shape("indices", indices, ("nnz",))
        (rows, columns), nnz = shape, len(indices)
        if len(indptr) != rows + 1:
            raise ValueError(f"indptr must have m + 1 = {rows + 1} entries, got {len(indptr)}")
        if indptr[0] != 0 or indptr[-1] != nnz or np.any(indptr[1:] < indptr[:-1]):
            raise ValueError(f"indptr must rise from 0 to the number of indices, {nnz}, got {indptr}")
        if nnz and not 0 <= indices.min() <= indices.max() < columns:
            wrong = indices[(indices < 0) | (indices >= columns)][0]
            raise ValueError(f"indices must be from 0 to n - 1 = {columns - 1}, got {wrong}")
        self._hold(indptr.astype(np.int32 if nnz < 2**31 else np.int64), indices.astype(np.int32), (rows, columns), [])

    def _hold(self, indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int], on_device: list):
        # on_device: the index arrays once more, where `products_cuda` has needed them.
        self.indptr, self.indices, self.shape, self.on_device = indptr, indices, shape, on_device
        self._plans = weakref.WeakKeyDictionary()
        indptr.flags.writeable = indices.flags.writeable = False  # compiled code goes where they say

    @classmethod
    def made(cls, indptr, indices, shape) -> "CSRPattern":
        """Make a pattern of arrays that were made for it, `indices` of int32: they are neither checked nor copied."""
        pattern = object.__new__(cls)
        pattern._hold(indptr.astype(np.int32 if len(indices) < 2**31 else np.int64, copy=False), indices, shape, [])
        return pattern

    def __reduce__(self):
        # Copies and pickles make plans of their own.
        return CSRPattern.made, (self.indptr, self.indices, self.shape)

    @classmethod
    def of(cls, matrix: "Matrix | CSRPattern") -> "CSRPattern":
        """Return the pattern of a SciPy CSR matrix, explicit zeros included."""
        if isinstance(matrix, cls):
            return matrix
        if not isinstance(matrix, Matrix):
            raise TypeError(f"matrix must be a SciPy CSR matrix or a CSRPattern, got {type(matrix).__name__}")
        return cls(matrix.indptr, matrix.indices, matrix.shape)

    @property
    def nnz(self) -> int:
        """How many entries may be non-zero."""
        return len(self.indices)

    @property
    def sparsity(self) -> float:
        """The share of guaranteed zeros among all entries (Table 1)."""
        rows, columns = self.shape
        return 1 - self.nnz / (rows * columns)

    @property
    def canonical(self) -> bool:
        """Whether every row's columns are sorted, and none occurs twice."""
        return sparse.csr_array((self.indices, self.indices, self.indptr), shape=self.shape).has_canonical_format

    def detached(self) -> "CSRPattern":
        """Return a pattern of the same arrays that keeps no plans."""
        detached = object.__new__(CSRPattern)
        detached._hold(self.indptr, self.indices, self.shape, self.on_device)
        return detached

    def times(self, other: "CSRPattern") -> "PlannedProduct":
        """Plan the product with another pattern, once: the plan is kept as long as both patterns are."""
        checks.check_kind("other", other, CSRPattern, "a CSRPattern")
        if other not in self._plans:
            self._plans[other] = PlannedProduct(self, other)
        return self._plans[other]

    @checked
    def matrix(self, values: Annotated[np.ndarray, "any[...]"]) -> sparse.csr_array:
        """Put values into the pattern: a matrix [shape=(m, n)].

        Its index arrays are its own: SciPy changes them in place where zeros are eliminated, say.
        """
        if values.dtype.kind not in "biufc":
            raise TypeError(f"values must be numbers, got {values.dtype}")
        if values.shape != (self.nnz,):
            raise checks.wrong_shape("values", values, (self.nnz,))
        return sparse.csr_array((values, self.indices.copy(), self.indptr.copy()), shape=self.shape)

    def __repr__(self):
        return f"CSRPattern(shape={self.shape}, nnz={self.nnz})"


class BatchedCSR(checks.Fixed):
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
            raise checks.wrong_shape("values", values, ("B", pattern.nnz))
        self.pattern, self.values = pattern, values

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(m, n)`` of one sample's matrix."""
        return self.pattern.shape

    def __repr__(self):
        return f"BatchedCSR(batch={len(self.values)}, pattern={self.pattern})"


@with_repr("left", "right", "pattern", "kind", "multiply_adds")
class PlannedProduct(checks.Fixed):
    """The product of two sparse matrices, planned from their patterns.

    Parameters
    ----------
    a, b
        Patterns [shape=(m, k)] and [shape=(k, n)]. Of matrices, only the patterns are read: every stored entry,
        explicit zeros included.

    Attributes
    ----------
    left, right : CSRPattern
        The patterns of `a` and `b`.
    pattern : CSRPattern [shape=(m, n)]
        That of the product, indices sorted.
    multiply_adds : int
        How many multiplications, each with an addition, the numeric phase performs per sample, if no value is zero.
    kind : {"rows", "columns", "sums"}
        ``"rows"`` scales rows of `b`, ``"columns"`` columns of `a`, as products with a diagonal matrix do: one
        multiplication per entry. ``"sums"`` is everything else.
    right_canonical : bool
        Whether the columns of every row of `b` are sorted, and none occurs twice.
    places : list
        What `products_cpu.places` found, once a product has needed it: where in the result each multiply-add goes.

    Raises
    ------
    MemoryError
        If the product's pattern does not fit into memory.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> a = sparse.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]]))
    >>> b = sparse.csr_array(np.array([[0.0, 1.0], [5.0, 0.0]]))
    >>> plan = PlannedProduct(a, b)
    >>> plan.multiply_adds, plan.pattern
    (3, CSRPattern(shape=(2, 2), nnz=3))
    >>> plan.pattern.matrix(plan(a.data, b.data)).toarray()
    array([[10.,  1.],
           [15.,  0.]])
    """

    _fixed = ("left", "right", "right_canonical", "pattern", "multiply_adds", "kind", "places")

    kind: Literal["rows", "columns", "sums"]

    @checked
    def __init__(self, a: Matrix | CSRPattern, b: Matrix | CSRPattern):
        from bppsa_nb.operands.products_cpu import entries

        a, b = map(CSRPattern.of, (a, b))
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"b must have {a.shape[1]} rows to be multiplied by a {a.shape}, got shape {b.shape}")
        multiply_adds = int(np.diff(b.indptr)[a.indices].sum(dtype=np.int64))
        pattern = CSRPattern.made(*entries(a, b, multiply_adds), (a.shape[0], b.shape[1]))
        canonical, kind = b.canonical, "sums"
        if multiply_adds == pattern.nnz:
            # Of a product that is both, columns: its factors lie in the order in which they are read.
            if np.all(np.diff(b.indptr) == 1) and np.array_equal(b.indices[a.indices], pattern.indices):
                kind = "columns"
            elif np.diff(a.indptr).max(initial=0) <= 1 and canonical:
                kind = "rows"
        # The plan lives as long as the pattern it is kept with, so it must not keep the other one alive.
        self.left, self.right, self.right_canonical = a.detached(), b.detached(), canonical
        self.pattern, self.multiply_adds, self.kind, self.places = pattern, multiply_adds, kind, []

    @checked
    def performed(self, a: Annotated[np.ndarray, "float[...]"]) -> int:
        """Count multiply-adds for one sample's values of the left matrix; zeros take none where entries are sums."""
        if a.shape != (self.left.nnz,):
            raise checks.wrong_shape("a", a, (self.left.nnz,))
        taken = self.left.indices[a != 0] if self.kind == "sums" else self.left.indices
        return int(np.diff(self.right.indptr)[taken].sum(dtype=np.int64))

    @checked
    def __call__(
        self, a: Annotated[np.ndarray, "float[...]"], b: Annotated[np.ndarray, "float[...]"],
        backend: Backend = "auto", out: Annotated[np.ndarray, "float[...]"] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Compute the values of the product: the numeric phase.

        Parameters
        ----------
        a, b
            Finite values (nnz,) or (B, nnz), in the order of the patterns, which SciPy changes where it sorts indices.
            If one of the two has no axis of samples, or a single sample, all samples of the other share it.
        backend
            What computes, as in `bppsa_nb.backprop`.
        out
            Where to put them: contiguous, not overlapping `a` or `b`.

        Returns
        -------
        np.ndarray [shape=(..., plan.pattern.nnz)]
            `out`, if given.
        """
        for name, values, pattern in (("a", a, self.left), ("b", b, self.right)):
            if values.ndim not in (1, 2) or values.shape[-1] != pattern.nnz:
                raise checks.wrong_shape(name, values, (pattern.nnz,), ("B", pattern.nnz))
        checks.check_finite(a=a, b=b)  # the product might not show it, for zeros in the other
        batches = {len(values) for values in (a, b) if values.ndim == 2}
        if len(batches - {1}) > 1:
            raise ValueError(f"a and b must have as many samples as each other, got {len(a)} and {len(b)}")
        shape = (*list(batches - {1} or batches), self.pattern.nnz)
        if out is None:
            out = np.empty(shape, a.dtype)
        elif out.shape != shape or not out.flags.carray:
            raise ValueError(f"out must be contiguous and writeable, of shape {shape}, got {short_repr(out)}")
        elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
            raise ValueError("out must not share memory with a or b: they are read while it is written")
        there = implementation(products.__name__, backends.resolve(backend))
        both = (there.send(np.ascontiguousarray(np.atleast_2d(values))) for values in (a, b))
        with np.errstate(under="ignore"):  # whatever the caller wants to hear of
            there.product(self, *both, np.atleast_2d(out))
        return out


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


class Cost(NamedTuple):
    """What a product of patterns costs; its kind is "mm" or "mv", its entries are those that are stored."""

    kind: str
    multiply_adds: int
    entries: int


@with_repr("structure")
class Pattern:
    """Where an operand may be non-zero: a `CSRPattern`, or None for a gradient, taken as dense.

    Multiplying patterns counts what the numbers would cost: every product appends a `Cost` to `costs`.
    """

    def __init__(self, structure, costs):
        self.structure = structure
        self.costs = costs

    def __matmul__(self, other):
        if other.structure is None:
            self.costs.append(Cost("mv", self.structure.nnz, self.structure.shape[0]))
            return Pattern(None, self.costs)
        plan = self.structure.times(other.structure)
        self.costs.append(Cost("mm", plan.multiply_adds, plan.pattern.nnz))
        return Pattern(plan.pattern, self.costs)
