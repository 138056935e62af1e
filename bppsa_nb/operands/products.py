"""Sparse products by plan: what follows from the patterns is found once, every product after that only fills values.

A general sparse product first finds out which entries of the result exist, then merges indices while it multiplies.
Patterns of transposed Jacobians are known ahead of training, so both can be done ahead of it, too (Section 3.3):
the *symbolic phase* makes a `PlannedProduct`, the *numeric phase* runs it, for one matrix or for those of a batch.
"""

import numpy as np
from scipy import sparse

from bppsa_nb.machine import backends, memory
from bppsa_nb.machine.checks import Fixed, all_finite, check_finite, check_floats
from bppsa_nb.machine.shown import shown
from bppsa_nb.machine.twins import twin
from bppsa_nb.operands.pattern import CSRPattern


class PlannedProduct(Fixed):
    """The product of two sparse matrices, planned from their patterns.

    Parameters
    ----------
    a, b : CSRPattern or scipy.sparse.csr_array [shape=(m, k)], [shape=(k, n)]
        Of matrices, only the patterns are read: every stored entry, explicit zeros included.

    Attributes
    ----------
    left, right : CSRPattern
        The patterns of `a` and `b`.
    pattern : CSRPattern [shape=(m, n)]
        That of the product, indices sorted.
    multiply_adds : int
        How many multiplications, each with an addition, the numeric phase performs per sample: all of them, if no
        value is zero; see `performed`.
    kind : {"rows", "columns", "sums"}
        ``"rows"`` scales rows of `b`, ``"columns"`` columns of `a`, as products with a diagonal matrix do: one
        multiplication per entry. ``"sums"`` is everything else.
    right_canonical : bool
        Whether the columns of every row of `b` are sorted, and none occurs twice.

    Raises
    ------
    TypeError
        If `a` or `b` is of another type.
    ValueError
        If their shapes do not chain.
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

    _fixed = ("left", "right", "right_canonical", "pattern", "multiply_adds", "kind")

    def __init__(self, a, b):
        from bppsa_nb.operands import products_cpu as cpu

        a, b = _pattern("a", a), _pattern("b", b)
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"b must have {a.shape[1]} rows to be multiplied by a {a.shape}, got shape {b.shape}")
        shape = (a.shape[0], b.shape[1])
        lengths = np.diff(b.indptr)[a.indices]
        multiply_adds = int(lengths.sum(dtype=np.int64))
        ends = np.cumsum(cpu.count(a, b, multiply_adds), dtype=np.int64)
        nnz = int(ends[-1]) if len(ends) else 0
        memory.require(4 * nnz, f"the pattern of a product of shape {shape} with {nnz} entries")
        indptr = np.concatenate([[0], ends]).astype(np.int32 if nnz < 2**31 else np.int64)
        pattern = CSRPattern.made(indptr, cpu.columns(a, b, multiply_adds, indptr), shape)
        canonical, kind = b.canonical, "sums"
        if multiply_adds == nnz:
            if np.diff(a.indptr).max(initial=0) <= 1 and canonical:
                kind = "rows"
            elif np.all(np.diff(b.indptr) == 1) and np.array_equal(b.indices[a.indices], pattern.indices):
                kind = "columns"
        # The plan lives as long as the pattern it is kept with, so it must not keep the other one alive.
        self._fix(left=a.detached(), right=b.detached(), right_canonical=canonical)
        self._fix(pattern=pattern, multiply_adds=multiply_adds, kind=kind)

    def __repr__(self):
        return shown(self, "left", "right", "pattern", "kind", "multiply_adds")

    def performed(self, a):
        """Count the multiply-adds that the numeric phase performs for certain values.

        Where entries are sums, an entry of `a` that happens to be zero is passed over, as are those of every pixel
        that max-pooling did not choose. In products of the other kinds that would take longer than to multiply.

        Parameters
        ----------
        a : np.ndarray [shape=(nnz,)]
            One sample's values of the left matrix.

        Returns
        -------
        int
            At most `multiply_adds`.
        """
        check_floats("a", a)
        if a.shape != (self.left.nnz,):
            raise ValueError(f"a must have shape (nnz,) = ({self.left.nnz},), got {a.shape}")
        if self.kind != "sums":
            return self.multiply_adds
        return int(np.diff(self.right.indptr)[self.left.indices[a != 0]].sum(dtype=np.int64))

    def __call__(self, a, b, backend="auto", out=None):
        """Compute the values of the product: the numeric phase.

        Parameters
        ----------
        a, b : np.ndarray [shape=(..., nnz)]
            Finite values in the order of the patterns, which SciPy changes where it sorts indices; both float32 or both
            float64. A leading axis are samples; one of the two may do without it, or have a single one, and then is
            shared by all samples.
        backend : {"auto", "numpy", "cpu", "cuda"}
        out : np.ndarray [shape=(..., plan.pattern.nnz)], optional
            Where to put them: contiguous, of the dtype of `a`, not overlapping `a` or `b`.

        Returns
        -------
        np.ndarray [shape=(..., plan.pattern.nnz)]
            `out`, if given.

        Raises
        ------
        TypeError
            For other dtypes, or two different ones.
        ValueError
            For shapes that do not fit, NaN and infinity.
        """
        for name, values, pattern in (("a", a, self.left), ("b", b, self.right)):
            check_floats(name, values)
            if values.ndim not in (1, 2) or values.shape[-1] != pattern.nnz:
                raise ValueError(
                    f"{name} must have shape (nnz,) or (B, nnz) with nnz = {pattern.nnz}, got {values.shape}"
                )
        if not (all_finite(a) and all_finite(b)):  # where the other factor is zero, the product might not show it
            check_finite(a=a, b=b)
        if a.dtype != b.dtype:
            raise TypeError(f"b must have the dtype of a, {a.dtype}, got {b.dtype}")
        batches = {len(values) for values in (a, b) if values.ndim == 2}
        if len(batches - {1}) > 1:
            raise ValueError(f"a and b must have as many samples as each other, got {len(a)} and {len(b)}")
        shape = (*list(batches - {1} or batches), self.pattern.nnz)
        if out is None:
            out = np.empty(shape, a.dtype)
        elif type(out) is not np.ndarray or out.shape != shape or out.dtype != a.dtype or not out.flags.carray:
            got = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out must be contiguous, of dtype {a.dtype} and shape {shape}, got {got}")
        elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
            raise ValueError("out must not share memory with a or b: they are read while it is written")
        backend = backends.resolve(backend)
        there, both = twin(__name__, backend), [np.ascontiguousarray(np.atleast_2d(values)) for values in (a, b)]
        if backend == "cuda":
            there.product(self, *map(there.send, both)).copy_to_host(np.atleast_2d(out))
        else:
            there.product(self, *both, np.atleast_2d(out))
        return out


def _pattern(name, matrix):
    try:
        return CSRPattern.of(matrix)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def send(values):
    """Leave values where they are, in this computer's memory."""
    return values


