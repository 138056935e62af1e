import gc
import signal
from pathlib import Path

import naive
import numpy as np
import pytest
from rings import large, more
from scipy.special import expit
from texts import beside, refuses

from bppsa_nb.cells import layer as layers
from bppsa_nb.cells import layer_cpu, stack
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.lstm import LSTM
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains import runs_cpu
from bppsa_nb.chains.methods import go_back
from bppsa_nb.machine import memory

SHAPES = [(0, 2, 1, 3), (1, 1, 1, 1), (2, 3, 2, 4), (5, 1, 1, 20), (10, 2, 3, 5), more((33, 16, 1, 20))]  # T, B, I, H
DTYPES = [np.float32, np.float64]
METHODS = [("linear", None), ("blelloch", None), ("truncated", 0), ("truncated", 2), ("chunked", None), ("auto", None)]
MODELS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
GOLDEN = Path(__file__).parents[1] / "golden"
each_cell = pytest.mark.parametrize("cell", MODELS)
each_backend = pytest.mark.parametrize("backend", ["numpy", "cpu"])


def close(actual, expected, dtype):
    assert actual.dtype == dtype and actual.shape == expected.shape
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1e-3, np.abs(expected).max(initial=0)))


def layer(cell, shape, dtype, seed=0):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    sums, states = size * MODELS[cell].cell.gates, MODELS[cell].cell.states
    params = draw(sums, inputs), draw(sums, size) / dtype(np.sqrt(size)), draw(sums), draw(sums)
    return draw(steps, batch, inputs), draw(states, batch, size), params


def case(cell, shape, dtype, seed=0, classes=4, num_layers=1):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(seed)
    model = MODELS[cell](inputs, size, classes, num_layers, rng=rng, dtype=dtype)
    x, h0, c0 = rng.standard_normal((steps, batch, inputs)), *rng.uniform(-1, 1, (2, num_layers, batch, size))
    x, h0, c0, at = (a.astype(dtype) for a in (x, h0, c0, rng.standard_normal((batch, classes))))
    return model, x, (h0, c0) if cell == "lstm" else h0, at


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@each_cell
@each_backend
def test_forward_is_equation_9_or_10_or_an_lstm(backend, cell, shape, dtype):
    x, start, params = layer(cell, shape, dtype)
    saved = layers.new_saved(MODELS[cell].cell, start, len(x))
    stack.layer_of(backend).forward(MODELS[cell].cell, x, saved, *params)
    for found, expected in zip(saved, naive.forward(cell, x, start, *params), strict=True):
        close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_cells_that_do_nothing_but_sigmoid_or_tanh(dtype):
    """Over their whole range and beyond: the reset gate of one, the hidden state of the other."""
    x = np.concatenate([np.linspace(-100, 100, 20001), np.logspace(-20, 38, 500), [np.inf, -np.inf, np.nan]])
    x, eps = x.astype(dtype), np.finfo(dtype).eps
    none, weight_ih = np.zeros((len(x), 1), dtype), np.array([[1], [0], [0]], dtype)
    zeros = lambda n: (np.zeros((n, 1), dtype), *np.zeros((2, n), dtype))  # noqa: E731
    forward = stack.layer_of("cpu").forward
    gru, rnn = (layers.new_saved(kind.cell, none[None], 1) for kind in (GRU, RNN))
    with np.errstate(all="ignore"):
        forward(GRU.cell, x[None, :, None], gru, weight_ih, *zeros(3))
        forward(RNN.cell, x[None, :, None], rnn, weight_ih[:1], *zeros(1))
    gates, (states,) = gru[1], rnn[0]
    wide = x.astype(np.float64)
    np.testing.assert_allclose(gates[0, 0, :, 0], expit(wide), rtol=0, atol=4 * eps)
    np.testing.assert_allclose(states[1, :, 0], np.tanh(wide), rtol=8 * eps, atol=0)
    assert np.nanmin(gates[0]) >= 0 and np.nanmax(gates[0]) == np.nanmax(np.abs(states)) == 1


def check_gradients(model, activations, grad_logits, expected, backend, methods=METHODS):
    for method, levels in methods:
        grads = model.backward(activations, grad_logits, method, backend, levels)
        assert list(grads) == list(model.params)
        for name, grad in grads.items():
            close(grad, expected[name], model.dtype)


