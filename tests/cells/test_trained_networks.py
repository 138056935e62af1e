"""Chunks and Newton's method on networks that were trained here, whose weights remember."""

import numpy as np
import pytest
from rings import more

import bppsa_nb as bp

T, B = 1000, 16


def trained(kind, rate, iterations):
    """Yield a network along its training on sequences of 100 bits, after how many iterations, and inputs."""
    rng = np.random.default_rng(0)
    model = getattr(bp, kind)(1, 20, 10, rng=rng)
    trainer = bp.Trainer(model, bp.Adam(lr=rate), method="linear", backend="cpu", forward="linear")
    data, x = bp.Bitstream(100, B * iterations, rng=rng), bp.Bitstream(T, B, rng=rng).batch(np.arange(B))[0]
    for i in range(iterations):
        trainer.step(*data.batch(np.arange(B * i, B * (i + 1))))
        if i + 1 in (300, 1000, 3000):
            yield i + 1, model, x


@pytest.mark.parametrize(("kind", "rate", "most"), [
    *(pytest.param("RNN", rate, 3000, marks=pytest.mark.full) for rate in (1e-5, 1e-4, 1e-3)),
    *(("RNN", 1e-3, 1000), more("LSTM", 1e-2, 300), pytest.param("LSTM", 1e-2, 3000, marks=pytest.mark.full)),
])  # fmt: skip
def test_states_and_gradients_are_the_loops(kind, rate, most):
    for iterations, model, x in trained(kind, rate, most):
        at_logits = np.ones((B, 10), np.float32) / B
        loop = model.forward(x, None, "cpu", method="linear")
        wanted = model.backward(loop, at_logits, "linear", "cpu")
        for method in ("chunked", "newton"):
            found = model.forward(x, None, "cpu", method=method, length=63)
            assert abs(found.hidden - loop.hidden).max() <= 2e-5, (iterations, method)
            for name, grad in model.backward(found, at_logits, "linear", "cpu").items():
                scale = max(1, abs(wanted[name]).max())
                np.testing.assert_allclose(grad, wanted[name], rtol=0, atol=1e-5 * scale, err_msg=name)
            one = [model.forward(x[:, b : b + 1], None, "cpu", method=method, length=63).hidden for b in range(B)]
            assert abs(np.concatenate(one, axis=2) - loop.hidden).max() <= 2e-5, (iterations, method)
        (solved,) = model.forward(x, None, "cpu", method="chunked", length=63, tol=0).solved
        assert solved.steps <= T + 2 * 63


@pytest.mark.parametrize("kind", ["RNN", more("GRU"), "LSTM"])
@pytest.mark.parametrize("length", [more(1), 20])
def test_newton_ends_with_the_bits_of_a_loop_in_chaos(length, kind):
    model, rng = getattr(bp, kind)(3, 20, 5, 2, rng=1, dtype=np.float64), np.random.default_rng(0)
    for layer in range(2):
        model.params[f"weight_hh_l{layer}"] *= 20
    x = rng.standard_normal((300, 4, 3))
    loop = model.forward(x, backend="cpu", method="linear")
    found = model.forward(x, backend="cpu", method="newton", length=length, tol=0)
    assert found.solved[0].corrections > 0 and np.array_equal(found.states, loop.states)
    x[0] += 1e-9
    assert abs(model.forward(x, backend="cpu", method="linear").states[:, :, -1] - loop.states[:, :, -1]).max() > 0.1