def batch_of(a, b):
    """Return how many samples the product of two arrays of values has; the one with one row is shared by all."""
    return a.shape[0] if b.shape[0] == 1 else b.shape[0]


def product(plan, a, b, out=None):
    """Run the numeric phase of a planned product, in NumPy: for every multiply-add, where it reads and writes.

    Parameters
    ----------
    plan : PlannedProduct
    a, b : np.ndarray [shape=(B, nnz)] or [shape=(1, nnz)]
        Values of each sample, or those that all samples share.
    out : np.ndarray [shape=(B, plan.pattern.nnz)], optional

    Returns
    -------
    np.ndarray [shape=(B, plan.pattern.nnz)]
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
    """Multiply each sample's matrix and vector.

    Parameters
    ----------
    pattern : CSRPattern [shape=(m, n)]
    values : np.ndarray [shape=(B, nnz)] or [shape=(1, nnz)]
    vectors : np.ndarray [shape=(B, n)]

    Returns
    -------
    np.ndarray [shape=(B, m)]
    """
    each = np.broadcast_to(values, (len(vectors), pattern.nnz))
    matrices = (sparse.csr_array((v, pattern.indices, pattern.indptr), shape=pattern.shape) for v in each)
    return np.stack([matrix @ x for matrix, x in zip(matrices, vectors, strict=True)])


def extent(values):
    """Find the largest and the smallest non-zero size of each sample's entries.

    Parameters
    ----------
    values : np.ndarray [shape=(..., nnz)]

    Returns
    -------
    peak, floor : np.ndarray [shape=(...)]
        0 and infinity where there are none.
    """
    sizes = np.abs(values)
    return sizes.max(axis=-1, initial=0), np.min(sizes, axis=-1, initial=np.inf, where=sizes != 0)


def scale(values, exponents, out=None):
    """Multiply each sample's values by a power of two.

    Parameters
    ----------
    values : np.ndarray [shape=(..., nnz)]
    exponents : np.ndarray of int [shape=(...)]
    out : np.ndarray [shape=(..., nnz)], optional
        Where to; may be `values`.

    Returns
    -------
    np.ndarray [shape=(..., nnz)]
    """
    return np.ldexp(values, exponents[..., None], out=out)
