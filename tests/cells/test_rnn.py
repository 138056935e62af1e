import naive
import numpy as np
import pytest

from bppsa_nb.cells import cpu, rnn
from bppsa_nb.cells.rnn import RNN, Activations
from bppsa_nb.trainer import cross_entropy

SHAPES = [
    (0, 2, 1, 3),
    (1, 1, 1, 1),
    (2, 3, 2, 4),
    (5, 1, 1, 20),
    (10, 2, 3, 5),
    (33, 16, 1, 20),
]  # T, B, I, H
DTYPES = [np.float32, np.float64]
METHODS = [("linear", None), ("blelloch", None), ("truncated", 0), ("truncated", 2), ("auto", None)]


def close(actual, expected, dtype):
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-3, np.abs(expected).max(initial=0)))


def cell(shape, dtype, seed=0):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    weights = draw(size, inputs), draw(size, size) / dtype(np.sqrt(size)), draw(size), draw(size)
    return draw(steps, batch, inputs), draw(batch, size), weights, draw(batch, size)


def case(shape, dtype, seed=0, classes=4):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(seed)
    model = RNN(inputs, size, classes, rng=rng, dtype=dtype)
    x, h0 = rng.standard_normal((steps, batch, inputs)), rng.uniform(-1, 1, (batch, size))
    return model, x.astype(dtype), h0.astype(dtype), rng.standard_normal((batch, classes)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("forward", [rnn.forward, cpu.rnn_forward])
def test_forward_is_equation_9(forward, shape, dtype):
    x, h0, weights, _ = cell(shape, dtype)
    close(forward(x, h0, *weights), naive.rnn_forward(x, h0, *weights), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_twins_equal_numpy(shape, dtype):
    x, h0, weights, grad_output = cell(shape, dtype)
    hidden = rnn.forward(x, h0, *weights)
    close(cpu.rnn_jacobians_T(weights[1], hidden), rnn.jacobians_T(weights[1], hidden), dtype)
    grad_hidden = rnn.sweep(weights[1], hidden, grad_output)
    close(cpu.rnn_sweep(weights[1], hidden, grad_output), grad_hidden, dtype)
    grads = cpu.rnn_parameter_gradients(x, hidden, grad_hidden)
    for name, expected in rnn.parameter_gradients(x, hidden, grad_hidden).items():
        close(grads[name], expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_tanh(dtype):
    """One cell that does nothing but tanh, over its whole range and beyond."""
    x = np.concatenate([np.linspace(-22, 22, 20001), np.logspace(-20, 38, 500), [np.inf, -np.inf, np.nan]])
    x = x.astype(dtype)
    one, zero, none = np.ones((1, 1), dtype), np.zeros(1, dtype), np.zeros((len(x), 1), dtype)
    result = cpu.rnn_forward(x[None, :, None], none, one, 0 * one, zero, zero)[1, :, 0]
    expected = np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=8 * np.finfo(dtype).eps, atol=0, equal_nan=True)
    assert np.nanmax(np.abs(result)) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("method, levels", METHODS)
def test_gradients_equal_the_oracle(method, levels, backend, dtype):
    for shape in SHAPES:
        model, x, h0, grad_logits = case(shape, dtype)
        grads = model.backward(model.forward(x, h0, backend), grad_logits, method, backend, levels)
        expected = naive.rnn_gradients(x, h0, model.params, grad_logits)
        assert grads.keys() == model.params.keys()
        for name, grad in grads.items():
            close(grad, expected[name], dtype)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_gradients_equal_central_differences(backend):
    model, x, h0, _ = case((6, 3, 2, 4), np.float64)
    labels = [0, 3, 1]
    loss = lambda: cross_entropy(model.forward(x, h0, backend).logits, labels)[0]  # noqa: E731
    assert loss() == pytest.approx(naive.rnn_loss(x, h0, model.params, labels)[0], rel=1e-14)
    activations = model.forward(x, h0, backend)
    grads = model.backward(activations, cross_entropy(activations.logits, labels)[1], "blelloch", backend)
    step = 1e-5
    for name, param in model.params.items():
        for index in np.ndindex(param.shape):
            middle = param[index]
            param[index] = middle + step
            above = loss()
            param[index] = middle - step
            below = loss()
            param[index] = middle
            assert grads[name][index] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_pytorch(dtype):
    torch = pytest.importorskip("torch")
    model, x, h0, _ = case((50, 4, 2, 20), dtype, classes=10)
    layer, fc = torch.nn.RNN(2, 20), torch.nn.Linear(20, 10)
    named = dict(layer.named_parameters()) | {f"fc.{name}": p for name, p in fc.named_parameters()}
    assert named.keys() == model.params.keys()
    for name, param in named.items():
        param.data = torch.from_numpy(model.params[name])
    labels = np.arange(4)
    logits = fc(layer(torch.from_numpy(x), torch.from_numpy(h0)[None])[1][0])
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    for backend in ("numpy", "cpu"):
        activations = model.forward(x, h0, backend)
        close(activations.logits, logits.detach().numpy(), dtype)
        ours, grad_logits = cross_entropy(activations.logits, labels)
        assert ours == pytest.approx(loss.item(), rel=1e-6)
        for method in ("linear", "blelloch"):
            for name, grad in model.backward(activations, grad_logits, method, backend).items():
                close(grad, named[name].grad.numpy(), dtype)


def test_shapes_and_initial_parameters():
    model = RNN(2, 20, 10, rng=3)
    shapes = {name: param.shape for name, param in model.params.items()}
    assert shapes == {
        "weight_ih_l0": (20, 2),
        "weight_hh_l0": (20, 20),
        "bias_ih_l0": (20,),
        "bias_hh_l0": (20,),
        "fc.weight": (10, 20),
        "fc.bias": (10,),
    }
    again = RNN(2, 20, 10, rng=np.random.default_rng(3))
    for name, param in model.params.items():
        assert param.dtype == np.float32
        assert 0.5 / np.sqrt(20) < np.abs(param).max() <= 1 / np.sqrt(20)
        np.testing.assert_array_equal(param, again.params[name])
    h0 = np.full((3, 20), 0.5, np.float32)
    activations = model.forward(np.zeros((7, 3, 2), np.float32), h0)
    assert activations.hidden.shape == (1, 8, 3, 20)
    np.testing.assert_array_equal(activations.hidden[:, 0], h0[None])
    assert activations.logits.shape == (3, 10)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_no_steps_leave_the_initial_state(backend):
    model, x, h0, grad_logits = case((0, 2, 1, 3), np.float64)
    activations = model.forward(x, h0, backend)
    np.testing.assert_allclose(activations.logits, h0 @ model.params["fc.weight"].T + model.params["fc.bias"])
    grads = model.backward(activations, grad_logits, "blelloch", backend)
    assert not grads["weight_hh_l0"].any()
    np.testing.assert_allclose(grads["fc.weight"], grad_logits.T @ h0)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_readonly_and_strided_arrays(backend):
    model, x, h0, grad_logits = case((5, 3, 2, 4), np.float32)
    expected = model.backward(model.forward(x, h0, backend), grad_logits, "blelloch", backend)
    compiled = len(cpu.rnn_forward.signatures), len(cpu.rnn_jacobians_T.signatures)
    x = np.repeat(x.transpose(1, 0, 2), 2, axis=0)[::2].transpose(1, 0, 2)
    h0, grad_logits = np.asfortranarray(h0), np.asfortranarray(grad_logits)
    for name, param in model.params.items():
        model.params[name] = np.asfortranarray(param)
    for array in (x, h0, grad_logits, *model.params.values()):
        array.flags.writeable = False
    grads = model.backward(model.forward(x, h0, backend), grad_logits, "blelloch", backend)
    for name, grad in grads.items():
        close(grad, expected[name], np.float32)
    # Nobody waits for the compiler because of how an array lies in memory.
    assert (len(cpu.rnn_forward.signatures), len(cpu.rnn_jacobians_T.signatures)) == compiled


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("method", ["linear", "blelloch"])
def test_huge_inputs_saturate(method, backend):
    """Products that overflow inside tanh have an answer: plus or minus one, and no gradient through them."""
    model, x, h0, grad_logits = case((4, 2, 1, 3), np.float32)
    model.params["weight_ih_l0"] *= 100
    x[2] = np.finfo(np.float32).max
    activations = model.forward(x, h0, backend)
    np.testing.assert_array_equal(np.abs(activations.hidden[0, 3]), 1)
    grads = model.backward(activations, grad_logits, method, backend)
    assert all(np.isfinite(grad).all() for grad in grads.values())


def test_exploding_gradients_are_not_hidden():
    model = RNN(1, 2, 2)
    for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
        model.params[name][:] = 0
    model.params["weight_hh_l0"][:] = 100 * np.eye(2)
    activations = model.forward(np.zeros((50, 1, 1), np.float32), backend="numpy")
    for method in ("linear", "blelloch"):
        grads = model.backward(activations, np.ones((1, 2), np.float32), method, "numpy")
        assert not np.isfinite(grads["bias_ih_l0"]).any()


def good():
    return {"x": np.ones((3, 2, 1), np.float32), "h0": np.zeros((2, 4), np.float32), "backend": "numpy"}


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": [[[1.0]]]}, TypeError, "x must be a numpy.ndarray, got list"),
        ({"x": np.ones((3, 2, 1))}, TypeError, "x must have the model's dtype float32, got float64"),
        ({"x": np.ones((3, 2, 1), int)}, TypeError, "x must have the model's dtype float32, got int64"),
        ({"x": np.ones((3, 2), np.float32)}, ValueError, r"x must have shape \(any, any, 1\), got \(3, 2\)"),
        (
            {"x": np.ones((3, 2, 2), np.float32)},
            ValueError,
            r"x must have shape \(any, any, 1\), got \(3, 2, 2\)",
        ),
        ({"x": np.ones((3, 0, 1), np.float32)}, ValueError, "x must hold at least one sample"),
        (
            {"x": np.full((3, 2, 1), np.nan, np.float32)},
            ValueError,
            r"x must be finite, got nan at \[0, 0, 0\]",
        ),
        (
            {"x": np.full((3, 2, 1), np.inf, np.float32)},
            ValueError,
            r"x must be finite, got inf at \[0, 0, 0\]",
        ),
        ({"h0": np.zeros((3, 4), np.float32)}, ValueError, r"h0 must have shape \(2, 4\), got \(3, 4\)"),
        ({"h0": np.full((2, 4), np.inf, np.float32)}, ValueError, "h0 must be finite"),
        ({"backend": "tpu"}, ValueError, "backend must be one of .* got 'tpu'"),
    ],
)
def test_forward_refuses(change, error, message):
    with pytest.raises(error, match=message):
        RNN(1, 4, 3).forward(**good() | change)


