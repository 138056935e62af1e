"""The four variants of the GRU: which are the same function, what they cost, and how PyTorch sees them."""

import math

import numpy as np
import pytest
from texts import beside, refuses

from bppsa_nb.cells.gru import GRU
from bppsa_nb.graphs import variants
from bppsa_nb.graphs.variants import Counter

SHAPES = [(0, 2, 3, 4), (1, 1, 1, 1), (1, 2, 3, 4), (2, 1, 5, 3), (7, 3, 2, 5), (4, 2, 6, 1)]
COUNTED = [(1, 1, 1, 1), (1, 2, 3, 4), (3, 2, 5, 4), (6, 4, 3, 2)]


def case(shape, dtype=np.float64, seed=0):
    T, B, I, H = shape
    rng = np.random.default_rng(seed)
    params = {name: rng.standard_normal(param.shape).astype(dtype) for name, param in variants.parameters(I, H).items()}
    arrays = (rng.standard_normal(size).astype(dtype) for size in ((T, B, I), (B, H), (T, B, H)))
    return params, *arrays


def run(variant, params, x, h0, grad_hidden):
    activations = variants.forward(variant, params, x, h0)
    return activations.hidden, variants.backward(params, x, activations, grad_hidden)


def naive_forward(moved, params, x, h0):
    """Number by number, after the article."""

    def sigmoid(a):
        return 1 / (1 + math.exp(-a))

    def dot(row, vector):
        return sum(float(a) * float(b) for a, b in zip(row, vector, strict=True))

    T, B, _ = x.shape
    H = h0.shape[1]
    W, U, b, d = (params[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    hidden = [h0]
    for t in range(T):
        after = np.empty((B, H))
        for s in range(B):
            h = hidden[-1][s]
            r = [sigmoid(dot(W[i], x[t, s]) + b[i] + dot(U[i], h) + d[i]) for i in range(H)]
            for i in range(H):
                j, k = H + i, 2 * H + i
                z = sigmoid(dot(W[j], x[t, s]) + b[j] + dot(U[j], h) + d[j])
                if moved:
                    inner = r[i] * (dot(U[k], h) + d[k])
                else:
                    inner = dot(U[k], [r[n] * h[n] for n in range(H)]) + d[k]
                c = math.tanh(dot(W[k], x[t, s]) + b[k] + inner)
                after[s, i] = (1 - z) * h[i] + z * c
        hidden.append(after)
    return np.array(hidden)


@pytest.mark.parametrize("variant", variants.NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_the_article_s_equations(variant, shape):
    params, x, h0, _ = case(shape)
    activations = variants.forward(variant, params, x, h0)
    expected = naive_forward(variant in ("moved", "saved"), params, x, h0)
    np.testing.assert_allclose(activations.hidden, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("variant", variants.NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_central_differences(variant, shape):
    params, x, h0, grad_hidden = case(shape)
    _, grads = run(variant, params, x, h0, grad_hidden)
    arguments = params | {"x": x, "h0": h0}
    assert grads.keys() == arguments.keys()

    def loss(name, direction, epsilon):
        moved = arguments | {name: arguments[name] + epsilon * direction}
        params = {key: moved[key] for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        hidden = variants.forward(variant, params, moved["x"], moved["h0"]).hidden
        return np.sum(hidden[1:] * grad_hidden)

    rng = np.random.default_rng(1)
    for name, value in arguments.items():
        assert grads[name].shape == value.shape and grads[name].dtype == value.dtype
        for _ in range(4):  # in a random direction, every entry has its share
            direction = rng.standard_normal(value.shape)
            found = np.sum(grads[name] * direction)
            expected = (loss(name, direction, 1e-5) - loss(name, direction, -1e-5)) / 2e-5
            assert abs(found - expected) <= 1e-7 * (1 + abs(expected)), name


@pytest.mark.parametrize("variant", variants.NAMES)
def test_a_closed_update_gate_keeps_the_state(variant):
    """If z is 0, the hidden state remains constant."""
    params, x, h0, grad_hidden = case((6, 2, 3, 4))
    params["bias_ih"][4:8] = -1000
    hidden, grads = run(variant, params, x, h0, grad_hidden)
    np.testing.assert_array_equal(hidden, np.broadcast_to(h0, hidden.shape))
    np.testing.assert_allclose(grads["h0"], grad_hidden.sum(axis=0))
    assert not grads["weight_hh"].any() and not grads["x"].any()


@pytest.mark.parametrize("variant", variants.NAMES)
def test_huge_inputs_saturate(variant):
    params, x, h0, grad_hidden = case((3, 2, 1, 2), np.float32)
    params["weight_ih"][:] = np.sign(params["weight_ih"])
    hidden, grads = run(variant, params, x * np.float32(1e38), h0, grad_hidden)
    for array in (hidden, *grads.values()):
        assert array.dtype == np.float32 and np.isfinite(array).all()


@pytest.mark.parametrize("variant", variants.NAMES)
def test_any_memory_order_and_nothing_is_written_to(variant):
    params, x, h0, grad_hidden = case((5, 3, 2, 4))
    hidden, grads = run(variant, params, x, h0, grad_hidden)
    odd = {name: np.asfortranarray(param) for name, param in params.items()}
    odd_x, odd_h0, odd_grad = np.asfortranarray(x), np.asfortranarray(h0), np.asfortranarray(grad_hidden)
    for array in (odd_x, odd_h0, odd_grad, *odd.values()):
        array.flags.writeable = False
    activations = variants.forward(variant, odd, odd_x, odd_h0)
    for array in (activations.hidden, activations.gates):
        array.flags.writeable = False
    found = variants.backward(odd, odd_x, activations, odd_grad)
    np.testing.assert_allclose(activations.hidden, hidden, rtol=0, atol=1e-14)
    for name, grad in grads.items():
        np.testing.assert_allclose(found[name], grad, rtol=0, atol=1e-12)


# What is counted: from running, and here held against what the equations say.


@pytest.mark.parametrize("T, B, I, H", COUNTED)
def test_counts_are_what_the_equations_say(T, B, I, H):
    """Three products with W and three with U forward, twice as many backward; the third variant has one more.

    On the serial path, there are two products per step forward and two backward, or one and one: the third variant's
    repeated product waits for a hidden state only, and gradients of x and of the parameters no longer than h0's. Kept
    are h, r, z and c per step and sample; or h, r, z, m and what is left of W_c x.
    """
    work, numbers = T * B * 9 * H * (I + H), T * B * H
    for variant, multiply_adds, products, serial, kept in (
        ("original", work, 9 * T + 9, 4 * T, 4 * numbers), ("concatenated", work, 4 * T + 5, 4 * T, 4 * numbers),
        ("moved", work + numbers * H, 3 * T + 4, 2 * T, 4 * numbers), ("saved", work, 2 * T + 4, 2 * T, 5 * numbers),
    ):
        expected = {"multiply_adds": multiply_adds, "products": products, "serial": serial, "kept": kept}
        assert expected.items() <= variants.count(variant, T, B, I, H).items()


@pytest.mark.parametrize("variant", variants.NAMES)
def test_kept_is_what_the_backward_pass_reads(variant):
    """Spoil a kept number, and gradients change; there is nothing that is kept in vain, and nothing else is read."""
    params, x, h0, grad_hidden = case((3, 2, 2, 2))
    activations = variants.forward(variant, params, x, h0)
    grads = variants.backward(params, x, activations, grad_hidden)
    kept = [activations.hidden[1:-1], activations.gates]  # the last state is the output
    if activations.product is not None:
        kept.append(activations.product)
    for array in kept:
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] += 0.5
            spoiled = variants.backward(params, x, activations, grad_hidden)
            assert any(not np.array_equal(spoiled[name], grad) for name, grad in grads.items()), index
            array[index] = value


def test_launches_grow_by_the_same_number_with_every_step():
    """Fewer products mean fewer launches; recomputing c takes one more than recomputing m."""
    each = {}
    for variant in variants.NAMES:
        counts = [variants.count(variant, T, 2, 3, 4)["launches"] for T in (1, 2, 5, 9)]
        each[variant] = counts[1] - counts[0]
        assert counts == [counts[0] + (T - 1) * each[variant] for T in (1, 2, 5, 9)]
    assert each["concatenated"] < each["original"]
    assert each["saved"] == each["moved"] + 1


def test_counting_does_the_work():
    params, x, h0, grad_hidden = case((4, 3, 2, 5))
    for variant in variants.NAMES:
        hidden, grads = run(variant, params, x, h0, grad_hidden)
        activations = variants.forward(variant, params, x, h0, Counter())
        counted = variants.backward(params, x, activations, grad_hidden, Counter())
        np.testing.assert_array_equal(activations.hidden, hidden)
        assert all(np.array_equal(counted[name], grad) for name, grad in grads.items())


def test_counter_follows_memory():
    xp = Counter()
    memory, weights = np.ones((2, 6)), np.eye(3)
    left, right = memory[:, :3], memory[:, 3:]
    xp.matmul(left, weights, out=right)
    assert xp.serial == 1
    out = np.empty((2, 3))
    xp.matmul(left, weights, out=out)  # beside it in memory, but waits for nothing
    assert xp.serial == 1
    xp.add(right, 1, out=right)
    xp.matmul(memory[:, 2:5], weights, out=out)  # overlaps with the right half
    assert xp.serial == 2
    xp.multiply(left, 2, out=out)  # overwritten: waits no more
    xp.matmul(out.T[:, ::-1], np.ones((2, 1)), out=np.empty((3, 1)))
    assert xp.serial == 2
    assert (xp.launches, xp.products, xp.multiply_adds) == (6, 4, 18 * 3 + 6)


# PyTorch's GRU, and the one of this package, is the moved one.


def to_pytorch(params):
    """Translate parameters or gradients for PyTorch's GRU, or back."""
    return {name: np.concatenate([r, -z, c]) for name, (r, z, c) in ((n, np.split(p, 3)) for n, p in params.items())}


def test_parameters_are_drawn_as_pytorch_draws_them():
    params = variants.parameters(3, 25, rng=5)
    again = variants.parameters(3, 25, rng=np.random.default_rng(5))
    shapes = dict(weight_ih=(75, 3), weight_hh=(75, 25), bias_ih=(75,), bias_hh=(75,))
    assert {name: param.shape for name, param in params.items()} == shapes
    for name, param in params.items():
        assert param.dtype == np.float32 and 0.15 < np.abs(param).max() <= 0.2
        np.testing.assert_array_equal(param, again[name])


def test_arguments_that_do_not_go_together():
    params, x, h0, grad_hidden = case((3, 2, 1, 4))
    good = {"variant": "moved", "params": params, "x": x, "h0": h0}
    back = {"params": params, "x": x, "grad_hidden": grad_hidden, "activations": variants.forward(**good)}
    small = variants.parameters(1, 5, 0, float)
    for text, message in beside(__file__)["refused"]:
        refuses(text, message, globals() | locals())


def test_attributes_that_numpy_does_not_have():
    with pytest.raises(AttributeError, match="no attribute 'sigmoid'"):
        Counter().sigmoid(1, out=np.empty(1))


def test_moved_reset_is_this_package_s_gru_with_z_negated():
    """Equation 10 is PyTorch's; the model's loss is on the last hidden state only."""
    _, x, h0, _ = case((6, 3, 2, 5))
    model = GRU(2, 5, 3, rng=1, dtype=np.float64)
    theirs = {name: model.params[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    activations = model.forward(x, h0[None], backend="numpy")
    grad_logits = np.random.default_rng(2).standard_normal((3, 3))
    their_grads = model.backward(activations, grad_logits, method="linear", backend="numpy")
    grad_hidden = np.zeros((6, 3, 5))
    grad_hidden[-1] = grad_logits @ model.params["fc.weight"]
    for variant in ("moved", "saved"):
        hidden, grads = run(variant, to_pytorch(theirs), x, h0, grad_hidden)
        np.testing.assert_allclose(hidden, activations.hidden[0], rtol=0, atol=1e-13)
        translated = to_pytorch({name: grads[name] for name in theirs})
        for name, grad in translated.items():
            np.testing.assert_allclose(grad, their_grads[f"{name}_l0"], rtol=0, atol=1e-12, err_msg=name)
