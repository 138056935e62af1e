"""Recurrent models trained with chunks shorter than their sequences."""

import naive
import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.chains import structured as numpy_twin
from bppsa_nb.chains import structured_cpu as cpu_twin
from bppsa_nb.papers import cli

each_backend = pytest.mark.parametrize("backend", ["numpy", "cpu"])
each_model = pytest.mark.parametrize("cell, kind", [("rnn", bp.RNN), ("gru", bp.GRU)])


@pytest.fixture
def lengths(monkeypatch):
    """Have chunks of three steps taken, and note the lengths of those that were."""
    seen = []
    monkeypatch.setattr("bppsa_nb.chains.backprop.chunk_length", lambda *_: 3)
    for twin in (numpy_twin, cpu_twin):

        def noted(*arguments, chunked=twin.chunked):
            seen.append(arguments[-1])
            return chunked(*arguments)

        monkeypatch.setattr(twin, "chunked", noted)
    return seen


@each_backend
@each_model
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize(("T", "B", "I", "H"), [(0, 1, 2, 3), (1, 2, 1, 3), (4, 1, 3, 2), (12, 3, 2, 5)])
def test_gradients_equal_the_oracle(T, B, I, H, num_layers, cell, kind, backend, lengths):
    rng = np.random.default_rng([T, num_layers])
    x, h0, grad_logits = (rng.standard_normal(shape) for shape in ((T, B, I), (num_layers, B, H), (B, 4)))
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12)):
        model = kind(I, H, 4, num_layers, rng=1, dtype=dtype)
        data = [array.astype(dtype) for array in (x, h0, grad_logits)]
        expected = naive.gradients(cell, data[0], data[1], model.params, data[2])
        activations = model.forward(*data[:2], backend=backend)
        found = model.backward(activations, data[2], method="chunked", backend=backend)
        for name, reference in expected.items():
            assert found[name].dtype == dtype
            assert np.abs(found[name] - reference).max() <= tolerance * max(1e-3, np.abs(reference).max()), name
    assert lengths == [3] * 2 * num_layers


@each_backend
@each_model
def test_training_draws_the_same_curve(cell, kind, backend, lengths):
    def curve(method):
        data = bp.Bitstream(20, num_samples=24, rng=0)
        trainer = bp.Trainer(kind(1, 4, 10, rng=2), bp.Adam(lr=0.01), method=method, backend=backend)
        return trainer.fit(data, epochs=3, batch_size=8, rng=0, progress=False).loss

    np.testing.assert_allclose(curve("chunked"), curve("linear"), rtol=1e-5)
    assert lengths == [3] * 9


@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_command_line(cell, lengths, tmp_path):
    train = ["train", "--cell", cell, "--length", "8", "--samples", "64", "--backend", "numpy", "--layers", "2"]
    losses = []
    for method in ("chunked", "linear"):
        path = tmp_path / f"{method}.npz"
        assert cli.main([*train, "--learning-rate", "0.01", "--method", method, "--save", str(path)]) == 0
        with np.load(path, allow_pickle=False) as kept:
            losses.append(kept["loss"])
    assert lengths == [3] * 2 * (64 // 16)  # layers times iterations
    np.testing.assert_allclose(*losses, rtol=1e-5)
