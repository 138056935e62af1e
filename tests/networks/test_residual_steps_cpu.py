"""The compiled sweeps: what NumPy finds, and the same bits however they are shared out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bppsa_nb import multigrid
from bppsa_nb.machine import workers
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.networks import residual_steps_cpu as cpu

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


@st.composite
def sweeps(draw):
    """A level: the shape of its states, the kernel, the blocks; what is in them follows from a seed."""
    small = st.integers(1, 5)
    kernel = draw(st.sampled_from([0, 0, 1, 3, 5, 7]))
    if kernel:
        state = draw(st.tuples(st.integers(1, 3), small, st.integers(1, 9), st.integers(1, 20)))
    else:
        state = draw(st.tuples(st.integers(1, 70), st.integers(1, 40)))
    blocks = draw(st.lists(small, min_size=1, max_size=4))
    return state, kernel, np.cumsum([0, *blocks]), draw(st.booleans()), draw(st.sampled_from(steps.ACTIVATIONS))


def data(case, dtype):
    state, kernel, bounds, with_source, activation = case
    rng, units, count = np.random.default_rng(state), state[1], bounds[-1]

    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    depth = count + 2
    weights = draw(depth, units, units, *[kernel] * (2 if kernel else 0)) / dtype(max(kernel, 1) * np.sqrt(units))
    level = bounds, rng.permutation(depth)[:count], rng.uniform(0.1, 2, count).astype(dtype)
    source = draw(count, *state) if with_source else None
    return draw(count + 1, *state), source, level, weights, draw(depth, units), draw(depth + 1, *state), activation


def everything(ops, points, source, level, weights, biases, states, activation):
    """All that sweeps and their like give."""
    found = [ops.slopes(states, weights, biases, activation)]
    for sweep, arguments in (
        (ops.forward_sweep, (weights, biases, activation)), (ops.adjoint_sweep, (weights, found[0])),
    ):
        filled = points.copy()
        found += [sweep(filled, source, *level, *arguments), filled]
    return [*found, *ops.parameter_gradients(states, states, weights, biases, 0.5, activation)]


@each_dtype
@given(case=sweeps())
@example(case=((64, 33), 0, np.array([0, 4, 6]), True, "tanh"))
@example(case=((2, 3, 5, 40), 3, np.array([0, 4, 5]), True, "relu"))
def test_twins_agree(dtype, case):
    arguments = data(case, dtype)
    for found, expected in zip(everything(cpu, *arguments), everything(steps, *arguments), strict=True):
        assert found.dtype == dtype and found.shape == expected.shape
        scale = max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@each_dtype
@pytest.mark.parametrize(
    ("state", "kernel"), [((1, 3), 0), ((100, 20), 0), ((65, 7), 0), ((5, 3, 4, 5), 3), ((9, 2, 3, 17), 7)]
)
def test_the_same_bits_whoever_computes_them(state, kernel, dtype, monkeypatch):
    arguments = data((state, kernel, np.array([0, 4, 8, 9]), True, "tanh"), dtype)
    expected = everything(cpu, *arguments)
    monkeypatch.setattr(cpu, "_THRESHOLD", 0)
    for threads in (1, 2, 5):
        for module in (workers, cpu):
            monkeypatch.setattr(module, "THREADS", threads)
        for found, one in zip(everything(cpu, *arguments), expected, strict=True):
            assert np.array_equal(found, one)


@each_dtype
@pytest.mark.parametrize(("state", "kernel"), [((40, 20), 0), ((3, 3, 4, 5), 3)])
def test_the_same_bits_in_blocks_of_any_length(state, kernel, dtype):
    """Blocks that go on where the one before ended find what a single block does."""
    case = state, kernel, np.array([0, 12]), False, "tanh"
    points, _, (bounds, layers, sizes), weights, biases, states, activation = data(case, dtype)
    slopes = cpu.slopes(states, weights, biases, activation)
    for sweep, arguments in (
        (cpu.forward_sweep, (weights, biases, activation)), (cpu.adjoint_sweep, (weights, slopes)),
    ):
        serial = points.copy()
        serial[-1:] = sweep(serial, None, bounds, layers, sizes, *arguments)
        for length in (1, 4, 5):
            ends = np.append(np.arange(0, 12, length), 12)
            filled = serial.copy()
            filled[np.setdiff1d(np.arange(12), ends)] = 7
            arrivals = sweep(filled, None, ends, layers, sizes, *arguments)
            assert np.array_equal(filled, serial) and np.array_equal(arrivals, serial[ends[1:]])


def test_nan_passes_through_relu():
    points = np.array([[[np.inf, 0]], [[0, 0]]])  # infinity times zero
    arguments = np.array([0, 1]), np.array([0]), np.ones(1), np.zeros((1, 2, 2)), np.zeros((1, 2)), "relu"
    assert np.isnan(cpu.forward_sweep(points, None, *arguments)).all()


def test_what_stands_beside_an_image_does_not_come_back():
    """Vectors reach over an image's edge. What is computed there overflows here."""
    gradients, weights = np.zeros((9, 1, 1, 1, 2), np.float32), np.zeros((8, 1, 1, 3, 3), np.float32)
    gradients[0, 0, 0, 0, 1], weights[:, 0, 0, 1, 2] = 1, 3e38  # W^T moves numbers to the right
    slopes = np.ones((8, 1, 1, 1, 2), np.float32)
    sizes = np.ones(8, np.float32)
    found = cpu.adjoint_sweep(gradients, None, np.array([0, 8]), np.arange(8), sizes, weights, slopes)
    assert found.ravel().tolist() == [0, 1]


@each_dtype
@pytest.mark.parametrize("kernel", [0, 3])
def test_views_and_read_only_arrays(kernel, dtype):
    """The same numbers, and nothing is compiled anew for another layout."""
    state = (3, 4, 5, 6) if kernel else (5, 4)
    points, *rest = data((state, kernel, np.array([0, 7]), True, "tanh"), dtype)
    everything(cpu, points, *rest)
    compiled = len(cpu._steps.signatures), len(cpu._add_up.signatures)
    _, _, weights, biases, initial, activation = rest
    plain = multigrid.ResidualNetwork(weights, biases, 0.1, activation)
    odd = multigrid.ResidualNetwork(np.asfortranarray(weights), biases.repeat(2, axis=1)[:, ::2], 0.1, activation)
    odd.weights.flags.writeable = odd.biases.flags.writeable = False
    results = []
    for net, order in ((plain, "C"), (odd, "F")):
        u0, begin = points[0].copy(order), initial.copy(order)
        u0.flags.writeable = begin.flags.writeable = False
        states = multigrid.solve(net, u0, cycles=2, coarsening=2, initial=begin, backend="cpu").states
        states.flags.writeable = False
        found = multigrid.solve_adjoint(net, states, u0, cycles=2, coarsening=2, initial=begin, backend="cpu")
        gradients = found.states.copy(order)
        gradients.flags.writeable = False
        grads = net.parameter_gradients(states, gradients, backend="cpu")
        results.append([states, gradients, *grads])
    for found, expected in zip(*results, strict=True):
        assert np.array_equal(found, expected)
    assert compiled == (len(cpu._steps.signatures), len(cpu._add_up.signatures))


def test_load_copies_only_what_it_must():
    array = np.zeros((2, 3))
    assert cpu.load(array) is array
    for other in (array.T, array[:, ::2], np.broadcast_to(array[0], (4, 3))):
        loaded = cpu.load(other)
        assert loaded.flags.c_contiguous and loaded.flags.writeable and np.array_equal(loaded, other)
