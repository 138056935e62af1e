from fractions import Fraction

import numpy as np
import pytest
from texts import beside, refuses

from bppsa_nb import multigrid

GOOD = {"weights": np.zeros((4, 3, 3)), "biases": np.zeros((4, 3)), "h": 0.1}


def test_bad_states():
    net = multigrid.ResidualNetwork(**GOOD)
    images = multigrid.ResidualNetwork(np.zeros((4, 3, 3, 5, 5)), np.zeros((4, 3)), 1)
    for text, message in beside(__file__)["states"]:
        refuses(text, message, globals() | locals())


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_parameters_that_change_are_checked_again(activation):
    """ReLU's slope and tanh's would hide what is not finite."""
    for name, value in ("weights", np.nan), ("biases", np.inf):
        net = multigrid.ResidualNetwork(np.zeros((4, 3, 3)), np.zeros((4, 3)), 0.1, activation)
        u = np.ones((2, 3))
        states = net.forward(u)
        getattr(net, name)[2, 1] = value
        calls = (net.forward, u), (net.backward, states, u), (net.parameter_gradients, states, states)
        for function, *arguments in *calls, (net.jacobians_T, states):
            with pytest.raises(ValueError, match=rf"{name} must be finite, got {value} at \[2, 1"):
                function(*arguments)
    for name in *GOOD, "activation":
        with pytest.raises(AttributeError, match=f"{name} of this ResidualNetwork cannot be replaced; make another"):
            setattr(net, name, None)


@pytest.mark.parametrize("h", [np.float32(0.5), Fraction(1, 2), 2**70])
def test_step_sizes_of_any_kind(h):
    given, expected = (multigrid.ResidualNetwork(**(GOOD | {"h": each})) for each in (h, float(h)))
    assert np.array_equal(given.forward(np.ones((1, 3))), expected.forward(np.ones((1, 3))))


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_results_do_not_depend_on_numpys_error_state(backend):
    """What leaves the range on the way changes no answer, and what leaves it in the end is an error of ours."""
    weights = np.full((4, 1, 1), 1e-200)
    with np.errstate(all="raise"):
        net = multigrid.ResidualNetwork(weights, np.zeros((4, 1)), 1e-200)
        states = net.forward(np.full((1, 1), 1e-200), backend)
        gradients = net.backward(states, states[-1], backend)
        assert (gradients == 1e-200).all() and (states == 1e-200).all()
        assert not np.any(net.parameter_gradients(states, gradients, backend)[0])
        assert (net.jacobians_T(states) == 1).all()
    net = multigrid.ResidualNetwork(np.full((4, 1, 1), 1e200), np.ones((4, 1)), 1e200, "relu")
    with pytest.raises(FloatingPointError, match="transposed Jacobian overflows float64"):
        net.jacobians_T(np.zeros((5, 1, 1)))


def test_time_is_what_a_step_is_measured_in():
    """Twice the layers with half the step is the same differential equation, and nearly the same result (Eq. 2)."""
    rng = np.random.default_rng(0)
    weights, biases, u0 = rng.standard_normal((64, 3, 3)), rng.standard_normal((64, 3)), rng.standard_normal((2, 3))
    once = multigrid.ResidualNetwork(weights, biases, 1 / 64).forward(u0)[-1]
    twice = multigrid.ResidualNetwork(weights.repeat(2, axis=0), biases.repeat(2, axis=0), 1 / 128).forward(u0)[-1]
    assert 0 < np.abs(once - twice).max() < 0.05
