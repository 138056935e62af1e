import numpy as np
import pytest
from scipy import sparse
from texts import beside

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


def test_the_last_column_of_the_widest_pattern():
    assert CSRPattern([0, 1], [2**31 - 1], (1, 2**31)).indices[0] == 2**31 - 1


@pytest.mark.parametrize("indptr, indices, canonical", beside(__file__)["patterns"])
def test_sorted_rows_without_repetition_are_canonical(indptr, indices, canonical):
    assert CSRPattern(indptr, np.array(indices, int), (3, 4)).canonical is canonical


def test_a_detached_pattern_keeps_no_plans():
    pattern, other = CSRPattern.of(example()), CSRPattern.of(sparse.csr_array(np.eye(4)))
    assert pattern.times(other) is pattern.times(other)
    twin = pattern.detached()
    assert twin.shape == pattern.shape and twin.indices is pattern.indices and twin.indptr is pattern.indptr
    assert len(pattern._plans) == 1 and len(twin._plans) == 0
