import math
from functools import partial
from pathlib import Path

import naive_multigrid as naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa_nb import multigrid

ROUNDING = {"rtol": 1e-11, "atol": 1e-11}


def network(depth, width=3, activation="tanh", seed=0, time=1.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((depth, width, width)) / math.sqrt(width)
    biases = 0.3 * rng.standard_normal((depth, width))
    return multigrid.ResidualNetwork(weights.astype(dtype), biases.astype(dtype), time / depth, activation)


def convolutions(depth, channels=2, kernel=3, activation="relu", seed=0, time=1.0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((depth, channels, channels, kernel, kernel)) / kernel
    return multigrid.ResidualNetwork(weights, rng.standard_normal((depth, channels)), time / depth, activation)


def start(net, batch=2, seed=1):
    image = (4, 3) if net.kernel_size else ()
    u = np.random.default_rng(seed).standard_normal((batch, net.weights.shape[1], *image))
    return u.astype(net.dtype)


hierarchies = st.tuples(st.integers(1, 21), st.integers(2, 5), st.integers(1, 4)).filter(
    lambda drawn: drawn[2] == 1 or drawn[1] ** (drawn[2] - 2) < drawn[0]
)
relaxations, kinds = st.sampled_from(["F", "FC", "FCF"]), st.sampled_from("VF")
options = st.fixed_dictionaries({"relaxation": relaxations, "cycle": kinds, "cycles": st.integers(1, 3)})


@given(hierarchies, options, st.sampled_from(["tanh", "relu"]), st.integers(0, 99))
def test_every_cycle_is_the_papers(hierarchy, options, activation, seed):
    """States and residuals after each cycle, against Equations 16 and 19 to 24 with no term left out."""
    depth, coarsening, levels = hierarchy
    net = network(depth, 2, activation, seed, time=2)
    u0, grad = start(net, seed=seed), start(net, seed=seed + 1)
    guess = np.random.default_rng(seed + 2).standard_normal((depth + 1, *u0.shape))
    chosen = dict(options, coarsening=coarsening, levels=levels, initial=guess)

    def step(a, b, u):
        return naive.step(net.weights[a], net.biases[a], (b - a) * net.h, activation, u)

    points = naive.points_of_levels(depth, coarsening, levels)
    how = options["relaxation"], options["cycle"], options["cycles"] if levels > 1 else 1
    states, residuals = naive.fas(step, points, u0, guess, *how)
    found = multigrid.solve(net, u0, **chosen)
    np.testing.assert_allclose(found.states, states, **ROUNDING)
    np.testing.assert_allclose(found.residuals, residuals, **ROUNDING)

    def adjoint_step(b, a, g):
        return naive.adjoint_step(net.weights[a], net.biases[a], (b - a) * net.h, activation, states[a], g)

    # The same points in the opposite order: where blocks are not all of a length, the short one comes first.
    gradients, residuals = naive.fas(adjoint_step, [each[::-1] for each in points], grad, guess[::-1], *how)
    found = multigrid.solve_adjoint(net, states, grad, **chosen)
    np.testing.assert_allclose(found.states, gradients[::-1], **ROUNDING)
    np.testing.assert_allclose(found.residuals, residuals, **ROUNDING)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("depth", "make"), [(24, network), (23, network), (12, convolutions)])
@pytest.mark.parametrize("coarsening", [2, 3, 4, 2**31 - 1])  # blocks may be longer than the network
def test_two_levels_end_after_as_many_cycles_as_there_are_blocks(depth, make, coarsening, activation):
    """A cycle moves exact values one block on with F-relaxation, two with C-relaxation."""
    net = make(depth, activation=activation)
    u0, grad = start(net), start(net, seed=2)
    states = net.forward(u0)
    gradients = net.backward(states, grad)
    blocks = math.ceil(depth / coarsening)
    for relaxation, cycles in ("F", blocks), ("FC", math.ceil(blocks / 2)), ("FCF", math.ceil(blocks / 2)):
        how = {"coarsening": coarsening, "levels": 2, "relaxation": relaxation}
        np.testing.assert_allclose(multigrid.solve(net, u0, cycles, **how).states, states, **ROUNDING)
        found = multigrid.solve_adjoint(net, states, grad, cycles, **how)
        np.testing.assert_allclose(found.states, gradients, **ROUNDING)


def test_one_level_is_serial_propagation_to_the_last_bit():
    for net in network(17), convolutions(7), network(17, activation="relu", dtype=np.float32):
        u0, grad = start(net), start(net, seed=2)
        states = [u0]
        for n in range(len(net)):
            layer = multigrid.ResidualNetwork(net.weights[n : n + 1], net.biases[n : n + 1], net.h, net.activation)
            states.append(multigrid.solve(layer, states[-1], levels=1).states[1])
        found = multigrid.solve(net, u0, levels=1)
        assert (found.states == np.stack(states)).all()
        assert found.residuals.tolist() == [0] and found.communication == 0
        assert (net.forward(u0) == found.states).all()
        gradients = multigrid.solve_adjoint(net, found.states, grad, levels=1).states
        assert (net.backward(found.states, grad) == gradients).all()
        assert (gradients[-1] == grad).all()


@given(
    *(hierarchies, relaxations, kinds, st.sampled_from(["", "nested_iteration", "skip_downcycle"])),
    st.sampled_from([network, convolutions]),
)
def test_states_and_gradients_converge_to_the_serial_ones(hierarchy, relaxation, cycle, begin, make):
    depth, coarsening, levels = hierarchy
    net = make(depth)
    u0, grad = start(net), start(net, seed=2)
    how = {"coarsening": coarsening, "levels": levels, "relaxation": relaxation, "cycle": cycle, "tol": 1e-12}
    how |= {begin: True} if begin else {}
    solution = multigrid.solve(net, u0, **how)
    adjoint = multigrid.solve_adjoint(net, solution.states, grad, **how)
    assert max(solution.residuals[-1], adjoint.residuals[-1]) <= 1e-12
    states = net.forward(u0)
    gradients = net.backward(states, grad)
    np.testing.assert_allclose(solution.states, states, rtol=0, atol=1e-10)
    np.testing.assert_allclose(adjoint.states, gradients, rtol=0, atol=1e-10)
    grads = net.parameter_gradients(solution.states, adjoint.states)
    for found, wanted in zip(grads, net.parameter_gradients(states, gradients), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("weights", ["smooth", "independent"])
def test_cycles_do_not_depend_on_depth(weights, activation):
    counts = []
    for depth in 64, 256, 1024:
        net = network(depth, 8, activation, seed=depth)
        if weights == "smooth":
            rng, t = np.random.default_rng(0), np.linspace(0, 1, depth)[:, None, None]
            constant, sine = rng.standard_normal((2, 8, 8)) / math.sqrt(8)
            net.weights[:] = constant + np.sin(2 * np.pi * t) * sine
            net.biases[:] = np.sin(2 * np.pi * t[:, 0])
        solution = multigrid.solve(net, start(net))
        counts.append((solution.cycles, multigrid.solve_adjoint(net, solution.states, start(net, seed=2)).cycles))
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.max(counts) <= 8


@pytest.mark.parametrize("begin", ["", "nested_iteration", "skip_downcycle"])
@pytest.mark.parametrize("make", [network, convolutions])
@pytest.mark.parametrize("T", [1, 4])
def test_the_estimated_error_says_when_to_stop(T, make, begin):
    """It is the true one to a factor of three, once it is small, and so cycles are those that it takes."""
    net = make(50, time=T)
    u0, grad = start(net), start(net, seed=2)
    states = net.forward(u0)
    how = {"coarsening": 3} | ({begin: True} if begin else {})
    solvers = partial(multigrid.solve, net, u0), partial(multigrid.solve_adjoint, net, states, grad)
    for solver, right in zip(solvers, (states, net.backward(states, grad)), strict=True):
        found = (solver(cycles=cycles, **how).states for cycles in range(1, 9))
        errors = [np.linalg.norm(states - right) / np.linalg.norm(right) for states in found]
        counts = []
        for error in 1e-1, 1e-2, 1e-4, 1e-6:
            found = solver(error=error, **how)
            assert errors[found.cycles - 1] <= 3 * error
            assert found.cycles <= 2 or errors[found.cycles - 2] > error / 3
            counts.append(found.cycles)
        assert counts == sorted(counts) and counts[0] + 2 <= counts[-1]


def test_the_estimate_of_what_is_exact_is_zero():
    net = network(12)
    net.biases[:] = 0
    for options in {}, {"levels": 1}, {"skip_downcycle": True}, {"nested_iteration": True}:
        assert multigrid.solve(net, np.zeros((2, 3)), error=1e-3, **options).cycles == 1


def coarser(net, factor):
    weights, biases = (np.ascontiguousarray(params[::factor]) for params in (net.weights, net.biases))
    return multigrid.ResidualNetwork(weights, biases, net.h * factor, net.activation)


def test_skipping_the_way_down_interpolates_the_coarsest_network():
    net = network(32)
    u0 = start(net)
    found = multigrid.solve(net, u0, cycles=1, skip_downcycle=True, levels=3).states
    np.testing.assert_array_equal(found[::16], coarser(net, 16).forward(u0))
    middle = coarser(net, 4)  # F-relaxation there, from the coarsest network's states
    np.testing.assert_array_equal(found[4], middle.forward(u0)[1])
    layers = slice(20, 23)
    block = multigrid.ResidualNetwork(net.weights[layers], net.biases[layers], net.h)
    np.testing.assert_array_equal(found[20:24], block.forward(found[20]))
    then = multigrid.solve(net, u0, cycles=2, skip_downcycle=True, levels=3)
    same = multigrid.solve(net, u0, cycles=1, initial=found, levels=3)
    np.testing.assert_allclose(then.states, same.states, **ROUNDING)
    np.testing.assert_allclose(then.residuals[1:], same.residuals, **ROUNDING)


@pytest.mark.parametrize("cycle", ["V", "F"])
def test_nested_iteration_is_multigrid_on_the_coarser_network_first(cycle):
    net = network(64)
    u0 = start(net)
    guess = multigrid.solve(coarser(net, 4), u0, cycles=1, nested_iteration=True, levels=2).states
    initial = np.repeat(guess, 4, axis=0)[: len(net) + 1]  # F-points do not matter
    expected = multigrid.solve(net, u0, cycles=2, initial=initial, levels=3, cycle=cycle)
    found = multigrid.solve(net, u0, cycles=2, nested_iteration=True, levels=3, cycle=cycle)
    np.testing.assert_allclose(found.states, expected.states, **ROUNDING)
    np.testing.assert_allclose(found.residuals, expected.residuals, **ROUNDING)


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_finds_the_same_bits(rank_session, ranks):
    assert rank_session.found(ranks, Path(__file__).with_name("ranks.py")) == [[]] * ranks


def test_arguments_are_left_as_they_were():
    net = network(10)
    u0, initial = start(net), np.ones((11, 2, 3))
    before = initial.copy(), net.weights.copy(), u0.copy()
    solution = multigrid.solve(net, u0, cycles=2, initial=initial)
    kept = solution.states.copy()
    multigrid.solve_adjoint(net, solution.states, u0, cycles=2, initial=initial)
    for array, copy in zip((initial, net.weights, u0, solution.states), (*before, kept), strict=True):
        np.testing.assert_array_equal(array, copy)


def test_float32_stays_float32():
    net = network(400, width=8, dtype=np.float32)
    u0 = start(net)
    solution = multigrid.solve(net, u0, tol=1e-5)
    adjoint = multigrid.solve_adjoint(net, solution.states, u0, tol=1e-5)
    assert {solution.states.dtype, adjoint.states.dtype} == {np.dtype(np.float32)}
    np.testing.assert_allclose(solution.states, net.forward(u0), rtol=0, atol=1e-5)
    u0 = start(net, batch=16)
    for name, error in ("tol", 1e-9), ("error", 1e-12):
        said = f"{name}={error:g} is not reached: .* that is rounding, in float32, and {name} is"
        with pytest.raises(RuntimeError, match=said):
            multigrid.solve(net, u0, **{name: error} if name == "error" else {})
    assert multigrid.solve(net, u0, cycles=25).cycles == 25


def test_what_leaves_the_range_is_an_error_and_large_numbers_are_none():
    weights, biases = np.full((8, 1, 1), 1e50), np.zeros((8, 1))
    net = multigrid.ResidualNetwork(weights, biases, 1.0, "relu")
    for levels in 1, 2:
        with pytest.raises(FloatingPointError, match="leaves the range of float64"):
            multigrid.solve(net, np.ones((1, 1)), cycles=1, coarsening=2, levels=levels)
    net.weights[:] = 0
    huge = np.full((1, 1), 1e200)
    assert multigrid.solve(net, huge, error=1e-3, coarsening=2, initial=np.zeros((9, 1, 1))).states[-1] == 1e200
    assert multigrid.solve(net, huge, cycles=1, initial=np.zeros((9, 1, 1))).states[-1] == 1e200
    net.weights[:] = 1
    residuals = multigrid.solve(net, huge, cycles=1, coarsening=2, levels=2).residuals
    assert 1e195 < residuals[0] < 1e203  # squares of it have no place in float64


def test_a_residual_that_is_the_tolerance_is_small_enough():
    net = network(12)
    u0 = start(net)
    found = multigrid.solve(net, u0, cycles=2, coarsening=2)
    assert found.residuals[1] > 0
    assert multigrid.solve(net, u0, tol=found.residuals[1], coarsening=2).cycles == 2