@each_cell
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_the_oracle(shape, dtype, cell, monkeypatch):
    monkeypatch.setattr("bppsa_nb.chains.methods.chunk_length", lambda *_: 3)
    for num_layers in (1, 3) if shape[0] <= 10 else (1,):
        model, x, h0, grad_logits = case(cell, shape, dtype, num_layers=num_layers)
        expected = naive.gradients(cell, x, h0, model.params, grad_logits)
        for backend in ("numpy", "cpu"):
            check_gradients(model, model.forward(x, h0, backend), grad_logits, expected, backend)


@pytest.mark.gpu
@each_cell
@pytest.mark.parametrize(("shape", "num_layers", "dtype"), [
    ((0, 2, 2, 3), 2, np.float32), more((1, 1, 2, 3), 1, np.float64), ((3, 2, 2, 3), 2, np.float32),
    more((5, 1, 2, 3), 1, np.float64), more((4, 2, 2, 3), 2, np.float32), large((259, 16, 2, 20), 2, np.float32),
    large((1000, 16, 2, 20), 1, np.float32), large((100, 3, 2, 600), 1, np.float64),
])  # fmt: skip
def test_a_gpu_gives_what_numpy_does(shape, num_layers, dtype, cell, few_threads, monkeypatch):
    model, x, h0, grad_logits = case(cell, shape, dtype, num_layers=num_layers)
    expected, activations = (model.forward(x, h0, backend) for backend in ("numpy", "cuda"))
    with monkeypatch.context() as patch:
        patch.setattr("bppsa_nb.machine.cuda.REGISTERS", 0)  # by the kernels for any H
        by_any = model.forward(x, h0, "cuda")
    for found in (activations, by_any):
        for name in ("states", "logits") if cell == "rnn" else ("states", "gates", "logits"):
            close(getattr(found, name), getattr(expected, name), dtype)
    expected = model.backward(activations, grad_logits, "linear", "numpy")
    # An LSTM's Jacobians are 2 H wide, and so have kernels of their own.
    methods = METHODS[:1] if (cell, shape[0]) == ("lstm", 3) else METHODS
    check_gradients(model, activations, grad_logits, expected, "cuda", methods)


