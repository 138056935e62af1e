"""Products tile by tile: every size, and nothing written beside the result."""

import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from numba import njit
from rings import more

from bppsa_nb.machine import second_core, tiles

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])

call_parts = njit(lambda *arguments: tiles.multiply(*arguments))
call_parts_T = njit(lambda *arguments: tiles.multiply_T(*arguments))


def call(product, rows, matrices, out, turn=0, call=call_parts):
    sizes = matrices.shape[-3], out.shape[0], matrices.shape[-2]
    call(product, rows, matrices, out, sizes, (0, 0, 0), turn)


def multiply(rows, matrices, out):
    call(tiles.product(out.dtype), rows, matrices, out)


call_T = partial(call, call=call_parts_T)


def check(function, K, B, H, J, dtype):
    rng = np.random.default_rng([K, B, H, J])
    rows, matrices = rng.standard_normal((K, B, H)).astype(dtype), rng.standard_normal((K, H, J)).astype(dtype)
    memory = np.full((B + 2, J), 7, dtype)
    function(rows, matrices, memory[1:-1])
    expected = np.einsum("kbh,khj->bj", rows.astype(np.float64), matrices.astype(np.float64))
    np.testing.assert_allclose(memory[1:-1], expected, rtol=0, atol=32 * np.finfo(dtype).eps * K * H)
    assert (memory[[0, -1]] == 7).all()


@each_dtype
@pytest.mark.parametrize("J", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20, 31, 32, 33, 48, 65])
def test_every_size(J, dtype):
    for B in [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17]:
        for K, H in [(1, 1), (1, J), (3, J), (2, 38)]:
            check(multiply, K, B, H, J, dtype)


@each_dtype
@pytest.mark.parametrize("width, height, third", [(64, 8, 64), more(64, 8, 32), more(32, 4, 32), (16, 4, 16)])
def test_on_every_processor(width, height, third, dtype):
    product = second_core.table_of(tiles._compile(np.dtype(dtype), width, height, third).address, 0)
    lanes = width // np.dtype(dtype).itemsize
    for B in [1, 2, 3, 4, 5, 7, 8, 9, 24]:
        for J in [1, 2, 4, 7, lanes, lanes + 1, 2 * lanes, 2 * lanes + 1, 3 * lanes, 5 * lanes - 1]:
            check(partial(call, product), 2, B, 3, J, dtype)


@each_dtype
def test_no_products_are_zero(dtype):
    out = np.ones((9, 20), dtype)
    multiply(np.empty((0, 9, 20), dtype), np.empty((0, 20, 20), dtype), out)
    assert not out.any()
    multiply(np.empty((0, 0, 20), dtype), np.empty((0, 20, 20), dtype), out[:0])


@each_dtype
def test_rows_in_any_layout_and_columns_in_their_place(dtype):
    rng = np.random.default_rng(0)
    columns, matrices = rng.standard_normal((2, 20, 9)).astype(dtype), rng.standard_normal((2, 20, 21)).astype(dtype)
    out, by_columns, expected = np.empty((3, 9, 21), dtype)
    multiply(columns.transpose(0, 2, 1), matrices, out)
    call_T(tiles.product(out.dtype), columns, matrices, by_columns)
    multiply(np.ascontiguousarray(columns.transpose(0, 2, 1)), matrices, expected)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(by_columns, expected)


@each_dtype
@pytest.mark.parametrize("J", [1, 20, 127, 128, 129, 255, 256, 257, 300])
def test_panels(J, dtype):
    rng = np.random.default_rng(J)
    matrices, product = rng.standard_normal((2, 7, J)).astype(dtype), tiles.product(np.dtype(dtype))
    panels = tiles.panels(matrices)
    width = tiles.panel_width(J, matrices.itemsize)
    assert panels.shape == (-(-J // width), 2, 7, width) and (len(panels) > 1) == (matrices[0, 0].nbytes >= 1024)
    for p, panel in enumerate(panels):
        start = min(p * width, J - width)
        np.testing.assert_array_equal(panel, matrices[:, :, start : start + width])
    for B in [1, 3, 17]:
        rows = rng.standard_normal((2, B, 7)).astype(dtype)
        memory, expected = np.full((B + 2, J), 7, dtype), np.empty((B, J), dtype)
        multiply(rows, matrices, expected)
        multiply(rows, panels, memory[1:-1])
        for turn in (0, 1, 7):
            found = np.zeros_like(expected)
            call(tiles.product(found.dtype), rows, panels, found, turn)
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(memory[1:-1], expected)
        assert (memory[[0, -1]] == 7).all()
        memory[1:-1] = 0
        call_T(product, np.ascontiguousarray(rows.transpose(0, 2, 1)), panels, memory[1:-1])
        np.testing.assert_array_equal(memory[1:-1], expected)
        assert (memory[[0, -1]] == 7).all()


@each_dtype
@pytest.mark.parametrize("J", [20, 300])
def test_parts_of_arrays(J, dtype):
    """From places on, of arrays with more dimensions: what comes before and after is neither read nor written."""
    rng = np.random.default_rng(J)
    rows, matrices = rng.standard_normal((3, 2, 9, 7)).astype(dtype), rng.standard_normal((4, 7, J)).astype(dtype)
    out, expected, laid = np.full((2, 9, J), 7, dtype), np.empty((5, J), dtype), tiles.panels(matrices)
    places = 9 * 7 + 2 * 7, 7 * laid.shape[3], 9 * J + 3 * J
    call_parts(tiles.product(out.dtype), rows, laid, out, (3, 5, 7), places, 0)
    multiply(rows[:, 1, 2:7], matrices[1:], expected)
    np.testing.assert_array_equal(out[1, 3:8], expected)
    assert (out[0] == 7).all() and (out[1, :3] == 7).all() and (out[1, 8] == 7).all()


@each_dtype
def test_not_finite_numbers_stay_in_their_rows(dtype):
    rows, matrix = np.ones((1, 9, 20), dtype), np.ones((1, 20, 20), dtype)
    rows[0, 3, 5], rows[0, 8, 19] = np.nan, np.inf
    out = np.empty((9, 20), dtype)
    multiply(rows, matrix, out)
    assert np.isnan(out[3]).all() and np.isinf(out[8]).all()
    assert (np.delete(out, [3, 8], axis=0) == 20).all()


def test_it_is_compiled_once_per_dtype_by_one_of_several_threads(monkeypatch):
    assert tiles.product(np.dtype("f4")) is tiles.product(np.dtype("f4")) is not tiles.product(np.dtype("f8"))
    compiled, both = [], threading.Barrier(2)

    def compile(dtype, width, height, third):
        compiled.append(dtype)
        time.sleep(0.05)  # in which another thread would come by
        return types.SimpleNamespace(address=len(compiled))

    def ask():
        both.wait()
        return tiles.product(np.dtype(np.float32))

    monkeypatch.setattr(tiles, "_products", {})
    monkeypatch.setattr(tiles, "_compile", compile)
    with ThreadPoolExecutor(2) as threads:
        one, other = [asked.result() for asked in [threads.submit(ask) for _ in range(2)]]
    assert one is other and one[second_core.PRODUCT] == len(compiled) == 1


def test_arrays_of_two_dtypes_are_refused():
    with pytest.raises(TypeError, match="must be 3-d, 3-d .panels: 4-d., 2-d and of one dtype"):
        multiply(np.ones((1, 2, 2), np.float32), np.ones((1, 2, 2)), np.ones((2, 2)))
