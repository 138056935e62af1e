"""Two cores on one product: each panel once, by the same code, and nobody waits for a helper that does not come."""

import ctypes
import threading
import time

import numpy as np
import pytest
from numba import njit

import bppsa_nb as bp
from bppsa_nb.cells import chunked_cpu
from bppsa_nb.machine import intrinsics, second_core, tiles, workers

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
PRODUCT = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
SHARING, HELPING = second_core._compiled()
POINTER = HELPING.ctypes.argtypes[0]


@njit(nogil=True)
def multiply(product, rows, matrices, outs):
    for turn in range(len(outs)):
        sizes, places = (1, rows.shape[1], rows.shape[2]), (0, 0, turn * outs[turn].size)
        tiles.multiply(product, rows, matrices, outs, sizes, places, turn)


@njit(nogil=True)
def multiply_flushed(product, rows, matrices, outs):
    before = intrinsics.flush()
    multiply(product, rows, matrices, outs)
    intrinsics.restore(before)


def shared(table):
    table = table.copy()
    table[second_core.SHARE] = SHARING.address
    return table


def drawn(dtype, H, J, B, scale=1):
    rng = np.random.default_rng([H, J, B])
    rows = (scale * rng.standard_normal((1, B, H))).astype(dtype)
    return rows, tiles.panels(rng.standard_normal((1, H, J)).astype(dtype)), np.zeros((5, B, J), dtype)


@each_dtype
@pytest.mark.parametrize("H, J, B", [(7, 300, 1), (64, 256, 5), (300, 257, 8), (5, 1000, 17)])
def test_whoever_takes_a_panel_the_result_has_the_same_bits(H, J, B, dtype):
    *given, out = drawn(dtype, H, J, B)
    expected, table = out.copy(), tiles.product(np.dtype(dtype))
    multiply(table, *given, expected)
    multiply(shared(table), *given, out)  # nobody helps
    assert (out == expected).all() and expected.all()
    for _ in range(20):
        out[...] = 0
        with second_core.helped(table) as both:
            multiply(both, *given, out)
        assert (out == expected).all()


@njit
def states():
    """Return how subnormal numbers are taken, and what it would be if they were flushed."""
    before = intrinsics.flush()
    flushed = intrinsics.state()
    intrinsics.restore(before)
    return before, flushed


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("dtype, scale", [(np.float32, 1), (np.float64, 1), (np.float32, 1e-42), (np.float64, 1e-310)])
def test_a_helper_computes_what_the_loop_would(dtype, scale, flushed):
    rows, panels, outs = drawn(dtype, 40, 300, 3, scale)
    expected = outs.copy()
    (multiply_flushed if flushed else multiply)(tiles.product(np.dtype(dtype)), rows, panels, expected)
    assert expected.any() == (scale == 1 or not flushed)
    table, before = shared(tiles.product(np.dtype(dtype))), states()[0]
    sizes = [1, 3, 40, panels.shape[3], *rows.strides, *panels.strides[1:3], outs.strides[1]]
    sizes += [300, len(panels), panels.strides[0]]
    table[second_core._NUMBER], table[second_core._STATE] = 1, states()[flushed]
    places = second_core._ROWS, second_core._MATRICES, second_core._OUT
    for place, array in zip(places, (rows, panels, outs), strict=True):
        table[place] = array.ctypes.data
    table[second_core._SIZES :][: len(sizes)] = sizes
    table[second_core._LEFT] = len(panels)
    HELPING.ctypes(table.ctypes.data_as(POINTER))  # and goes, as nothing comes
    assert (outs[0] == expected[0]).all() and table[second_core._DONE] == len(panels)
    assert states()[0] == before


def test_two_threads_take_each_panel_once_and_passes_after_one_that_waited_go_alone(monkeypatch):
    begun, finished, seen = threading.Event(), threading.Event(), []
    main = threading.get_ident()

    @PRODUCT
    def product(rows, matrix, out, sizes):
        seen.append((threading.get_ident() == main, matrix))
        if seen[-1][0]:
            assert begun.wait(60)  # until the helper has one
            time.sleep(0.01)  # without a core
            if len(seen) == 6:
                finished.set()
        else:
            begun.set()
            assert finished.wait(60)

    address = ctypes.cast(product, ctypes.c_void_p).value
    for name, value in ("_rest_until", 0.0), ("_REST", 1e9), ("_LONGEST_REST", 1e9):
        monkeypatch.setattr(second_core, name, value)
    sizes = np.array([0, 0, 0, 8, *[0] * 6, 48, 6, 100])
    with second_core.helped(second_core.table_of(address, 4)) as table:
        SHARING.ctypes(table.ctypes.data_as(POINTER), 0, 0, 0, sizes.ctypes.data_as(POINTER))
    with second_core.helped(second_core.table_of(address, 4)) as table:
        assert not table[second_core.SHARE]
    assert sorted(matrix for _, matrix in seen) == [0, 100, 200, 300, 400, 500]
    assert [matrix for own, matrix in seen if not own] == [500]
    assert [matrix for own, matrix in seen if own] == [0, 100, 200, 300, 400]


@each_dtype
@pytest.mark.parametrize("kind, B, H", [(bp.RNN, 1, 300), (bp.GRU, 8, 256), (bp.GRU, 3, 150)])
def test_passes_of_a_few_samples_have_the_bits_of_one_core(kind, B, H, dtype, monkeypatch):
    model, rng = kind(9, H, 4, num_layers=2, rng=0, dtype=dtype), np.random.default_rng(1)
    x, grad = rng.standard_normal((24, B, 9)).astype(dtype), rng.standard_normal((B, 4)).astype(dtype)
    found, tables, helped = [], [], second_core.helped
    monkeypatch.setattr(chunked_cpu, "helped", lambda table: tables.append(table) or helped(table))
    for threads in 1, 2:
        monkeypatch.setattr(workers, "THREADS", threads)
        activations = model.forward(x, backend="cpu", method="linear")
        grads = model.backward(activations, grad, "linear", "cpu")
        found.append([activations.logits, *grads.values()])
    assert len(tables) == (8 if H * np.dtype(dtype).itemsize >= 1024 else 0)
    for one, two in zip(*found, strict=True):
        assert (one == two).all()
