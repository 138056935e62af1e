import numpy as np
import pytest
from texts import beside

from bppsa_nb.machine import checks


@pytest.mark.parametrize("array, expected", beside(__file__)["finite"])
def test_all_finite(array, expected):
    assert checks.all_finite(eval(array)) is expected


@pytest.mark.parametrize("size", [3, 10**5, 2**20])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_one_number_is_enough(size, number):
    array = np.full(size, 3e38, np.float32)
    assert checks.all_finite(array)
    for place in 0, size // 2, size - 1:
        spoiled = array.copy()
        spoiled[place] = number
        assert not checks.all_finite(spoiled) and not checks.all_finite(spoiled[::-1])


def test_a_dtype_is_one_of_two_by_many_names():
    assert all(checks.float_dtype(name) == np.float32 for name in (np.float32, "f4", np.dtype("float32"), "float32"))


def test_generator_makes_what_numpy_makes():
    for seed in (3, [1, 2], np.int64(5), np.array([7, 2**40]), np.uint64([1, 2]), range(3)):
        assert checks.generator(seed).random() == np.random.default_rng(seed).random()
    given = np.random.default_rng(0)
    assert checks.generator(given) is given


@pytest.mark.parametrize("value, expected", [(np.float32(0.5), 0.5), (2**2000, np.inf), (-(2**2000), -np.inf)])
def test_as_float(value, expected):
    found = checks.as_float("h", value)
    assert type(found) is float and found == expected


def test_a_read_only_view_cannot_be_written_to_and_shows_what_is_written_to_its_array():
    array = np.zeros((2, 3), np.float32)
    for each in (array, array[1], array.T, array[:, ::2]):
        view = checks.read_only(each)
        for write in (lambda view=view: view.__iadd__(1), lambda view=view: np.copyto(view[:1], 1)):
            with pytest.raises(ValueError, match="read-only"):
                write()
        each += 1
        assert each.all() and np.shares_memory(view, each) and np.array_equal(view, each)