def check_against_pytorch(entries):
    """Hold a model with PyTorch's parameters against PyTorch's results; see pytorch_golden.py."""
    params = {name.removeprefix("params/"): entries[name] for name in entries if name.startswith("params/")}
    num_layers, _, size = entries["h0"].shape
    classes, inputs = len(params["fc.bias"]), entries["x"].shape[2]
    cell = {1: "rnn", 3: "gru", 4: "lstm"}[len(params["bias_ih_l0"]) // size]
    h0 = (entries["h0"], entries["c0"]) if cell == "lstm" else entries["h0"]
    model = MODELS[cell](inputs, size, classes, num_layers, dtype=np.float64)
    assert {name: param.shape for name, param in model.params.items()} == {n: p.shape for n, p in params.items()}
    model.params = params
    for backend in ("numpy", "cpu"):
        activations = model.forward(entries["x"], h0, backend)
        for found, expected in (
            (activations.logits, entries["logits"]), (activations.hidden[-1, 1:], entries["output"]),
            (activations.hidden[:, -1], entries["last"]),
            (activations.states[:, -1, -1], entries["last_c" if cell == "lstm" else "last"]),
        ):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
        for method in ("linear", "blelloch"):
            grads = model.backward(activations, entries["grad_logits"], method, backend)
            for name, grad in grads.items():
                np.testing.assert_allclose(grad, entries[f"grads/{name}"], rtol=0, atol=1e-10, err_msg=name)


CASES = [(cell, num_layers) for cell in MODELS for num_layers in (1, 2)]


@pytest.mark.parametrize("cell, num_layers", CASES)
def test_equals_what_pytorch_gave_once(cell, num_layers):
    with np.load(GOLDEN / f"{cell}_{num_layers}.npz", allow_pickle=False) as entries:
        check_against_pytorch(dict(entries))


@pytest.mark.peers
@pytest.mark.parametrize("cell, num_layers", CASES)
def test_equals_pytorch(cell, num_layers):
    from pytorch_golden import run_pytorch

    check_against_pytorch(run_pytorch(cell, num_layers, seed=1))


@each_cell
def test_shapes_and_initial_parameters(cell):
    sums, kept = {"rnn": (20, 0), "gru": (60, 4), "lstm": (80, 5)}[cell]
    model = MODELS[cell](2, 20, 10, num_layers=2, rng=3)
    shapes = [(sums, 2), (sums, 20), (sums,), (sums,), (sums, 20), (sums, 20), (sums,), (sums,), (10, 20), (10,)]
    names = [f"{name}_l{layer}" for layer in range(2) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    expected = dict(zip([*names, "fc.weight", "fc.bias"], shapes, strict=True))
    assert {name: param.shape for name, param in model.params.items()} == expected
    again = MODELS[cell](2, 20, 10, num_layers=2, rng=np.random.default_rng(3))
    for name, param in model.params.items():
        assert param.dtype == np.float32 and 0.5 / np.sqrt(20) < np.abs(param).max() <= 1 / np.sqrt(20)
        np.testing.assert_array_equal(param, again.params[name])
    h0 = np.stack([np.full((3, 20), value, np.float32) for value in (0.5, 0.25)])
    activations = model.forward(np.zeros((7, 3, 2), np.float32), (h0, -h0) if cell == "lstm" else h0)
    assert activations.hidden.shape == (2, 8, 3, 20)
    np.testing.assert_array_equal(activations.hidden[:, 0], h0)
    assert activations.logits.shape == (3, 10)
    if cell == "lstm":
        np.testing.assert_array_equal(activations.states[:, 1, 0], -h0)
    if kept:
        assert activations.gates.shape == (2, kept, 7, 3, 20)
    else:
        assert activations.gates is None


@each_cell
@each_backend
def test_gradients_that_overflow_are_not_hidden(backend, cell):
    functions, of_cell = stack.layer_of(backend), MODELS[cell].cell
    x, start, params = layer(cell, (3, 1, 1, 2), np.float32)
    arrays = layers.new_saved(of_cell, start, len(x))
    functions.forward(of_cell, x, arrays, *params)
    with np.errstate(all="ignore"):
        links = functions.chain(of_cell, params[1], *arrays)
        grad_states = go_back(links, np.full((1, links.shape[2]), np.inf, np.float32), None, backend, "linear")
        assert not np.isfinite(grad_states).any()
        assert not np.isfinite(functions.preact_gradients(of_cell, *arrays, grad_states)).any()


@each_cell
@each_backend
@pytest.mark.parametrize("method", ["linear", "blelloch"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_gradient_too_large_is_infinite_by_any_method(num_layers, method, backend, cell):
    model, x, h0, grad_logits = case(cell, (3, 2, 1, 2), np.float32, num_layers=num_layers)
    grad_logits[:] = 3e38
    model.params["fc.weight"][:] = 100  # beyond the range before the last layer is reached
    grads = model.backward(model.forward(x, h0, backend), grad_logits, method, backend)
    assert not np.isfinite(grads["bias_ih_l0"]).all()


@each_cell
@each_backend
def test_activations_that_are_not_finite_are_named(backend, cell):
    model, x, h0, grad_logits = case(cell, (3, 2, 1, 2), np.float32)
    activations = model.forward(x, h0, backend)
    activations.hidden[0, 2, 1, 0] = np.nan
    states = r"states must be finite, got nan at \[0, 0" if cell == "lstm" else r"hidden must be finite, got nan at \[0"
    with pytest.raises(ValueError, match=rf"activations.{states}, 2, 1, 0\]"):
        model.backward(activations, grad_logits, "linear", backend)


@each_cell
def test_a_chain_is_that_of_a_layer_or_refused(cell):
    model, x, h0, at = case(cell, (5, 2, 1, 3), np.float64, num_layers=2)
    activations = model.forward(x, h0, "numpy")
    end = np.zeros((2, model.cell.states * 3))
    end[:, :3] = at @ model.params["fc.weight"]
    for backend in ("numpy", "cpu"):
        gradient = go_back(model.chain(activations, 1, backend), end, None, "numpy", "linear")[0]
        found = stack.run_back(model, x, activations.saved, ([None, end], [None] * 2), ("linear", "numpy", None))
        np.testing.assert_allclose(gradient, found[2][1], rtol=1e-10, atol=1e-14)
    with pytest.raises(ValueError, match="activations must be all there, on the host, got some that forward found"):
        model.chain(model.forward(x, h0, "numpy", checkpoint_every=2))


@each_cell
def test_ctrl_c_in_compiled_code_is_what_arrives(cell):
    model, x, h0, grad_logits = case(cell, (40, 2, 2, 5), np.float32)

    def stop(number, frame):
        signal.raise_signal(signal.SIGINT)

    def train():
        while True:
            activations = model.forward(x, h0, "cpu")
            model.backward(activations, grad_logits, "linear", "cpu")

    model.backward(model.forward(x, h0, "cpu"), grad_logits, "linear", "cpu")  # compiled
    handlers = signal.signal(signal.SIGALRM, stop), signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # Hypothesis looks on while it collects, where Ctrl-C would be lost
    try:
        for i in range(150):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001 + 1e-5 * i)
                train()
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handlers[0])
        signal.signal(signal.SIGINT, handlers[1])
    model.backward(model.forward(x, h0, "cpu"), grad_logits, "linear", "cpu")


@each_backend
def test_readonly_and_strided_arrays(backend):
    model, x, h0, grad_logits = case("rnn", (5, 3, 2, 4), np.float32)
    expected = model.backward(model.forward(x, h0, backend), grad_logits, "blelloch", backend)
    compiled = len(layer_cpu.run_steps.signatures), len(runs_cpu._assemble.signatures)
    x = np.repeat(x.transpose(1, 0, 2), 2, axis=0)[::2].transpose(1, 0, 2)
    h0, grad_logits = np.asfortranarray(h0), np.asfortranarray(grad_logits)
    model.params = {name: np.asfortranarray(param) for name, param in model.params.items()}
    for array in (x, h0, grad_logits):
        array.flags.writeable = False
    grads = model.backward(model.forward(x, h0, backend), grad_logits, "blelloch", backend)
    for name, grad in grads.items():
        close(grad, expected[name], np.float32)
    # Nobody waits for the compiler because of how an array lies in memory.
    assert (len(layer_cpu.run_steps.signatures), len(runs_cpu._assemble.signatures)) == compiled


@each_backend
@pytest.mark.parametrize("method", ["linear", "blelloch"])
def test_huge_inputs_saturate(method, backend):
    """Products that overflow inside tanh have an answer: plus or minus one, and no gradient through them."""
    model, x, h0, grad_logits = case("rnn", (4, 2, 1, 3), np.float32)
    model.params["weight_ih_l0"] *= 100
    x[2] = np.finfo(np.float32).max
    activations = model.forward(x, h0, backend)
    np.testing.assert_array_equal(np.abs(activations.hidden[0, 3]), 1)
    grads = model.backward(activations, grad_logits, method, backend)
    assert all(np.isfinite(grad).all() for grad in grads.values())


@pytest.mark.parametrize("change, message", beside(__file__)["parameters"])
def test_forward_refuses_parameters(change, message):
    model = RNN(1, 4, 3)
    exec(change, {"p": model.params, "np": np})
    x, h0 = np.ones((3, 2, 1), np.float32), np.ones((1, 2, 4), np.float32)
    refuses("model.forward(x, h0, backend='numpy')", message, locals())


@pytest.mark.parametrize("size", ["input_size", "hidden_size", "num_classes", "num_layers"])
def test_parameters_that_no_memory_holds_are_not_begun(size, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    sizes = {"input_size": 2, "hidden_size": 3, "num_classes": 4, "num_layers": 1}
    with pytest.raises(MemoryError, match=rf"making GRU\(.*{size}=2147483647.* takes .* GiB, but 0.0 GiB"):
        GRU(**sizes | {size: 2**31 - 1})
    model = GRU(2, 3, 4, 5)
    weights = sum(param.size for name, param in model.params.items() if "weight" in name)
    monkeypatch.setattr(memory, "available", lambda: 4 * weights)
    GRU(2, 3, 4, 5)  # just fits
    monkeypatch.setattr(memory, "available", lambda: 4 * weights - 1)
    with pytest.raises(MemoryError):
        GRU(2, 3, 4, 5)
