"""The package's own kernels: forward passes are right and clean; without one of their barriers they are not."""

import functools
import re

import numpy as np
import pytest
from rings import more

import bppsa_nb as bp
from bppsa_nb import ptx

T, B, I, H = 6, 3, 3, 20
OTHERS = ("rnn", "H"), ("rnn", "any"), ("gru", "any"), ("lstm", "H"), ("lstm", "any")
FORWARD = [("gru", "H"), *(more(*each) for each in OTHERS)]


@functools.cache
def forward(name, which, real="float32"):
    """Return a forward kernel, its grid and block, its arguments, dynamic shared memory, and what NumPy gives."""
    from bppsa_nb.cells import cell_cuda, layer_cuda

    kind, real = {"rnn": bp.RNN, "gru": bp.GRU, "lstm": bp.LSTM}[name], np.dtype(real)
    cell, rng = kind.cell, np.random.default_rng(0)
    model = kind(I, H, 4, 1, rng=rng, dtype=real)
    x = rng.standard_normal((T, B, I)).astype(real)
    p = {key.removesuffix("_l0"): value for key, value in model.params.items()}
    products = (x @ p["weight_ih"].T + p["bias_ih"]).astype(real)
    states = np.full((cell.states, T + 1, B, H), np.nan, real)
    states[:, 0] = 0
    kept = np.full((max(cell.kept, 1), T, B, H), np.nan, real)
    steps = cell_cuda.steps_of(cell, H, real.type) if which == "H" else cell_cuda.any_steps_of(cell, real.type)
    arguments = [products, np.ascontiguousarray(p["weight_hh"].T), p["bias_hh"], states, kept]
    wanted, shared = model.forward(x, backend="numpy").states[0], cell_cuda.numbers_of(cell) * H * real.itemsize
    return layer_cuda.run_forward_of(steps, cell.states), B, cell.gates * H, arguments, shared, wanted


@functools.cache
def text_of(name, which):
    from numba import cuda

    kernel, _, _, arguments, *_ = forward(name, which)
    types = tuple(map(kernel.typeof_pyval, arguments))
    return cuda.compile_ptx(kernel.py_func, types, cc=(9, 0), lineinfo=True)[0]


@pytest.mark.parametrize("real", ["float32", more("float64")])
@pytest.mark.parametrize("name,which", FORWARD)
def test_forward_passes_are_right_and_clean(name, which, real):
    kernel, grid, block, arguments, shared, wanted = forward(name, which, real)
    states = arguments[3]
    states[:, 1:] = np.nan
    report = ptx.assert_clean(kernel, grid, block, *arguments, shared=shared)
    assert abs(states - wanted).max() <= (1e-6 if real == "float32" else 1e-14)
    assert report.counters["barriers"] >= B * T and report.counters["multiply-adds"] >= B * T * block * H
    assert report.notes == []


def without(text, n):
    """Return PTX without its n-th barrier."""
    place = [found.span() for found in re.finditer(r"bar\.sync\s+0;", text)][n]
    return text[: place[0]] + text[place[1] :]


@pytest.mark.outer
@pytest.mark.parametrize("name,which", FORWARD)
def test_a_forward_pass_without_one_of_its_barriers_is_a_race(name, which):
    _, grid, block, arguments, shared, _ = forward(name, which)
    text = text_of(name, which)
    found = len(re.findall(r"bar\.sync\s+0;", text))
    assert found >= 2
    for n in range(found):
        report = ptx.run(without(text, n), grid, block, *arguments, shared=shared)
        first = next(f for f in report.findings if f.kind == "race")
        assert first.file.endswith("_cuda.py") and first.line > 0
        assert first.thread != first.other[1] and first.block == first.other[0]


def test_a_launch_that_does_not_fit_is_out_of_bounds():
    _, grid, block, arguments, shared, _ = forward("gru", "H")
    text = text_of("gru", "H")
    first = ptx.run(text, grid, block, *arguments, shared=shared - 8).findings[0]
    assert first.kind == "out of bounds" and "shared memory" in str(first)
    kinds = {f.kind for f in ptx.run(text, grid + 1, block, *arguments, shared=shared).findings}
    assert "out of bounds" in kinds or "race" in kinds
