"""Recurrences solved in chunks, and by Newton's method, against the loop."""

import numpy as np
import pytest
from comparing import same
from hypothesis import given
from hypothesis import strategies as st
from rings import more

import bppsa_nb as bp
from bppsa_nb.cells import chunked, unroll
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains import counts

MODELS = {"rnn": RNN, "gru": GRU}
each_cell = pytest.mark.parametrize("cell", MODELS)
BACKENDS = "numpy", "cpu"
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WITHIN = {np.float32: 2e-5, np.float64: 1e-10}


def case(cell, T, B, layers=1, radius=None, h0=1.0, dtype=np.float32, seed=0, size=20):
    """Return a model whose recurrent weights have a spectral radius, inputs and initial states."""
    rng = np.random.default_rng(seed)
    model = MODELS[cell](2, size, 3, layers, rng=rng, dtype=dtype)
    if radius is not None:
        for layer in range(layers):
            weights = model.params[f"weight_hh_l{layer}"].reshape(-1, size, size)
            for weight in weights:
                weight *= radius / abs(np.linalg.eigvals(weight)).max()
    x = rng.standard_normal((T, B, 2)).astype(dtype)
    return model, x, (h0 * rng.standard_normal((layers, B, size))).astype(dtype)


@each_cell
@given(
    T=st.sampled_from([0, 1, 2, 97, 1000]) | st.integers(1, 120),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 2), st.integers(1, 35)),
    length=st.none() | st.integers(1, 40) | st.just(250),
    radius=st.floats(0.1, 5),
    h0=st.sampled_from([0.0, 3.0]),
    most=st.sampled_from([None, 0, 0.5, 4]),
)
def test_without_tolerance_chunks_have_the_loops_bits(cell, T, sizes, length, radius, h0, most):
    B, layers, size = sizes
    model, x, h0 = case(cell, T, B, layers, radius, h0, size=size, seed=T)
    loop = model.forward(x, h0, "cpu", method="linear")
    found = model.forward(x, h0, "cpu", method="chunked", length=length, tol=0, most=most)
    assert same(found, loop) and loop.solved is None
    assert (found.solved is None) == (T <= length) if length else True
    for solved in found.solved or ():
        assert solved.mismatch == 0 and solved.unconverged[-1] == 0 and solved.passes == len(solved.jumps)
        assert solved.steps <= T + 2 * solved.length
        assert repr(solved).startswith(f"Solved(method='chunked', length={solved.length}, passes=")


@each_cell
@each_backend
@each_dtype
@pytest.mark.parametrize("method", ["chunked", "newton"])
@pytest.mark.parametrize("length", [None, 1, 50])
def test_states_and_gradients_are_within_the_tolerance(cell, backend, dtype, method, length):
    if method == "chunked" and length == 1:
        pytest.skip("a loop of passes")
    model, x, h0 = case(cell, 331, 3, 2, dtype=dtype)
    loop = model.forward(x, h0, backend, method="linear")
    found = model.forward(x, h0, backend, method=method, length=length)
    at_logits = np.ones((3, 3), dtype)
    assert abs(found.hidden - loop.hidden).max() <= WITHIN[dtype] and found.hidden.dtype == dtype
    if cell == "gru":
        assert abs(found.gates - loop.gates).max() <= 2 * WITHIN[dtype]
    for solved in found.solved:
        assert solved.method == method and solved.finished == "converged" and solved.steps < 331
        assert solved.mismatch <= unroll.TOLERANCE[dtype().itemsize] and solved.unconverged[-1] == 0
    grads = model.backward(loop, at_logits, "linear", backend)
    for name, grad in model.backward(found, at_logits, "linear", backend).items():
        np.testing.assert_allclose(grad, grads[name], rtol=0, atol=1e-5 * max(1, abs(grads[name]).max()))


@each_backend
@pytest.mark.parametrize("T", [100, 1000, more(10000)])
def test_deer_takes_few_iterations_while_a_network_is_fresh(backend, T):
    for dtype, tol, most in ((np.float32, 1e-5, 3), (np.float64, 1e-10, 4)):
        model, x, _ = case("rnn", T, 1, dtype=dtype)
        found = model.forward(x, None, backend, method="newton", length=1, tol=tol)
        assert found.solved[0].finished == "converged" and found.solved[0].corrections <= most
        assert abs(found.hidden - model.forward(x, None, backend, method="linear").hidden).max() <= WITHIN[dtype]


@pytest.mark.parametrize(("radius", "seed", "most"), [(1.2, 2, 20), (1.3, 1, 15), (1.5, 1, 30)])
def test_newton_goes_on_where_tangents_lead_out_of_range(radius, seed, most):
    """In single precision, products of the Jacobians of a wrong guess overflow where states themselves do not."""
    model, x, _ = case("rnn", 1000, 1, radius=radius, seed=seed)
    found = model.forward(x, None, "cpu", method="newton", length=1, tol=1e-5, most=most)
    assert found.solved[0].finished == "converged" and found.solved[0].corrections > 5


