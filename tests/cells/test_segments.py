"""States kept at every k-th step only: the same gradients, from less memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bppsa_nb as bp

each_kind = pytest.mark.parametrize("kind", [bp.RNN, bp.GRU])


def passes(model, data, method, backend, **how):
    x, h0, grad_logits = data
    activations = model.forward(x, h0, backend, method="linear", **how)
    return activations, model.backward(activations, grad_logits, method, backend)


@each_kind
@given(
    T=st.integers(0, 20),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3)),
    every=st.integers(1, 25),
    method=st.sampled_from(["auto", "linear", "blelloch", "chunked"]),
    backend=st.sampled_from(["numpy", "cpu"]),
)
def test_gradients_are_those_of_states_that_were_all_kept(kind, T, sizes, every, method, backend):
    B, inputs, H, L = sizes
    rng, model = np.random.default_rng(0), kind(inputs, H, 4, L, rng=1, dtype=np.float64)
    data = [rng.standard_normal(shape) for shape in ((T, B, inputs), (L, B, H), (B, 4))]
    expected, grads = passes(model, data, method, backend)
    activations, found = passes(model, data, method, backend, checkpoint_every=every)
    np.testing.assert_allclose(activations.logits, expected.logits, atol=1e-13)
    assert activations.hidden.shape == (L, max(1, -(-T // every)) + 1, B, H)
    assert activations.gates is None
    for name, grad in grads.items():
        np.testing.assert_allclose(found[name], grad, atol=1e-10, err_msg=name)


@each_kind
def test_memory_grows_as_the_root_of_the_steps(kind):
    rng, model, peaks = np.random.default_rng(0), kind(1, 20, 10), []
    for T, how in ((40000, {}), (40000, {"checkpoint_every": 200})):
        data = rng.standard_normal((T, 2, 1), np.float32), None, np.ones((2, 10), np.float32)
        passes(model, data, "linear", "cpu", **how)  # compiles
        tracemalloc.start()
        passes(model, data, "linear", "cpu", **how)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] / 20


@each_kind
@pytest.mark.parametrize("forward", ["auto", "linear", "chunked", "newton"])
def test_training_draws_the_same_curve(kind, forward):
    def curve(**how):
        trainer = bp.Trainer(kind(1, 4, 10, 2, rng=2), bp.Adam(lr=0.01), backend="cpu", **how)
        return trainer.fit(bp.Bitstream(40, num_samples=24, rng=0), 3, batch_size=8, rng=0, progress=False).loss

    np.testing.assert_allclose(curve(forward=forward, checkpoint_every=7), curve(), rtol=1e-5)
