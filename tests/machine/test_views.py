"""Rows of consecutive numbers, and their bits, without a copy."""

import numpy as np
import pytest
from numba import njit

from bppsa_nb.machine import intrinsics


@njit
def row(array, start, count):
    first, found = intrinsics.pointer(array, start), intrinsics.buffer(array, (count,))
    view = intrinsics.shaped(array, start, (1, count))
    for i in range(count):
        found[i] = first[i]
        view[0, i] = 7
    return found


@njit
def bits(array):
    return intrinsics.bits(array).copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4), (1, 2, 3, 4)])
def test_numbers_are_those_of_the_array(shape, dtype):
    for start, count in [(0, 24), (5, 7), (23, 1), (24, 0)]:
        array = np.arange(24, dtype=dtype).reshape(shape)
        expected = array.ravel().copy()
        assert np.array_equal(row(array, start, count), expected[start : start + count])
        expected[start : start + count] = 7
        assert np.array_equal(array.ravel(), expected)  # a view, and nothing beside it written


@njit
def change(out, terms, begin, count, apart, rows):
    intrinsics.copy(terms, intrinsics.pointer(out, begin), count)
    intrinsics.add(intrinsics.pointer(out[1], begin), terms, count)
    intrinsics.clear(intrinsics.pointer(out[2], begin), count)
    intrinsics.copy_rows(terms, count, intrinsics.pointer(out[3], begin), apart, count, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(0, 1, 1, 1), (2, 3, 3, 4), (1, 2, 5, 3), (0, 20, 20, 1), (3, 0, 2, 2)])
def test_rows_are_copied_summed_up_and_cleared(sizes, dtype):
    (begin, count, apart, rows), terms = sizes, 100 + np.arange(20).astype(dtype) / 3
    out, expected = np.tile(np.arange(20).astype(dtype), (2, 4, 1))
    part = expected[:, begin : begin + count]
    part[0], part[1], part[2] = terms[:count], part[1] + terms[:count], 0
    for k in range(rows):
        expected[3, begin + k * apart :][:count] = terms[k * count :][:count]
    change(out, terms, *sizes)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("dtype", "unsigned"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_bits_are_those_of_the_numbers(dtype, unsigned):
    array = np.array([[0.0, -0.0, 1.5], [-np.inf, np.nan, 1e-40]], dtype)
    found = bits(array)
    assert found.dtype == unsigned and np.array_equal(found, array.ravel().view(unsigned))


@pytest.mark.parametrize("view", [lambda array: row(array, 0, 2), bits])
def test_numbers_that_lie_apart_are_refused(view):
    with pytest.raises(TypeError, match="array must be C-contiguous"):
        view(np.ones((4, 6))[:, ::2])