@pytest.mark.parametrize(
    "name, value, error, message",
    [
        (
            "weight_hh_l0",
            np.ones((4, 3), np.float32),
            ValueError,
            r"params\['weight_hh_l0'\] must have shape \(4, 4\)",
        ),
        (
            "fc.bias",
            np.ones(3),
            TypeError,
            r"params\['fc.bias'\] must have the model's dtype float32, got float64",
        ),
        ("bias_ih_l0", np.full(4, np.nan, np.float32), ValueError, r"params\['bias_ih_l0'\] must be finite"),
        ("fc.weight", np.full((3, 4), 3e38, np.float32), FloatingPointError, "logits overflow float32"),
    ],
)
def test_forward_refuses_parameters(name, value, error, message):
    model = RNN(1, 4, 3)
    model.params[name] = value
    with pytest.raises(error, match=message):
        model.forward(np.ones((3, 2, 1), np.float32), np.ones((2, 4), np.float32), backend="numpy")


def test_forward_misses_parameters():
    model = RNN(1, 4, 3)
    del model.params["fc.bias"]
    with pytest.raises(ValueError, match="params must have an entry 'fc.bias'"):
        model.forward(**good())


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"activations": None}, TypeError, "activations must come from RNN.forward, got NoneType"),
        ({"grad_logits": np.ones((2, 4), np.float32)}, ValueError, r"grad_logits must have shape \(2, 3\)"),
        ({"grad_logits": np.ones((2, 3))}, TypeError, "grad_logits must have the model's dtype float32"),
        ({"grad_logits": np.full((2, 3), np.nan, np.float32)}, ValueError, "grad_logits must be finite"),
        ({"method": "fast"}, ValueError, "method must be one of .* got 'fast'"),
        ({"method": "truncated"}, ValueError, "levels must be an integer"),
        ({"method": "truncated", "levels": -1}, ValueError, "levels must be an integer >= 0"),
        ({"method": "linear", "levels": 1}, ValueError, "levels is for method='truncated' only"),
        ({"backend": "tpu"}, ValueError, "backend must be one of .* got 'tpu'"),
    ],
)
def test_backward_refuses(change, error, message):
    model = RNN(1, 4, 3)
    arguments = {
        "activations": model.forward(**good()),
        "grad_logits": np.ones((2, 3), np.float32),
        "backend": "numpy",
    }
    with pytest.raises(error, match=message):
        model.backward(**arguments | change)


def test_backward_refuses_activations_that_do_not_fit():
    model, other = RNN(1, 4, 3), RNN(1, 5, 3)
    activations = other.forward(np.ones((3, 2, 1), np.float32), backend="numpy")
    with pytest.raises(ValueError, match=r"activations.hidden\[0\] must have shape \(4, 2, 4\), got \(4, 2, 5\)"):
        model.backward(activations, np.ones((2, 3), np.float32))
    short = Activations(activations.x[:2], activations.hidden, activations.logits)
    with pytest.raises(ValueError, match="activations.hidden"):
        other.backward(short, np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"hidden_size": 0}, ValueError, "hidden_size must be at least 1, got 0"),
        ({"input_size": 1.5}, TypeError, "input_size must be an integer, got 1.5"),
        ({"num_classes": True}, TypeError, "num_classes must be an integer, got True"),
        ({"dtype": np.float16}, TypeError, "dtype must be float32 or float64, got float16"),
    ],
)
def test_model_refuses(change, error, message):
    with pytest.raises(error, match=message):
        RNN(**{"input_size": 1, "hidden_size": 4, "num_classes": 3} | change)
