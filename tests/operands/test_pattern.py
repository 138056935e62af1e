import numpy as np
import pytest
from scipy import sparse

from bppsa_nb.sparse import CSRPattern


def example():
    """Three rows: two entries, none, one."""
    return sparse.csr_array(([1.0, 0.0, 3.0], [0, 3, 2], [0, 2, 2, 3]), shape=(3, 4))


def test_a_matrix_gives_its_pattern_and_takes_it_back():
    matrix = example()
    pattern = CSRPattern.of(matrix)
    assert pattern.shape == (3, 4) and pattern.nnz == 3  # the explicit zero counts
    assert pattern.sparsity == 0.75
    again = pattern.matrix(matrix.data)
    np.testing.assert_array_equal(again.toarray(), matrix.toarray())
    again.eliminate_zeros()  # changes SciPy's arrays, not the pattern's
    assert again.nnz == 2 and pattern.matrix(matrix.data).nnz == 3
    assert CSRPattern.of(pattern) is pattern
    assert repr(pattern) == "CSRPattern(shape=(3, 4), nnz=3)"


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64])
def test_indices_take_32_bits_and_are_copied(dtype):
    indptr, indices = np.array([0, 2, 2, 3], dtype), np.array([0, 3, 2], dtype)
    pattern = CSRPattern(indptr, indices, (3, 4))
    assert pattern.indptr.dtype == pattern.indices.dtype == np.int32
    np.testing.assert_array_equal(pattern.indices, indices)
    assert not np.shares_memory(pattern.indices, indices) and not np.shares_memory(pattern.indptr, indptr)


def test_empty_patterns_are_patterns():
    assert CSRPattern([0], np.empty(0, int), (0, 5)).nnz == 0
    assert CSRPattern([0, 0, 0], np.empty(0, int), (2, 0)).nnz == 0
    assert CSRPattern([0, 0], [], (1, 3)).sparsity == 1


@pytest.mark.parametrize(
    "indptr, indices, shape, error, message",
    [
        ([0, 1], [0], [1, 1], ValueError, r"shape must be two integers \(m, n\), got \[1, 1\]"),
        ([0, 1], [0], (1, 1, 1), ValueError, "shape must be two integers"),
        ([0, 1], [0], (1, -1), ValueError, "shape must be two integers"),
        ([0, 1], [0], (1, 2.0), ValueError, "shape must be two integers"),
        ([0, 1], [0], (True, True), ValueError, "shape must be two integers"),
        ([0.0, 1.0], [0], (1, 1), TypeError, "indptr must hold integers, got float64"),
        ([0, 1], [True], (1, 1), TypeError, "indices must hold integers, got bool"),
        ([[0, 1]], [0], (1, 1), ValueError, r"indptr must be 1-d, got shape \(1, 2\)"),
        ([0, 1], [0], (2, 1), ValueError, r"indptr must have m \+ 1 = 3 entries, got 2"),
        ([1, 1], [0], (1, 1), ValueError, "indptr must rise from 0 to the number of indices, 1"),
        ([0, 2], [0], (1, 1), ValueError, "indptr must rise from 0"),
        ([0, 2, 1, 3], [0, 0, 0], (3, 1), ValueError, "indptr must rise from 0"),
        ([0, 2], [0, 4], (1, 4), ValueError, "indices must be from 0 to n - 1 = 3, got 4"),
        ([0, 2], [-1, 3], (1, 4), ValueError, "indices must be from 0 to n - 1 = 3, got -1"),
        ([0, 0], np.empty(0, int), (1, 2**31 + 1), ValueError, r"at most 2\*\*31 columns"),
    ],
)
def test_what_is_no_pattern_is_named(indptr, indices, shape, error, message):
    with pytest.raises(error, match=message):
        CSRPattern(indptr, indices, shape)


@pytest.mark.parametrize("matrix", [np.eye(2), sparse.csc_array(np.eye(2)), sparse.coo_array(np.eye(2)), None])
def test_only_csr_matrices_have_a_csr_pattern(matrix):
    with pytest.raises(TypeError, match="expected a SciPy CSR matrix or a CSRPattern, got"):
        CSRPattern.of(matrix)


@pytest.mark.parametrize(
    "indptr, indices, canonical",
    [
        ([0, 2, 2, 4], [1, 3, 0, 2], True),
        ([0, 2, 2, 4], [3, 1, 0, 2], False),  # not sorted
        ([0, 2, 2, 4], [1, 3, 2, 2], False),  # twice
        ([0, 0, 0, 0], [], True),
        ([0, 0, 0, 2], [0, 3], True),
        ([0, 2, 2, 2], [3, 0], False),
    ],
)
def test_sorted_rows_without_repetition_are_canonical(indptr, indices, canonical):
    assert CSRPattern(indptr, np.array(indices, int), (3, 4)).canonical is canonical


def test_a_detached_pattern_keeps_no_plans():
    pattern, other = CSRPattern.of(example()), CSRPattern.of(sparse.csr_array(np.eye(4)))
    assert pattern.times(other) is pattern.times(other)
    twin = pattern.detached()
    assert twin.shape == pattern.shape and twin.indices is pattern.indices and twin.indptr is pattern.indptr
    assert len(pattern._plans) == 1 and len(twin._plans) == 0
