"""Sparsity patterns: where a matrix may be non-zero, known before any number is."""

import weakref

import numpy as np
from scipy import sparse

from bppsa_nb.machine.checks import Fixed, as_array, check_plain, is_integer


class CSRPattern(Fixed):
    """Where a matrix may be non-zero, in SciPy's CSR layout. Values belong to it by position.

    The pattern of a transposed Jacobian follows from the architecture alone (Section 3.3): it is made once and
    serves every iteration and every sample. Plans for its products are kept with it, so that they are made once, too.

    Parameters
    ----------
    indptr, indices : array_like of int [shape=(m + 1,)], [shape=(nnz,)]
        Row i has entries at columns ``indices[indptr[i]:indptr[i + 1]]``. Copied, as int32, or int64 for `indptr` if
        there are 2**31 entries or more; the copies are read-only.
    shape : tuple of int
        ``(m, n)``.

    Raises
    ------
    TypeError
        If `indptr` or `indices` do not hold integers.
    ValueError
        If they are no CSR pattern of that shape.
    """

    __slots__ = ("__weakref__", "_plans", "indices", "indptr", "on_device", "shape")
    _fixed = __slots__

    def __init__(self, indptr, indices, shape):
        sizes = shape if isinstance(shape, tuple) else ()
        if (
            len(sizes) != 2
            or not all(map(is_integer, sizes))
            or min(sizes) < 0
        ):
            raise ValueError(f"shape must be two integers (m, n), got {shape!r}")
        arrays = {"indptr": as_array("indptr", indptr), "indices": as_array("indices", indices)}
        for name, array in arrays.items():
            if array.dtype.kind not in "iu" and array.size:
                raise TypeError(f"{name} must hold integers, got {array.dtype}")
            if array.ndim != 1:
                raise ValueError(f"{name} must be 1-d, got shape {array.shape}")
        indptr, indices = arrays.values()
        (rows, columns), nnz = map(int, shape), len(indices)
        if len(indptr) != rows + 1:
            raise ValueError(f"indptr must have m + 1 = {rows + 1} entries, got {len(indptr)}")
        if indptr[0] != 0 or indptr[-1] != nnz or np.any(indptr[1:] < indptr[:-1]):
            raise ValueError(f"indptr must rise from 0 to the number of indices, {nnz}, got {indptr}")
        if nnz and not 0 <= indices.min() <= indices.max() < columns:
            wrong = indices[(indices < 0) | (indices >= columns)][0]
            raise ValueError(f"indices must be from 0 to n - 1 = {columns - 1}, got {wrong}")
        if columns > 2**31:
            raise ValueError(f"a pattern has at most 2**31 columns, got shape {shape}")
        self._hold(indptr.astype(np.int32 if nnz < 2**31 else np.int64), indices.astype(np.int32), (rows, columns), [])

    def _hold(self, indptr, indices, shape, on_device):
        # on_device: the index arrays once more, where `bppsa_nb.operands.products_cuda` has needed them.
        self._fix(indptr=indptr, indices=indices, shape=shape, on_device=on_device, _plans=weakref.WeakKeyDictionary())
        indptr.flags.writeable = indices.flags.writeable = False  # compiled code goes where they say

    @classmethod
    def made(cls, indptr, indices, shape):
        """Make a pattern of arrays that were made for it: they are neither checked nor copied.

        Parameters
        ----------
        indptr : np.ndarray of int [shape=(m + 1,)]
        indices : np.ndarray of int32 [shape=(nnz,)]
        shape : tuple of int

        Returns
        -------
        CSRPattern
        """
        pattern = object.__new__(cls)
        pattern._hold(indptr.astype(np.int32 if len(indices) < 2**31 else np.int64, copy=False), indices, shape, [])
        return pattern

    def __reduce__(self):
        # Copies and pickles make plans of their own.
        return CSRPattern.made, (self.indptr, self.indices, self.shape)

    @classmethod
    def of(cls, matrix):
        """Return the pattern of a SciPy CSR matrix: every stored entry, explicit zeros included.

        Raises
        ------
        TypeError
            If `matrix` is neither that nor a pattern already.
        """
        if isinstance(matrix, cls):
            return matrix
        if not sparse.issparse(matrix) or matrix.format != "csr":
            raise TypeError(f"expected a SciPy CSR matrix or a CSRPattern, got {type(matrix).__name__}")
        return cls(matrix.indptr, matrix.indices, matrix.shape)

    @property
    def nnz(self):
        """int: how many entries may be non-zero."""
        return len(self.indices)

    @property
    def sparsity(self):
        """float: the share of guaranteed zeros among all entries (Table 1)."""
        rows, columns = self.shape
        return 1 - self.nnz / (rows * columns)

    @property
    def canonical(self):
        """bool: whether every row's columns are sorted, and none occurs twice."""
        rises = np.diff(self.indices) > 0
        starts = self.indptr[1:-1]
        rises[starts[(starts > 0) & (starts < self.nnz)] - 1] = True  # from one row to the next, anything goes
        return bool(rises.all())

    def detached(self):
        """Return a pattern of the same arrays that keeps no plans."""
        twin = object.__new__(CSRPattern)
        twin._hold(self.indptr, self.indices, self.shape, self.on_device)
        return twin

    def times(self, other):
        """Plan the product with another pattern, once: the plan is kept as long as both patterns are.

        Parameters
        ----------
        other : CSRPattern

        Returns
        -------
        PlannedProduct
        """
        if not isinstance(other, CSRPattern):
            raise TypeError(f"other must be a CSRPattern, got {type(other).__name__}")
        if other not in self._plans:
            from bppsa_nb.operands.products import PlannedProduct

            self._plans[other] = PlannedProduct(self, other)
        return self._plans[other]

    def matrix(self, values):
        """Put values into the pattern.

        Parameters
        ----------
        values : np.ndarray [shape=(nnz,)]

        Returns
        -------
        scipy.sparse.csr_array [shape=(m, n)]
            With index arrays of its own: SciPy changes them in place where zeros are eliminated, say.

        Raises
        ------
        TypeError, ValueError
            For values that are no such array.
        """
        check_plain("values", values)
        if values.dtype.kind not in "biufc":
            raise TypeError(f"values must be numbers, got {values.dtype}")
        if values.shape != (self.nnz,):
            raise ValueError(f"values must have shape (nnz,) = ({self.nnz},), got {values.shape}")
        return sparse.csr_array((values, self.indices.copy(), self.indptr.copy()), shape=self.shape)

    def __repr__(self):
        return f"CSRPattern(shape={self.shape}, nnz={self.nnz})"
