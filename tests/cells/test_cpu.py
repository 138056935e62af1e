"""What cores share out in compiled cells: the same numbers, whoever computes them."""

import numpy as np
import pytest
from rings import more

from bppsa_nb.cells import chunked_cpu, layer_cpu
from bppsa_nb.cells import layer as layers
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.lstm import LSTM
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains import runs_cpu
from bppsa_nb.chains.methods import go_back
from bppsa_nb.machine import workers

CELLS = {"rnn": RNN.cell, "gru": GRU.cell, "lstm": LSTM.cell}
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
# Steps around those that a block has, samples around those that a group has.
SHAPES = [(0, 3, 2, 4), (1, 9, 1, 1), (31, 8, 2, 5), (32, 16, 1, 20), (33, 17, 3, 7), (70, 1, 38, 20), (65, 10, 20, 33)]
WIDE = 40, 9, 257, 300  # inputs and states so long that they are laid out by panels
each_cell = pytest.mark.parametrize("cell", CELLS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, more(np.float64)])


@pytest.fixture(params=[1, 2, 3])
def threads(request, monkeypatch):
    """As many threads, for however little there is to do."""
    monkeypatch.setattr(workers, "THREADS", request.param)
    for module, name in (layer_cpu, "THRESHOLD"), (chunked_cpu, "THRESHOLD"), (runs_cpu, "_THRESHOLD"):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(layer_cpu, "_THRESHOLD_NUMBERS", 0)
    return request.param


def forward(module, cell, x, start, *params):
    """Run a layer; return what it saves."""
    saved = layers.new_saved(cell, start, len(x))
    module.forward(cell, x, saved, *params)
    return saved


def layer(cell, shape, dtype):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(shape)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    S, sums = CELLS[cell].states, size * CELLS[cell].gates
    params = draw(sums, inputs), draw(sums, size) / dtype(np.sqrt(size)), draw(sums), draw(sums)
    x, local_grads = draw(steps, batch, inputs), np.zeros((steps + 1, batch, S * size), dtype)
    local_grads[1:, :, :size] = draw(steps, batch, size)  # nothing enters at the initial state, nor but at h
    saved = forward(layers, CELLS[cell], x, draw(S, batch, size), *params)
    return x, params, saved, draw(batch, S * size), local_grads


def assert_close(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(expected).max(initial=0)))


def step_by_step(cell, x, params, saved, grad_output, local_grads):
    """The same gradients from NumPy: the chain, a sweep, and what follows from it."""
    cell = CELLS[cell]
    grad_states = go_back(layers.chain(cell, params[1], *saved), grad_output, local_grads, "numpy", "linear")
    grad_preacts = layers.preact_gradients(cell, *saved, grad_states)
    grads = layers.parameter_gradients(cell, x, saved[0], grad_preacts)
    return grads, layers.input_gradients(cell, params[0], grad_preacts), grad_states[0]


def in_one_go(cell, x, params, saved, grad_output, local_grads, inputs=True):
    """The same by the linear scan compiled in one go, whose loss terms are those at h."""
    terms = None if local_grads is None else np.ascontiguousarray(local_grads[1:, :, : saved[0].shape[3]])
    return layer_cpu.backward(CELLS[cell], params[:2], x, saved, grad_output, terms, inputs)


@each_cell
@each_dtype
@pytest.mark.parametrize("shape", [*SHAPES, WIDE])
@pytest.mark.parametrize("terms", [False, True])
def test_backward_equals_step_by_step(terms, shape, dtype, cell):
    x, params, saved, grad_output, local_grads = layer(cell, shape, dtype)
    if not terms:
        local_grads = None
    expected, expected_at_input, expected_at_start = step_by_step(cell, x, params, saved, grad_output, local_grads)
    for inputs in (False, True):
        grads, at_input, at_start = in_one_go(cell, x, params, saved, grad_output, local_grads, inputs)
        assert_close(grads, expected, dtype)
        assert_close(at_start, expected_at_start, dtype)
        if inputs:
            assert_close(at_input, expected_at_input, dtype)
        else:
            assert at_input is None


def everything(cell, x, params, saved, grad_output, local_grads):
    """All that compiled cells compute."""
    yield from forward(layer_cpu, CELLS[cell], x, saved[0][:, 0], *params)
    yield from in_one_go(cell, x, params, saved, grad_output, local_grads)
    chain = layer_cpu.chain(CELLS[cell], params[1], *saved)
    yield from (chain.slopes, *([] if chain.carry is None else [chain.carry]))
    yield (grad_states := go_back(chain, grad_output, local_grads, "cpu", "linear"))
    yield (grad_preacts := layer_cpu.preact_gradients(CELLS[cell], *saved, grad_states))
    yield layer_cpu.parameter_gradients(CELLS[cell], x, saved[0], grad_preacts)