@each_backend
def test_newton_goes_on_where_no_float_holds_tangents(backend):
    model, x, h0 = case("rnn", 300, 2)
    model.params["weight_hh_l0"][::2] *= 1e-30  # beside entries near one, in every product
    loop = model.forward(x, h0, backend, method="linear")
    found = model.forward(x, h0, backend, method="newton", length=3, tol=1e-5)
    assert found.solved[0].corrections > 0
    np.testing.assert_allclose(found.hidden, loop.hidden, rtol=0, atol=1e-5)


@each_backend
def test_chaos_is_solved_serially_at_little_more_than_the_loops_steps(backend):
    model, x, h0 = case("rnn", 600, 2, radius=4.0)
    loop = model.forward(x, h0, backend, method="linear")
    found = model.forward(x, h0, backend, method="chunked", length=50)
    (solved,) = found.solved
    np.testing.assert_allclose(found.hidden[:, :8], loop.hidden[:, :8], atol=1e-5)  # then, what rounding differs by
    assert solved.finished == "serially" and solved.steps <= 600 + 2 * 50 and solved.work < 1 + 4 + 1 + 1
    if backend == "cpu":
        assert same(found, loop)
    newton = model.forward(x, h0, backend, method="newton", length=1)
    assert newton.solved[0].finished == "repaired" and newton.solved[0].corrections <= unroll.CORRECTIONS
    if backend == "cpu":
        assert same(newton, loop)


def test_samples_that_met_are_not_repaired_again():
    """One sample forgets, one does not: work is that of the second."""
    step = lambda h, x: np.where(x > 0, 0.1 * h + x, h + 1e-3)  # noqa: E731
    inputs = np.random.default_rng(0).uniform(1, 2, (400, 2, 1))
    inputs[:, 1] = -1
    found = bp.unroll(step, np.zeros((2, 1)), inputs, length=40)
    loop = bp.unroll(step, np.zeros((2, 1)), inputs, method="linear")
    np.testing.assert_allclose(found.states, loop.states, atol=1e-12)
    assert found.solved.unconverged[:2] == [8 + 8, 7]
    assert found.solved.steps <= 400 + 80


@pytest.mark.parametrize("share, tol", [(0.5, None), (0, 0)])
def test_a_repair_ends_where_it_meets_what_was_there(share, tol):
    step = lambda h, x: share * h + x  # noqa: E731
    inputs = np.random.default_rng(0).standard_normal((5000, 1, 1)).astype(np.float32)
    found = bp.unroll(step, np.zeros((1, 1), np.float32), inputs, length=500, tol=tol)
    assert found.solved.steps == counts.WARM_UP + 500 + counts.CHECK_EVERY and found.solved.passes == 2
    assert found.solved.mismatch <= unroll.TOLERANCE[4]


@pytest.mark.parametrize("method", ["chunked", "newton"])
def test_recurrences_of_ones_own(method):
    def lstm(h, x):
        c, state = np.split(h, 2, axis=1)
        gates = np.tanh(np.concatenate([state, x], axis=1) @ weights)
        i, f, o, g = np.split(gates, 4, axis=1)
        c = 0.25 * (1 + f) * (1 + i) * g + 0.5 * (1 + f) * c
        return np.concatenate([c, 0.5 * (1 + o) * np.tanh(c)], axis=1)

    def logistic(h, x):
        return 2.8 * h * (1 - h)

    rng = np.random.default_rng(0)
    weights = rng.uniform(-0.4, 0.4, (8, 20))
    jacobian = lambda h, x: (2.8 * (1 - 2 * h))[:, :, None]  # noqa: E731
    cases = [(logistic, np.full((3, 1), 0.2), 300, jacobian if method == "newton" else None)]
    if method == "chunked":
        cases += [(lstm, np.zeros((3, 10)), rng.standard_normal((300, 3, 3)), None)]
    for step, h0, inputs, jacobian in cases:
        loop = bp.unroll(step, h0, inputs, method="linear")
        found = bp.unroll(step, h0, inputs, method=method, jacobian=jacobian, length=60)
        assert loop.solved is None and found.solved.method == method
        np.testing.assert_allclose(found.states, loop.states, rtol=0, atol=1e-10)
        assert found.states.shape == (301, *h0.shape)


def test_a_recurrence_without_inputs_takes_a_number_of_steps():
    states = [np.full((2, 1), 0.3, np.float32)]
    for _ in range(100):
        states.append(2.8 * states[-1] * (1 - states[-1]))
    step = lambda h, x: 2.8 * np.hstack([h, x]) * (1 - h)  # noqa: E731  x is empty, of the dtype of h
    for T in (0, 100):
        np.testing.assert_allclose(bp.unroll(step, states[0], T, length=30).states, states[: T + 1], rtol=1e-6)


@each_backend
@pytest.mark.parametrize("method", ["chunked", "newton"])
def test_states_that_are_tiny_and_grow_are_not_taken_for_nothing(backend, method):
    model = bp.RNN(1, 20, 10, rng=0)
    for name, value in model.params.items():
        value[:] = 1.1 * np.eye(20) if name == "weight_hh_l0" else 0
    x, h0 = np.zeros((1000, 1, 1), np.float32), np.full((1, 1, 20), 1e-15, np.float32)
    loop = model.forward(x, h0, backend, method="linear").hidden
    found = model.forward(x, h0, backend, method=method, length=50)
    assert loop[0, -1].min() > 0.3
    np.testing.assert_allclose(found.hidden, loop, rtol=1e-5)


