"""What cores share out in compiled cells: the same numbers, whoever computes them."""

import numpy as np
import pytest

from bppsa_nb.cells import backward_cpu, gru, layer_cpu, rnn, stacked
from bppsa_nb.cells import layer as layers
from bppsa_nb.chains import structured, structured_cpu
from bppsa_nb.machine import workers

CELLS = {"rnn": rnn, "gru": gru}
DTYPES = [np.float32, np.float64]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
# Steps around those that a block has, samples around those that a group has.
SHAPES = [(0, 3, 2, 4), (1, 9, 1, 1), (31, 8, 2, 5), (32, 16, 1, 20), (33, 17, 3, 7), (70, 1, 38, 20), (65, 10, 20, 33)]
WIDE = 40, 9, 257, 300  # inputs and states so long that they are laid out by panels
each_cell = pytest.mark.parametrize("cell", CELLS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(params=[1, 2, 3])
def threads(request, monkeypatch):
    """As many threads, for however little there is to do."""
    monkeypatch.setattr(workers, "THREADS", request.param)
    for module in (layer_cpu, structured_cpu):
        monkeypatch.setattr(module, "_THRESHOLD", 0)
    monkeypatch.setattr(layer_cpu, "_THRESHOLD_NUMBERS", 0)
    return request.param


def layer(cell, shape, dtype):
    steps, batch, inputs, size = shape
    rng = np.random.default_rng(shape)
    draw = lambda *shape: rng.uniform(-1, 1, shape).astype(dtype)  # noqa: E731
    sums = size * (3 if cell == "gru" else 1)
    params = draw(sums, inputs), draw(sums, size) / dtype(np.sqrt(size)), draw(sums), draw(sums)
    x, local_grads = draw(steps, batch, inputs), draw(steps + 1, batch, size)
    local_grads[0] = 0  # nothing enters at the initial state
    saved = CELLS[cell].forward(x, draw(batch, size), *params)
    return x, params, list(saved) if cell == "gru" else [saved], draw(batch, size), local_grads


def assert_close(found, expected, dtype):
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(expected).max(initial=0)))


def step_by_step(cell, x, params, saved, grad_output, local_grads):
    """The same gradients from NumPy: the chain, a sweep, and what follows from it."""
    module = CELLS[cell]
    chain = module.chain(params[1], *saved)
    grad_hidden = structured.sweep(chain, grad_output, local_grads)
    from_x, from_h = module.gate_gradients(chain, *saved, grad_hidden)
    grads = layers.parameter_gradients(x, saved[0], from_x, from_h)
    return grads, layers.input_gradients(params[0], from_x), grad_hidden[0]


@each_cell
@each_dtype
@pytest.mark.parametrize("shape", [*SHAPES, WIDE])
@pytest.mark.parametrize("terms", [False, True])
def test_backward_equals_step_by_step(terms, shape, dtype, cell):
    x, params, saved, grad_output, local_grads = layer(cell, shape, dtype)
    if not terms:
        local_grads = None
    terms_after = None if local_grads is None else local_grads[1:]
    expected, expected_at_input, expected_at_start = step_by_step(cell, x, params, saved, grad_output, local_grads)
    for inputs in (False, True):
        grads, at_input, at_start = backward_cpu.backward(*params[:2], x, saved, grad_output, terms_after, inputs)
        assert grads.keys() == expected.keys()
        for name, grad in grads.items():
            assert_close(grad, expected[name], dtype)
        assert_close(at_start, expected_at_start, dtype)
        if inputs:
            assert_close(at_input, expected_at_input, dtype)
        else:
            assert at_input is None


