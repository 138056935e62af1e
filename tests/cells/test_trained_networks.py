"""Chunks and Newton's method on networks that were trained here, whose weights remember."""

import numpy as np
import pytest

import bppsa_nb as bp

T, B = 1000, 16


def trained(rate, iterations):
    """Yield a network along its training on sequences of 100 bits, after how many iterations, and inputs."""
    rng = np.random.default_rng(0)
    model = bp.RNN(1, 20, 10, rng=rng)
    trainer = bp.Trainer(model, bp.Adam(lr=rate), method="linear", backend="cpu", forward="linear")
    data, x = bp.Bitstream(100, B * iterations, rng=rng), bp.Bitstream(T, B, rng=rng).batch(np.arange(B))[0]
    for i in range(iterations):
        trainer.step(*data.batch(np.arange(B * i, B * (i + 1))))
        if i + 1 in (300, 1000, 3000):
            yield i + 1, model, x


@pytest.mark.parametrize(
    ("rate", "most"), [*(pytest.param(rate, 3000, marks=pytest.mark.full) for rate in (1e-5, 1e-4, 1e-3)), (1e-3, 1000)]
)
def test_states_and_gradients_are_the_loops(rate, most):
    for iterations, model, x in trained(rate, most):
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
