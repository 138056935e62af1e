"""Compiled tanh and sigmoid: digit for digit against numbers with more digits."""

import re

import numpy as np
import pytest
from numba import from_dtype, njit

from bppsa_nb.machine import elementary, pointwise

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def compiled(function):
    def each(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    return njit(error_model="numpy", fastmath={"contract"})(each)


compiled_tanh, compiled_sigmoid = compiled(elementary.tanh), compiled(elementary.sigmoid)


def exact_sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


FUNCTIONS = [(compiled_tanh, np.tanh), (compiled_sigmoid, exact_sigmoid)]
each_function = pytest.mark.parametrize("function, exact", FUNCTIONS)


def run(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


def numbers(dtype):
    """Numbers of all magnitudes, the subnormal and the saturated ones included, both signs."""
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    powers = np.ldexp(1.0, np.arange(max(info.minexp - info.nmant, -1074), info.maxexp))
    sizes = [
        np.abs(rng.standard_normal(300_000)),
        rng.uniform(0, 1, 300_000),
        rng.uniform(0, 1.1 * -np.log(info.smallest_subnormal), 300_000),
        np.exp(rng.uniform(np.log(info.tiny), np.log(info.max) - 1e-3, 300_000)),
        np.arange(1, 200) * np.log(2) / 2,  # where k changes
        np.concatenate([powers, powers * (1 - info.epsneg), [0, info.max]]),
    ]
    sizes = np.concatenate(sizes).astype(dtype)
    return np.concatenate([sizes, -sizes])


@each_dtype
@each_function
def test_two_units_in_the_last_place(function, exact, dtype):
    wide = {np.float32: np.float64, np.float64: np.longdouble}[dtype]
    if np.finfo(wide).nmant < np.finfo(dtype).nmant + 8:
        pytest.skip("this machine has no numbers with more digits")
    x = numbers(dtype)
    found, expected = run(function, x), exact(x.astype(wide))
    unit = np.spacing(np.abs(expected.astype(dtype))).astype(wide)
    errors = np.abs(found.astype(wide) - expected) / unit
    assert errors.max() <= 2, (x[errors.argmax()], found[errors.argmax()])
    assert (np.abs(found) <= 1).all()


@each_dtype
def test_ends_and_symmetry(dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], dtype)
    np.testing.assert_array_equal(run(compiled_tanh, x), [0, 0, 1, -1, np.nan, np.nan])
    np.testing.assert_array_equal(run(compiled_sigmoid, x), [0.5, 0.5, 1, 0, np.nan, np.nan])
    np.testing.assert_array_equal(np.signbit(run(compiled_tanh, x[:2])), [False, True])
    np.testing.assert_array_equal(run(compiled_tanh, -numbers(dtype)), -run(compiled_tanh, numbers(dtype)))


@pytest.mark.parametrize("function, _", FUNCTIONS)
def test_loops_over_float32_vectorize(function, _):
    """No call is left in the loop, and it works on several numbers at once."""
    run(function, np.zeros(1, np.float32))
    code = function.inspect_llvm(next(s for s in function.signatures if s[0].dtype.name == "float32"))
    assert re.search(r"fdiv .*<\d+ x float>", code)
    assert "@tanhf" not in code and "@expf" not in code


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_has_no_series_is_what_numpy_computes(dtype):
    """And of the numbers' own precision: a whole number alone would make all of it float64."""

    def function(x):
        return pointwise.where(x > pointwise.constant(1, x), pointwise.relu(x) - pointwise.constant(0.1, x), x)

    x = np.array([-np.inf, -2, -0.0, 0.5, 1, 3, np.inf, np.nan], dtype)
    there = njit(function)
    np.testing.assert_array_equal([there(each) for each in x], function(x))
    assert there.nopython_signatures[0].return_type == from_dtype(x.dtype)
