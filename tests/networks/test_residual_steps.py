"""Sweeps in NumPy against loops, central differences, and PyTorch."""

import naive_multigrid as naive
import numpy as np
import pytest
from comparing import central_differences

from bppsa_nb.networks import residual_steps as steps

STATES = {"dense": (3, 4), "3x3": (2, 2, 3, 4), "7x7": (1, 2, 4, 3)}
KERNELS = {"dense": (), "3x3": (3, 3), "7x7": (7, 7)}
each_kind = pytest.mark.parametrize("kind", STATES)
each_activation = pytest.mark.parametrize("activation", steps.ACTIVATIONS)


def network(kind, depth):
    """Weights, biases, and a function that draws; sums are away from zero, where ReLU has no slope."""
    rng, units = np.random.default_rng(depth), STATES[kind][1]
    weights = rng.standard_normal((depth, units, units, *KERNELS[kind])) / units
    return weights, rng.standard_normal((depth, units)), lambda *points: rng.standard_normal((*points, *STATES[kind]))


def blocks_in_loops(step, points, source, bounds):
    """What a sweep makes of points, and what it returns."""
    points, arrivals = points.copy(), []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        value = points[begin]
        for k in range(begin, end):
            value = step(k, value)
            if source is not None:
                value = value + source[k]
            if k + 1 < end:
                points[k + 1] = value
        arrivals.append(value)
    return points, np.stack(arrivals)


@each_kind
@each_activation
@pytest.mark.parametrize("bounds", [[0, 1], [0, 6], [0, 2, 4, 6], [0, 4, 6], [0, 2, 6], [0, 1, 2, 3]])
@pytest.mark.parametrize("with_source", [False, True])
def test_sweeps_equal_loops(with_source, bounds, activation, kind):
    weights, biases, draw = network(kind, 8)
    count = bounds[-1]
    rng = np.random.default_rng(count)
    layers, sizes = rng.permutation(8)[:count], rng.uniform(0.1, 2, count)
    points, states = draw(count + 1), draw(9)
    source, bounds = draw(count) if with_source else None, np.array(bounds)

    def forward(k, u):
        return naive.step(weights[layers[k]], biases[layers[k]], sizes[k], activation, u)

    def adjoint(k, g):
        n = layers[k]
        return naive.adjoint_step(weights[n], biases[n], sizes[k], activation, states[n], g)

    slopes = steps.slopes(states, weights, biases, activation)
    for step, found, arguments in (
        (forward, steps.forward_sweep, (weights, biases, activation)),
        (adjoint, steps.adjoint_sweep, (weights, slopes)),
    ):
        expected, ends = blocks_in_loops(step, points, source, bounds)
        filled = points.copy()
        arrivals = found(filled, source, bounds, layers, sizes, *arguments)
        np.testing.assert_allclose(arrivals, ends, rtol=0, atol=1e-12)
        np.testing.assert_allclose(filled, expected, rtol=0, atol=1e-12)
        assert np.array_equal(filled[bounds], points[bounds])


@each_kind
@each_activation
def test_gradients_equal_central_differences(activation, kind):
    depth, h = 3, 0.3
    weights, biases, draw = network(kind, depth)
    u0, grad_output = draw(), draw()
    ends, layers, sizes = np.array([0, depth]), np.arange(depth), np.full(depth, h)

    def run():
        points = np.empty((depth + 1, *u0.shape))
        points[0] = u0
        points[-1:] = steps.forward_sweep(points, None, ends, layers, sizes, weights, biases, activation)
        return points

    states = run()
    gradients = np.empty_like(states)
    gradients[0] = grad_output
    slopes = steps.slopes(states, weights, biases, activation)
    gradients[-1:] = steps.adjoint_sweep(gradients, None, ends, layers[::-1], sizes, weights, slopes)
    gradients = gradients[::-1]
    of_weights, of_biases = steps.parameter_gradients(states, gradients, weights, biases, h, activation)
    arrays = {"u0": u0, "weights": weights, "biases": biases}
    expected = central_differences(lambda: np.sum(grad_output * run()[-1]), arrays).values()
    for found, wanted in zip((gradients[0], of_weights, of_biases), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-7)


def test_relu_has_no_slope_at_zero_and_hides_no_nan():
    points, weights = np.array([[[-1.0, 0, 1]], [[0, 0, 0]]]), np.eye(3)[None]
    block = np.arange(2), np.arange(1), np.ones(1)
    assert steps.slopes(points, weights, np.zeros((1, 3)), "relu").tolist() == [[[0, 0, 1]]]
    for activation in steps.ACTIVATIONS:
        assert np.isnan(steps.forward_sweep(points, None, *block, weights, np.full((1, 3), np.nan), activation)).all()


def test_norms_of_any_size():
    for scale in (1, 1e200, 1e-200):
        a = scale * np.array([[[3.0, 4]], [[0, -2]], [[0, 0]]])
        np.testing.assert_allclose(steps.norms(a), [5 * scale, 2 * scale, 0], rtol=1e-15)
    with np.errstate(all="ignore"):
        assert not np.isfinite(steps.norms(np.array([[[np.nan, 1]], [[np.inf, 1]]]))).any()
