"""The papers' sizes, up to T = 30000 and B = 256: minutes and gigabytes (make test-full)."""

import numpy as np
import pytest
from chain_draws import BACKENDS, TOLERANCE, chain, error

import bppsa_nb as bp
from bppsa_nb.chains.methods import go_back
from bppsa_nb.training.loss import cross_entropy

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
    for method, levels in [("linear", None), ("blelloch", None), ("chunked", None), ("truncated", 4)]:
        result = bp.backprop(J, g, method=method, backend=backend, levels=levels)
        # Rounding errors of T products in random directions add up to the square root of T of them.
        assert error(result, reference) < max(TOLERANCE[np.float32], 4 * 2**-24 * np.sqrt(T)), method


STRUCTURED = [*((T, 16, 20) for T in (1000, 3000, 10000, 30000)), *((1000, B, 20) for B in (2, 64, 256))]
STRUCTURED += [(1000, 16, 1), (1000, 16, 32), (1000, 16, 64), (1000, 16, 128)]


def memory_that_lasts(cell, T, B, H, rng):
    """Make the chain of a cell whose gradients neither vanish nor explode over a thousand steps."""
    weights = np.linalg.qr(rng.standard_normal((1 if cell == "rnn" else 3, H, H)))[0]
    if cell == "rnn":
        hidden = rng.uniform(-0.1, 0.1, (T + 1, B, H))
        return weights, (1.003 - hidden[1:] ** 2)[None], None  # 1 - h², and a little more
    forget = rng.uniform(0, 0.02, (3, T, B, H))  # 1 - z, small, in every slope
    return weights, forget * rng.uniform(-0.5, 0.5, forget.shape), 1 - forget[0] / 10


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize(("T", "B", "H"), STRUCTURED)
def test_scans_of_structured_chains(T, B, H, cell, backend):
    rng = np.random.default_rng([T, B, H])
    arrays = [*memory_that_lasts(cell, T, B, H, rng), rng.standard_normal((B, H)), rng.standard_normal((T + 1, B, H))]
    weights, slopes, carry, g, c = (None if array is None else array.astype(np.float32) for array in arrays)
    links = bp.StructuredChain(weights, slopes, carry)
    double = [None if array is None else array.astype(np.float64) for array in (weights, slopes, carry, g, c)]
    for local in (None, c):
        reference = [double[3] if local is None else double[3] + double[4][-1]]
        for t in reversed(range(T)):
            step = 0 if carry is None else double[2][t] * reference[-1]
            step = step + sum((double[1][k, t] * reference[-1]) @ double[0][k] for k in range(len(weights)))
            reference.append(step if local is None else step + double[4][t])
        reference = np.array(reference[::-1])
        tolerance = max(TOLERANCE[np.float32], 4 * 2**-24 * np.sqrt(T))
        for method in ("linear", "chunked", "blelloch"):
            result = bp.backprop(links, g, local_grads=local, method=method, backend=backend)
            assert error(result, reference) < tolerance, method
        if backend != "cuda":
            start = g if local is None else g + local[-1]
            for length in (16, int(np.sqrt(T)), T // 2) if H <= 32 else (int(np.sqrt(T)),):
                found = go_back(links, start, local, backend, "chunked", length=length)
                assert error(found, reference) < tolerance, length


CELLS = [*((bp.RNN, T, 16, 1, 10, 1) for T in (3000, 30000))]
CELLS += [(bp.GRU, *sizes, 11, layers) for sizes in ((259, 16, 38), (517, 32, 24), (1034, 64, 12)) for layers in (1, 2)]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("kind", "T", "B", "I", "classes", "num_layers"), CELLS)
def test_gradients_of_cells(kind, T, B, I, classes, num_layers, backend):
    rng = np.random.default_rng([T, B, I])
    model = kind(I, 20, classes, num_layers, rng=rng)
    if kind is bp.GRU:
        model.params["bias_ih_l0"][20:40] += 3  # a memory that is kept, so that gradients reach the beginning
        x, y = rng.standard_normal((T, B, I), np.float32), rng.integers(classes, size=B)
    else:
        x, y = bp.Bitstream(T, num_samples=B, rng=0).batch(np.arange(B))
    activations = model.forward(x, backend=backend)
    _, grad_logits = cross_entropy(activations.logits, y)
    expected = model.backward(activations, grad_logits, method="linear", backend="numpy")
    for method in ("linear", "blelloch", "chunked"):
        found = model.backward(activations, grad_logits, method=method, backend=backend)
        for name, reference in expected.items():
            assert np.abs(found[name] - reference).max() <= 1e-5 * np.abs(reference).max(), (name, method)
