"""Chunks of the time loop on a GPU: on a GPU, or from their PTX on the CPU."""

import numpy as np
import pytest
from comparing import same
from rings import large, more

import bppsa_nb as bp
from bppsa_nb.machine.cuda_compiler import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("few_threads")]
MODELS = {"rnn": bp.RNN, "gru": bp.GRU}


def case(cell, T, B, H, layers=1, growth=1.0, dtype=np.float32):
    rng = np.random.default_rng(T + B)
    model = MODELS[cell](2, H, 3, layers, rng=rng, dtype=dtype)
    for layer in range(layers):
        model.params[f"weight_hh_l{layer}"] *= growth
    return model, rng.standard_normal((T, B, 2)).astype(dtype), rng.standard_normal((layers, B, H)).astype(dtype)


@pytest.mark.parametrize("cell", MODELS)
@pytest.mark.parametrize(("T", "B", "H", "layers", "length", "growth", "dtype"), [
    (1, 1, 3, 1, 1, 1, np.float32), (7, 2, 3, 1, 3, 1, np.float32), more(7, 2, 3, 1, 3, 1, np.float64),
    more(45, 1, 3, 2, 20, 5, np.float32), large(1000, 16, 20, 1, 50, 1, np.float32),
    large(997, 5, 20, 2, 31, 5, np.float64), large(300, 2, 300, 1, 40, 3, np.float32),
])  # fmt: skip
def test_without_tolerance_chunks_have_the_loops_bits(cell, T, B, H, layers, length, growth, dtype, monkeypatch):
    model, x, h0 = case(cell, T, B, H, layers, growth, dtype)
    for any_size in (False, True):
        if any_size:
            monkeypatch.setattr("bppsa_nb.machine.cuda.REGISTERS", 0)
        loop = model.forward(x, h0, "cuda", method="linear")
        for most in (None, 0):
            found = model.forward(x, h0, "cuda", method="chunked", length=length, tol=0, most=most)
            assert same(found, loop) and found.hidden.dtype == dtype
            assert (found.solved is None) == (T <= length)
            for solved in found.solved or ():
                assert solved.unconverged[-1] == 0 and solved.mismatch == 0 and solved.steps <= T + 2 * length
                # Long loops without a tolerance may be more work than is allowed.
                assert solved.finished == "converged" or (solved.finished == "serially" and (most == 0 or T > 10))


@pytest.mark.parametrize("cell", MODELS)
def test_what_it_took_is_what_numpy_counts(cell):
    T, B, length, tol = 24, 2, 6, 1e-3
    model, x, h0 = case(cell, T, B, 3)
    for most in (None, 0.2):
        how = {"method": "chunked", "length": length, "tol": tol, "most": most}
        (expected,), (found,) = (model.forward(x, h0, backend, **how).solved for backend in ("numpy", "cuda"))
        assert found.unconverged[0] == expected.unconverged[0] > 0
        assert found.jumps[0] == pytest.approx(expected.jumps[0], abs=1e-5)
        assert found.finished == expected.finished
        if most is None:
            for name in ("passes", "unconverged", "steps"):
                assert getattr(found, name) == getattr(expected, name)
            # NumPy's last chunk is as long as the others.
            assert found.work == pytest.approx(expected.work, abs=length / T)


@pytest.mark.parametrize("cell", MODELS)
def test_arrays_on_a_gpu_stay_there(cell):
    model, x, h0 = case(cell, 9, 2, 3, 2)
    loop = model.forward(x, h0, "cuda", method="linear")
    length = len(x) // 3
    found = model.forward(cuda.to_device(x), h0, "cuda", method="chunked", length=length, tol=0)
    assert np.array_equal(found.hidden.copy_to_host(), loop.hidden)
    assert [one.length for one in found.solved] == [length] * 2
    by_price = model.forward(cuda.to_device(x), h0)
    assert by_price.solved is None  # too short
    assert abs(by_price.hidden.copy_to_host() - loop.hidden).max() < 2e-5
    with pytest.raises(ValueError, match="method must be 'auto', 'linear' or 'chunked' where x is on a GPU"):
        model.forward(cuda.to_device(x), method="newton")


def test_newton_goes_through_the_host():
    model, x, h0 = case("gru", 7, 1, 3)
    loop = model.forward(x, h0, "cuda", method="linear")
    found = model.forward(x, h0, "cuda", method="newton", length=2)
    assert found.solved[0].method == "newton"
    np.testing.assert_allclose(found.hidden, loop.hidden, rtol=0, atol=2e-5)


@pytest.mark.parametrize("cell", MODELS)
def test_what_memory_held_before_the_first_pass_is_not_looked_at(cell, monkeypatch):
    model, x, h0 = case(cell, 7, 2, 3)
    loop = model.forward(x, h0, "cuda", method="linear")
    allocate = cuda.device_array

    def signalling(shape, dtype=np.float64, *more, **named):
        array = allocate(shape, dtype, *more, **named)
        if np.dtype(dtype) == np.float32:
            array.copy_to_device(np.full(shape, 0x7F800001, np.uint32).view(np.float32))  # a NaN that warns when used
        return array

    monkeypatch.setattr(cuda, "device_array", signalling)
    assert same(model.forward(x, h0, "cuda", method="chunked", length=3, tol=0), loop)