def test_what_was_let_stand_is_told():
    found = bp.unroll(lambda h, x: 0.5 * h + x, np.ones((1, 1)), np.ones((200, 1, 1)), length=20, tol=1e-3)
    loop = bp.unroll(lambda h, x: 0.5 * h + x, np.ones((1, 1)), np.ones((200, 1, 1)), method="linear")
    assert 0 < np.abs(found.states - loop.states).max() <= 2 * found.solved.mismatch <= 2e-3


def test_groups_of_chunks_say_of_their_repairs_what_single_chunks_do():
    model, x, h0 = case("rnn", 1040, 1, radius=0.9)  # of 13 chunks, 8 and 4 are repaired together
    numpy, cpu = (model.forward(x, h0, each, method="chunked", length=80, tol=0.01).solved[0] for each in BACKENDS)
    assert (cpu.passes, cpu.steps, cpu.unconverged, cpu.work) == (2, 64 + 80 + 32, [12, 0], numpy.work)
    assert abs(cpu.mismatch - numpy.mismatch) < 1e-5 < numpy.mismatch


def test_a_slow_leak_is_repaired_and_not_taken_serially():
    inputs = np.random.default_rng(0).standard_normal((3000, 2, 1))
    solved = bp.unroll(lambda h, x: 0.9 * h + 0.1 * np.tanh(x), np.zeros((2, 1)), inputs, length=40).solved
    assert solved.finished == "converged" and solved.steps < 400


def test_newton_multiplies_the_jacobians_of_a_chunk():
    rng = np.random.default_rng(0)
    W = rng.standard_normal((4, 4)) * 0.4

    def step(h, x):
        return np.tanh(h @ W.T + x)

    def jacobian(h, x):
        return (1 - step(h, x) ** 2)[:, :, None] * W

    h0, inputs = rng.standard_normal((2, 4)), rng.standard_normal((101, 2, 4))
    loop = bp.unroll(step, h0, inputs, method="linear").states
    for length in (1, 5, 20):
        found = bp.unroll(step, h0, inputs, method="newton", jacobian=jacobian, length=length)
        assert found.solved.finished == "converged" and found.solved.corrections <= 6
        np.testing.assert_allclose(found.states, loop, rtol=0, atol=1e-10)
    wrong = bp.unroll(step, h0, inputs, method="newton", jacobian=lambda h, x: 9 * jacobian(h, x), length=5)
    assert wrong.solved.finished == "repaired"  # and right all the same
    np.testing.assert_allclose(wrong.states, loop, rtol=0, atol=1e-10)


def test_one_correction_solves_a_linear_recurrence():
    rng = np.random.default_rng(0)
    inputs = 0.6 * rng.standard_normal((40, 2, 9))  # matrices that do not commute
    jacobian = lambda h, x: x.reshape(-1, 3, 3)  # noqa: E731
    step = lambda h, x: np.einsum("bij,bj->bi", jacobian(h, x), h) + 1  # noqa: E731
    for length in (4, 10, 40):
        solved = bp.unroll(step, np.ones((2, 3)), inputs, method="newton", jacobian=jacobian, length=length).solved
        assert solved.corrections == 1 and solved.finished == "converged" if length < 40 else solved is None


def test_what_is_not_finite_is_never_converged():
    grows = lambda h, x: h * h * 1e3  # noqa: E731
    with pytest.raises(FloatingPointError, match="the state after 7 steps is not finite: overflow encountered in "):
        bp.unroll(grows, np.full((1, 1), 10.0), 64, length=4)
    # A guess that leads to NaN, where the loop does not: an input that only the true state survives.
    sharp = lambda h, x: np.where(h > 0, 0.5 * h + 0.5, np.log(h))  # noqa: E731
    found = bp.unroll(sharp, np.full((1, 1), 0.7), 64, length=8)
    assert np.isfinite(found.states).all()
    model, x, _ = case("rnn", 100, 1)
    model.params["fc.weight"][...] = np.finfo(np.float32).max
    with pytest.raises(FloatingPointError, match="logits overflow .* are finite$"):
        model.forward(x + 5, method="chunked", length=10)


def test_ctrl_c_between_passes_leaves_the_model_as_it_was(monkeypatch):
    model, x, h0 = case("rnn", 300, 2)
    before = {name: param.copy() for name, param in model.params.items()}
    expected = model.forward(x, h0, "cpu").hidden

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chunked.Chunks, "take_pass", stop)
        with pytest.raises(KeyboardInterrupt):
            model.forward(x, h0, "cpu", method="chunked")
    assert all(np.array_equal(model.params[name], before[name]) for name in before)
    np.testing.assert_array_equal(model.forward(x, h0, "cpu", method="chunked", tol=0).hidden, expected)