def everything(cell, x, params, saved, grad_output, local_grads):
    """All that compiled cells compute."""
    functions = stacked.functions_of(CELLS[cell].__name__, "cpu")
    arrays = functions["forward"](x, saved[0][0], *params)
    yield from arrays if isinstance(arrays, tuple) else [arrays]
    grads, *ends = functions["backward"](*params[:2], x, saved, grad_output, local_grads[1:], True)
    yield from (*ends, *grads.values())
    chain = functions["chain"](params[1], *saved)
    yield chain.slopes
    yield (grad_hidden := structured_cpu.sweep(chain, grad_output, local_grads))
    from_x, from_h = functions["gate_gradients"](chain, *saved, grad_hidden)
    yield from (*from_x, *from_h, *functions["parameter_gradients"](x, saved[0], from_x, from_h).values())


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
    compiled = stacked.functions_of(CELLS[cell].__name__, "cpu")["forward"]
    forward = lambda: compiled(x, saved[0][0], *params)  # noqa: E731
    by_eight = forward()
    monkeypatch.setattr(layer_cpu, "_AT_HAND", 0)
    assert layer_cpu.samples_together(shape[1], params[1]) == together
    for one, other in zip(forward(), by_eight, strict=True):
        np.testing.assert_array_equal(one, other)
    grads, *ends = backward_cpu.backward(*params[:2], x, saved, grad_output, local_grads[1:], True)
    expected, *expected_ends = step_by_step(cell, x, params, saved, grad_output, local_grads)
    for found, other in zip((*grads.values(), *ends), (*map(expected.get, grads), *expected_ends), strict=True):
        assert_close(found, other, np.float32)
    known = EXPECTED.setdefault((cell, shape), list(grads.values()))
    for one, other in zip(grads.values(), known, strict=True):  # whatever the number of threads
        np.testing.assert_array_equal(one, other)


@each_cell
@each_dtype
def test_wide_layers_forward_and_their_parameters(dtype, cell):
    x, params, saved, grad_output, local_grads = layer(cell, WIDE, dtype)
    functions = stacked.functions_of(CELLS[cell].__name__, "cpu")
    arrays = functions["forward"](x, saved[0][0], *params)
    for one, other in zip(arrays if isinstance(arrays, tuple) else [arrays], saved, strict=True):
        assert_close(one, other, dtype)
    chain = CELLS[cell].chain(params[1], *saved)
    at_sums = CELLS[cell].gate_gradients(chain, *saved, structured.sweep(chain, grad_output, local_grads))
    grads, expected = (
        find(x, saved[0], *at_sums) for find in (functions["parameter_gradients"], layers.parameter_gradients)
    )
    for name, grad in grads.items():
        assert_close(grad, expected[name], dtype)


@each_cell
def test_nothing_is_written_to_but_the_result(cell):
    x, params, saved, grad_output, local_grads = layer(cell, (40, 9, 2, 5), np.float32)
    functions = stacked.functions_of(CELLS[cell].__name__, "cpu")
    chain = functions["chain"](params[1], *saved)
    arrays = x, *params, *saved, grad_output, local_grads, chain.slopes
    copies = [array.copy() for array in arrays]
    backward_cpu.backward(*params[:2], x, saved, grad_output, local_grads[1:], True)
    functions["gate_gradients"](chain, *saved, local_grads)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@each_cell
def test_gradients_that_vanish_pass_for_zero(cell):
    """As in a sweep; and Python's own arithmetic keeps its subnormal numbers."""
    x, params, saved, grad_output, _ = layer(cell, (200, 3, 2, 5), np.float32)
    chain = CELLS[cell].chain(params[1] * np.float32(0.1), *saved)
    chain.slopes[:] *= np.float32(0.3)
    if chain.carry is not None:
        chain.carry[:] *= np.float32(0.3)
    tiny = np.finfo(np.float32).tiny
    plain, compiled = structured.sweep(chain, grad_output), structured_cpu.sweep(chain, grad_output)
    assert ((np.abs(plain) > 0) & (np.abs(plain) < tiny)).any()
    assert not ((np.abs(compiled) > 0) & (np.abs(compiled) < tiny)).any()
    np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=4 * tiny)
    weights = params[0], params[1] * np.float32(0.1)
    _, at_input, _ = backward_cpu.backward(*weights, x, saved, grad_output * tiny, None, True)
    assert not at_input[:-1].any()
    assert np.float32(tiny) / np.float32(2) > 0
