"""The device that runs compiled kernels on the CPU, under everything that stands on a GPU."""

import numpy as np
import pytest
from rings import more
from texts import beside

import bppsa_nb as bp
from bppsa_nb.machine import backends
from bppsa_nb.ptx.device import current, device

pytest.importorskip("cuda.core", reason="needs the gpu extra")
from numba import cuda

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


def test_arrays_are_the_process_s_own_memory():
    with device():
        line = cuda.device_array(6, np.float32)
        square = line.reshape(2, 3)
        square[1] = np.float32([1, 2, 3])
        assert line.copy_to_host()[3:].tolist() == [1, 2, 3] and len(square) == 2 and square[1, 2] == 3
        taken = cuda.to_device(line.copy_to_host())
        taken.copy_to_device(np.zeros(6, np.float32))
        assert line.copy_to_host()[4] == 2 and taken.copy_to_host().sum() == 0
        with pytest.raises((AttributeError, ValueError)):
            square[:, 1:].reshape(4)  # which would be a copy


def test_what_is_found_ends_the_launch_and_names_the_line():
    @cuda.jit
    def shifted(x, out):
        shared, i = cuda.shared.array(64, np.float32), cuda.threadIdx.x
        shared[i] = x[i]
        out[i] = shared[63 - i]  # without a barrier

    with device(watch=True):
        with pytest.raises(AssertionError, match="race: shifted, test_device.py, line .* no barrier orders the two"):
            shifted[1, 64](cuda.to_device(np.ones(64, np.float32)), cuda.device_array(64, np.float32))
    assert not current()


def test_afterwards_numba_has_its_own_functions_again():
    before = cuda.device_array, cuda.to_device, cuda.is_available
    with pytest.raises(ZeroDivisionError), device():
        assert current() and backends.cuda_available() and cuda.device_array is not before[0]
        assert backends.resolve("auto") != "cuda"  # it is chosen by name, never by itself
        raise ZeroDivisionError
    assert (cuda.device_array, cuda.to_device, cuda.is_available) == before and not current()


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