EXPECTED = {}


@each_cell
@each_dtype
@pytest.mark.parametrize("shape", [(33, 17, 3, 7), (70, 26, 1, 20), (300, 3, 2, 4)])
def test_threads_change_nothing(shape, dtype, cell, threads):
    """Not one bit, neither in the states nor in sums over samples and steps."""
    found = list(everything(cell, *layer(cell, shape, dtype)))
    for one, other in zip(found, EXPECTED.setdefault((cell, dtype, shape), found), strict=True):
        np.testing.assert_array_equal(one, other)


@each_cell
@pytest.mark.parametrize("shape, together", [((130, 70, 3, 7), 16), ((65, 150, 2, 20), 32), ((9, 40, 2, 5), 8)])
def test_large_weights_are_read_for_more_samples_at_once(shape, together, cell, threads, monkeypatch):
    x, params, saved, grad_output, local_grads = layer(cell, shape, np.float32)
    by_eight = forward(layer_cpu, CELLS[cell], x, saved[0][:, 0], *params)
    monkeypatch.setattr(chunked_cpu, "_AT_HAND", 0)
    assert chunked_cpu.samples_together(shape[1], params[1]) == together
    for one, other in zip(forward(layer_cpu, CELLS[cell], x, saved[0][:, 0], *params), by_eight, strict=True):
        np.testing.assert_array_equal(one, other)
    grads, *ends = in_one_go(cell, x, params, saved, grad_output, local_grads)
    expected, *expected_ends = step_by_step(cell, x, params, saved, grad_output, local_grads)
    for found, other in zip((grads, *ends), (expected, *expected_ends), strict=True):
        assert_close(found, other, np.float32)
    np.testing.assert_array_equal(grads, EXPECTED.setdefault((cell, shape), grads))  # whatever the number of threads


@each_cell
@each_dtype
def test_wide_layers_forward_and_their_parameters(dtype, cell):
    x, params, saved, grad_output, local_grads = layer(cell, WIDE, dtype)
    cell = CELLS[cell]
    for one, other in zip(forward(layer_cpu, cell, x, saved[0][:, 0], *params), saved, strict=True):
        assert_close(one, other, dtype)
    chain = layers.chain(cell, params[1], *saved)
    grads = np.stack(layers.preact_gradients(cell, *saved, go_back(chain, grad_output, local_grads, "numpy", "linear")))
    assert_close(*(find.parameter_gradients(cell, x, saved[0], grads) for find in (layer_cpu, layers)), dtype)


@each_cell
def test_nothing_is_written_to_but_the_result(cell):
    x, params, saved, grad_output, local_grads = layer(cell, (40, 9, 2, 5), np.float32)
    chain = layer_cpu.chain(CELLS[cell], params[1], *saved)
    arrays = x, *params, *saved, grad_output, local_grads, chain.slopes
    copies = [array.copy() for array in arrays]
    in_one_go(cell, x, params, saved, grad_output, local_grads)
    layer_cpu.preact_gradients(CELLS[cell], *saved, local_grads)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@each_cell
def test_gradients_that_vanish_pass_for_zero(cell):
    """As in a sweep; and Python's own arithmetic keeps its subnormal numbers."""
    x, params, saved, grad_output, _ = layer(cell, (200, 3, 2, 5), np.float32)
    chain = layers.chain(CELLS[cell], params[1] * np.float32(0.1), *saved)
    chain.slopes[:] *= np.float32(0.3)
    if chain.carry is not None:
        chain.carry[:] *= np.float32(0.3)
    tiny = np.finfo(np.float32).tiny
    plain, compiled = (go_back(chain, grad_output, None, backend, "linear") for backend in ("numpy", "cpu"))
    assert ((np.abs(plain) > 0) & (np.abs(plain) < tiny)).any()
    assert not ((np.abs(compiled) > 0) & (np.abs(compiled) < tiny)).any()
    of_step = np.abs(plain).max(axis=(1, 2), keepdims=True)  # terms of a sum may have cancelled
    assert (np.abs(compiled - plain) <= 1e-5 * of_step + 4 * tiny).all()
    weights = params[0], params[1] * np.float32(0.1)
    _, at_input, _ = in_one_go(cell, x, weights, saved, grad_output * tiny, None)
    assert not at_input[:-1].any() and np.float32(tiny) / np.float32(2) > 0
