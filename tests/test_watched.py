"""The package's own kernels, watched on the CPU: all that stands on a GPU is right and clean, and faults are found."""

import functools
import re

import numpy as np
import pytest
import recorder
from rings import more
from texts import beside

import bppsa_nb as bp
import warpwatch
from bppsa_nb.machine import cuda as streams
from warpwatch import device

T, B, I, H = 6, 3, 3, 20
OTHERS = ("rnn", "H"), ("rnn", "any"), ("gru", "any"), ("lstm", "H"), ("lstm", "any")
FORWARD = [("gru", "H"), *(more(*each) for each in OTHERS)]


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    """Let steps be recorded."""
    recorder.stand_in(monkeypatch)


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
    report = warpwatch.assert_clean(kernel, grid, block, *arguments, shared=shared)
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
        report = warpwatch.run(without(text, n), grid, block, *arguments, shared=shared)
        first = next(f for f in report.findings if f.kind == "race")
        assert first.file.endswith("_cuda.py") and first.line > 0
        assert first.thread != first.other[1] and first.block == first.other[0]


def test_a_launch_that_does_not_fit_is_out_of_bounds():
    _, grid, block, arguments, shared, _ = forward("gru", "H")
    text = text_of("gru", "H")
    first = warpwatch.run(text, grid, block, *arguments, shared=shared - 8).findings[0]
    assert first.kind == "out of bounds" and "shared memory" in str(first)
    kinds = {f.kind for f in warpwatch.run(text, grid + 1, block, *arguments, shared=shared).findings}
    assert "out of bounds" in kinds or "race" in kinds


METHODS = [("linear", None), ("chunked", None), ("blelloch", None), ("truncated", 1)]


def test_every_method_goes_back_as_on_the_host_and_nothing_is_found():
    rng = np.random.default_rng(0)
    jacobians_T, grad_output = rng.uniform(-0.5, 0.5, (9, 2, 3, 3)).astype("f"), rng.standard_normal((2, 3), "f")
    local_grads = rng.standard_normal((10, 2, 3), "f")
    with device(watch=True) as reports:
        for method, levels in METHODS:
            how = {"local_grads": local_grads, "method": method, "levels": levels}
            found = bp.backprop(jacobians_T, grad_output, **how, backend="cuda")
            np.testing.assert_allclose(found, bp.backprop(jacobians_T, grad_output, **how, backend="numpy"), atol=1e-5)
    assert len(reports) > 10 and not any(report.findings for report in reports)


@pytest.mark.parametrize(
    ("cell", "method"),
    [
        ("RNN", "blelloch"), ("GRU", "chunked"),
        *(more(*each) for each in [("RNN", "linear"), ("RNN", "chunked"), ("GRU", "linear"), ("GRU", "blelloch")]),
    ],
)
def test_training_steps_are_those_of_the_host(cell, method):
    x, y = np.random.default_rng(0).standard_normal((12, 2, 3)).astype(np.float32), np.array([1, 3])

    def losses(**how):
        trainer = bp.Trainer(getattr(bp, cell)(3, 3, 4, rng=0), bp.Adam(lr=1e-2), method=method, **how)
        return [trainer.step(x, y) for _ in range(3)]

    with device(watch=True) as reports:
        found = losses(backend="cuda", forward="chunked" if method == "chunked" else "linear")
    assert sum("update" in report.program.kernel.name for report in reports) == 3
    np.testing.assert_allclose(found, losses(backend="numpy"), rtol=1e-5)


@pytest.mark.outer
@pytest.mark.parametrize("cell", ["RNN", "GRU"])
def test_kernels_keep_to_budgets_of_sectors_and_conflicts(cell):
    seen = {}
    with device(watch=True) as reports:
        for method in ("linear", "blelloch"):
            trainer = bp.Trainer(getattr(bp, cell)(2, 20, 4, rng=0), bp.Adam(), method=method, backend="cuda")
            trainer.step(np.ones((20, 4, 2), np.float32), np.arange(4))
    for report in sorted(reports, key=lambda report: sum(report.counters["warp instructions"].values())):
        seen[report.kernel] = report.counters["sectors per request"], report.counters["shared passes per request"]
    budgets = beside(__file__)
    assert {name: seen[name] for name in budgets if not (np.array(seen[name]) <= budgets[name]).all()} == {}


def losses(cell, method, **how):
    x, y = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32), np.array([1, 3])
    trainer = bp.Trainer(cell(3, 3, 4, 2, rng=0), bp.Adam(lr=1e-2), method=method, **how)
    for _ in range(3):
        yield trainer.step(x, y), trainer


@pytest.mark.parametrize(("cell", "method"), [(bp.RNN, "linear"), more(bp.GRU, "chunked"), more(bp.GRU, "blelloch")])
def test_recorded_steps_with_a_sub_stream_are_right_and_nothing_is_found(cell, method):
    with device(watch=True) as reports:
        found, trainers = zip(*losses(cell, method, backend="cuda"), strict=True)
    ((_, made),) = trainers[0]._strategy._made.values()
    (step,) = made._recorded.values()
    launches = [call for call in step.recorded.__self__.calls if len(call) > 2]
    assert step.runs == 3 and len(reports) == 1 + 3 * len(launches) > 30
    np.testing.assert_allclose(found, [loss for loss, _ in losses(cell, method, backend="numpy")], rtol=1e-5)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_step_in_which_a_stream_does_not_wait_is_found(graph, missing, monkeypatch):
    calls, follow = [], streams.follow

    def forgetful(stream, other):
        calls.append(stream)
        if len(calls) - 1 != missing:
            follow(stream, other)

    with device(watch=True):
        steps = losses(bp.RNN, "linear", backend="cuda")
        if graph:
            next(steps)  # launch by launch; what comes then is recorded
        for module in ("training.step_cuda", "cells.stack_cuda"):
            monkeypatch.setattr(f"bppsa_nb.{module}.follow", forgetful)
        with pytest.raises((AssertionError, UserWarning), match="does not wait for|could not be recorded"):
            next(steps)
