"""Layers on a GPU, apart from what reads their states, or from their PTX on the CPU."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from rings import large, more

import bppsa_nb as bp
from bppsa_nb.cells import stack
from bppsa_nb.cells.unroll import SolverOptions
from bppsa_nb.chains import plan
from bppsa_nb.machine.cuda_compiler import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("few_threads")]
CELLS = {"rnn": bp.RNN, "gru": bp.GRU, "lstm": bp.LSTM}
NAMES = ["rnn", more("gru"), more("lstm")]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-10}
METHODS = {"linear": None, "chunked": None, "blelloch": None, "truncated": 1}


def case(cell, T, B, H, L, dtype):
    """A model, the same one with its parameters on the GPU, inputs, initial states, and gradients at what is read."""
    rng = np.random.default_rng([T, B, H, L])
    here = CELLS[cell](2, H, 3, L, rng=7, dtype=dtype)
    params = {name: cuda.to_device(param) for name, param in here.params.items()}
    there = SimpleNamespace(cell=here.cell, num_layers=L, hidden_size=H, dtype=here.dtype, params=params)
    S = here.cell.states
    shapes = (T, B, 2), (L, S, B, H), (L, B, S * H), (T, B, S * H)
    return here, there, *(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def by_layer(h0, take=np.array):
    """Initial states as a GPU takes them."""
    return [[take(start) for start in own] for own in h0]


def close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other.size:  # of an RNN, nothing is kept but states
            one = one.copy_to_host()
            assert one.shape == other.shape and one.dtype == other.dtype
            bound = tolerance * (1 + np.nan_to_num(abs(other), posinf=0).max())
            np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def flat(found):
    grads, at_input, at_start = found
    return [*(grads[name] for name in sorted(grads)), at_input, *at_start]


@pytest.mark.parametrize("cell", NAMES)
@pytest.mark.parametrize(("T", "B", "H", "L", "dtype", "length"), [
    (5, 2, 3, 1, np.float32, 2), more(1, 1, 3, 1, np.float64, None), more(4, 1, 3, 2, np.float64, None),
    large(500, 16, 20, 2, np.float32, 50), large(100, 3, 300, 1, np.float64, None),
])  # fmt: skip
def test_they_compute_what_layers_on_the_host_compute(cell, T, B, H, L, dtype, length):
    here, there, x, h0, at_last, at_each = case(cell, T, B, H, L, dtype)
    options = SolverOptions("chunked", length, 0) if length else SolverOptions("linear")
    expected = stack.run(here, x, h0, SolverOptions("linear"), "numpy")[:2]
    x_there = cuda.to_device(x)
    for model, initial in ((there, by_layer(h0, cuda.to_device)), (here, by_layer(h0))):
        *saved, solved = stack.run(model, x_there, initial, options, "cuda")
        close(saved, expected, TOLERANCE[dtype])
        assert [each is not None for each in solved] == [length is not None] * L
    read = {"no last state": [None] * L, "the last layer's": [None] * (L - 1) + [at_last[-1]], "all": list(at_last)}
    reads = list(product(read.values(), (None, at_each), (False, True)))
    for (ends, terms, inputs), method in zip(reads, list(METHODS) * 3, strict=True):
        widths = [H * (1 + layer % 2) for layer in range(L)]  # at h only, and at all states
        terms = [None if terms is None else np.ascontiguousarray(terms[:, :, :n]) for n in widths]
        grads = stack.run_back(here, x, expected, (ends, terms), ("linear", "numpy", None), inputs)
        ends, terms = ([None if one is None else cuda.to_device(one) for one in some] for some in (ends, terms))
        with plan.chunks_of(2):
            chosen = method, "cuda", METHODS[method]
            found = stack.run_back(there, x_there, saved, (ends, terms), chosen, inputs)
        close(flat(found), flat(grads), 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("cell", NAMES)
def test_nothing_leaves_the_gpu_and_memory_comes_from_where_it_is_said(cell, fetched, monkeypatch):
    _, there, x, h0, at_last, at_each = case(cell, 3, 2, 3, 2, np.float32)
    x, at_each, *ends = map(cuda.to_device, (x, at_each, *at_last))
    h0 = by_layer(h0, cuda.to_device)
    made, sent, send = [], [], cuda.to_device

    def new(shape):
        made.append(cuda.device_array(shape, np.float32))
        return made[-1]

    monkeypatch.setattr(cuda, "to_device", lambda array, *more: (sent.append(array.size), send(array, *more))[1])
    *saved, _ = stack.run(there, x, h0, SolverOptions("linear"), "cuda", new=new)
    own = [array for array in saved if array is not None]
    assert sent == fetched == [] and all(any(array is one for one in made) for array in own)
    made.clear()
    for method, levels in METHODS.items():
        how = method, "cuda", levels
        grads, at_input, at_start = stack.run_back(there, x, saved, (ends, [None, at_each]), how, True, new=new)
        assert max(sent) == 1 and max(fetched, default=1) == 1  # whether all is in range
        assert all(any(array is one for one in made) for array in grads.values())
        assert at_input.shape == x.shape and [start.shape for start in at_start] == [at_last[0].shape] * 2


@pytest.mark.parametrize("cell", NAMES)
@pytest.mark.parametrize("bad", [np.nan, more(np.inf)])
def test_what_is_not_finite_passes_through(cell, bad):
    here, there, x, h0, at_last, at_each = case(cell, 7, 2, 3, 2, np.float32)
    x[3, 0, 1], at_each[5, 1, 0] = bad, bad
    x_there, at_last, terms = map(cuda.to_device, (x, at_last, at_each))
    h0_there = by_layer(h0, cuda.to_device)
    with np.errstate(all="ignore"):
        expected = stack.run(here, x, h0, SolverOptions("linear"), "numpy")[:2]
    for options in (SolverOptions("linear"), SolverOptions("chunked", 2, 0), SolverOptions("chunked", 2, 0, 0)):
        *saved, _ = stack.run(there, x_there, h0_there, options, "cuda")
        close(saved, expected, 2e-5)
    with np.errstate(all="ignore"):
        grads = stack.run_back(here, x, expected, ([None] * 2, [None, at_each]), ("linear", "numpy", None), True)
    assert not np.isfinite(grads[1]).all()
    with plan.chunks_of(2):
        for method, levels in METHODS.items():
            found = stack.run_back(there, x_there, saved, ([None] * 2, [None, terms]), (method, "cuda", levels), True)
            close(flat(found), flat(grads), 2e-4)
