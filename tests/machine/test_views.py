"""Rows of consecutive numbers, and their bits, without a copy."""

import numpy as np
import pytest
from numba import njit

from bppsa_nb.machine import views


@njit
def row(array, start, count):
    view = views.flat_view(array, start, count)
    before = view.copy()
    view[:] = 7
    return before


@njit
def bits(array):
    return views.bits(array).copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4), (1, 2, 3, 4)])
def test_numbers_are_those_of_the_array(shape, dtype):
    for start, count in [(0, 24), (5, 7), (23, 1), (24, 0)]:
        array = np.arange(24, dtype=dtype).reshape(shape)
        expected = array.ravel().copy()
        assert np.array_equal(row(array, start, count), expected[start : start + count])
        expected[start : start + count] = 7
        assert np.array_equal(array.ravel(), expected)  # a view, and nothing beside it written


@pytest.mark.parametrize(("dtype", "unsigned"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_bits_are_those_of_the_numbers(dtype, unsigned):
    array = np.array([[0.0, -0.0, 1.5], [-np.inf, np.nan, 1e-40]], dtype)
    found = bits(array)
    assert found.dtype == unsigned and np.array_equal(found, array.ravel().view(unsigned))


@pytest.mark.parametrize("view", [lambda array: row(array, 0, 2), bits])
def test_numbers_that_lie_apart_are_refused(view):
    with pytest.raises(TypeError, match="array must be C-contiguous"):
        view(np.ones((4, 6))[:, ::2])
