"""The sweeps on a GPU, or from their PTX on the CPU: what NumPy finds."""

import numpy as np
import pytest
from rings import large, more

from bppsa_nb import multigrid
from bppsa_nb.machine import backends
from bppsa_nb.networks import residual_steps as steps

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}


@pytest.fixture
def cuda(monkeypatch):
    from bppsa_nb.networks import residual_steps_cuda as cuda

    if backends.emulated():  # fewer threads than numbers, so that every loop over them goes round
        monkeypatch.setattr(cuda, "_THREADS", 2)
    return cuda


def assert_close(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(expected).max()))


@pytest.mark.gpu
@pytest.mark.parametrize(("state", "kernel", "depth", "coarsening", "activation", "dtype"), [
    more((2, 5), 0, 5, 2, "tanh", np.float32), ((1, 1, 3, 2), 7, 5, 2, "tanh", np.float32),
    more((5, 18), 0, 5, 2, "tanh", np.float32), more((2, 2, 2, 3), 3, 5, 2, "relu", np.float64),
    large((1, 1), 0, 10, 2, "tanh", np.float32),
    large((64, 256), 0, 250, 4, "tanh", np.float32), large((33, 300), 0, 250, 4, "relu", np.float64),
    large((5, 8, 28, 28), 7, 62, 4, "tanh", np.float32), large((3, 5, 9, 33), 3, 62, 4, "relu", np.float64),
])  # fmt: skip
def test_multigrid(state, kernel, depth, coarsening, activation, dtype, cuda):
    """Three levels, a last block that is shorter, and the gradients of everything."""
    rng, units = np.random.default_rng(state), state[1]
    weights = rng.standard_normal((depth, units, units, *[kernel] * (2 if kernel else 0)))
    weights /= max(1, kernel) * np.sqrt(units)
    biases, u0, grad_output = (rng.standard_normal(shape).astype(dtype) for shape in ((depth, units), state, state))
    net = multigrid.ResidualNetwork(weights.astype(dtype), biases, 1 / depth, activation)
    options = {"error": 1, "coarsening": coarsening, "levels": 3, "relaxation": "FCF"}  # one cycle
    states = multigrid.solve(net, u0, **options, backend="numpy").states
    for solve, arguments in ((multigrid.solve, (u0,)), (multigrid.solve_adjoint, (states, grad_output))):
        found, expected = (solve(net, *arguments, **options, backend=backend) for backend in ("cuda", "numpy"))
        assert_close(found.states, expected.states, dtype)
        np.testing.assert_allclose(found.residuals, expected.residuals, rtol=0, atol=100 * TOLERANCE[dtype])
    grads = [net.parameter_gradients(states, expected.states, backend) for backend in ("cuda", "numpy")]
    for found, expected in zip(*grads, strict=True):
        assert_close(found, expected, dtype)


@pytest.mark.gpu
def test_sources_layers_and_sizes(cuda, monkeypatch):
    """A sweep whose every argument matters."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    bounds, layers, sizes = np.array([0, 2, 3]), np.array([3, 0, 1]), rng.uniform(0.1, 2, 3).astype(np.float32)
    for state, kernel in (((3, 3), ()), ((1, 2, 1, 3), (3, 3))):
        units = state[1]
        weights, biases, states = draw(4, units, units, *kernel), draw(4, units), draw(5, *state)
        slopes = steps.slopes(states, weights, biases, "tanh")
        points, source = draw(4, *state), draw(3, *state)
        for name, arguments in (("forward_sweep", (weights, biases)), ("adjoint_sweep", (weights, slopes))):
            last = ("tanh",) if name == "forward_sweep" else ()
            expected = points.copy()
            arrivals = getattr(steps, name)(expected, source, bounds, layers, sizes, *arguments, *last)
            filled, *sent = map(cuda.load, (points, source, bounds, layers, sizes, *arguments))
            found = getattr(cuda, name)(filled, *sent, *last)
            assert_close(cuda.host(found), arrivals, np.float32)
            assert_close(cuda.host(filled), expected, np.float32)


@pytest.mark.gpu
def test_what_the_cycles_do_between_sweeps(cuda):
    rng, index = np.random.default_rng(0), np.array([3, 0])
    points, values = rng.standard_normal((4, 1, 3)), rng.standard_normal((2, 1, 3))
    on_device, sent, where = map(cuda.load, (points, values, index))
    assert np.array_equal(cuda.host(cuda.take(on_device, where)), points[index])
    changes = cuda.difference(sent, cuda.take(on_device, where))
    assert np.array_equal(cuda.host(changes), values - points[index])
    np.testing.assert_allclose(cuda.norms(changes), steps.norms(values - points[index]), rtol=1e-15)
    cuda.put(on_device, where, sent)
    points[index] = values
    assert np.array_equal(cuda.host(on_device), points)


@pytest.mark.gpu
def test_norms_of_any_size(cuda, monkeypatch):
    if backends.emulated():
        monkeypatch.setattr(cuda, "_THREADS", 4)  # so that sums meet more than once
    for scale in (1e30, 1e-30):
        a = np.float32(scale) * np.array([[[3, 0, 4]], [[0, -2, 0]], [[0, 0, 0]]], np.float32)
        np.testing.assert_allclose(cuda.norms(cuda.load(a)), [5 * scale, 2 * scale, 0], rtol=1e-6)
    a = np.array([[[1, np.nan, 1]], [[1, np.inf, 1]]], np.float32)
    assert not np.isfinite(cuda.norms(cuda.load(a))).any()
