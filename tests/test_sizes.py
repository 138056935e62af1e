"""The papers' sizes, up to T = 30000 and B = 256: minutes and gigabytes (make test-full)."""

import numpy as np
import pytest
from test_chain import BACKENDS, TOLERANCE, chain, error

import bppsa_nb as bp
from bppsa_nb.trainer import cross_entropy

pytestmark = pytest.mark.full

SIZES = [(3000, 16, 20), (10000, 16, 20), (30000, 16, 20), (1000, 256, 20), (1000, 2, 20), (1000, 4, 128)]


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("T", "B", "H"), SIZES)
def test_scans_of_dense_chains(T, B, H, backend):
    J, g, _ = chain(T, B, H, np.random.default_rng([T, B, H]))
    J, g = J.astype(np.float32), g.astype(np.float32)
    reference = [g.astype(np.float64)]  # the linear scan in double precision, without a second copy of J
    for t in reversed(range(T)):
        reference.append(np.matmul(J[t].astype(np.float64), reference[-1][..., None])[..., 0])
    reference = np.array(reference[::-1])
    for method, levels in [("linear", None), ("blelloch", None), ("truncated", 4)]:
        result = bp.backprop(J, g, method=method, backend=backend, levels=levels)
        # Rounding errors of T products in random directions add up to the square root of T of them.
        assert error(result, reference) < max(TOLERANCE[np.float32], 4 * 2**-24 * np.sqrt(T)), method


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("T", [3000, 30000])
def test_rnn_gradients(T, backend):
    x, y = bp.Bitstream(T, num_samples=16, rng=0).batch(np.arange(16))
    model = bp.RNN(1, 20, 10, rng=0)
    activations = model.forward(x, backend=backend)
    _, grad_logits = cross_entropy(activations.logits, y)
    expected = model.backward(activations, grad_logits, method="linear", backend=backend)
    found = model.backward(activations, grad_logits, method="blelloch", backend=backend)
    for name, reference in expected.items():
        assert np.abs(found[name] - reference).max() <= 1e-5 * np.abs(reference).max(), name


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(("T", "B", "I"), [(259, 16, 38), (517, 32, 24), (1034, 64, 12)])
def test_gru_gradients(T, B, I, num_layers, backend):
    rng = np.random.default_rng([T, B, I])
    model = bp.GRU(I, 20, 11, num_layers, rng=rng)
    model.params["bias_ih_l0"][20:40] += 3  # a memory that is kept, so that gradients reach the beginning
    activations = model.forward(rng.standard_normal((T, B, I), np.float32), backend=backend)
    _, grad_logits = cross_entropy(activations.logits, rng.integers(11, size=B))
    expected = model.backward(activations, grad_logits, method="linear", backend="numpy")
    for method in ("linear", "blelloch"):
        found = model.backward(activations, grad_logits, method=method, backend=backend)
        for name, reference in expected.items():
            assert np.abs(found[name] - reference).max() <= 1e-5 * np.abs(reference).max(), (name, method)


def test_bitstreams_of_the_papers_length_never_sit_in_memory():
    dataset = bp.Bitstream(30000, rng=0)  # 32000 samples: 7.7 GB as float64
    x, y = dataset.batch([31999, 0])
    assert x.shape == (30000, 2, 1) and len(dataset) == 32000
    assert np.abs(x.mean((0, 2)) - (0.05 + 0.1 * y)).max() < 0.02
