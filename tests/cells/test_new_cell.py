"""A new cell joins by one file with its NumPy equations and its diagonals, and is scanned like the others."""

import numpy as np
import pytest
from minimal_gated_unit import MinimalGatedUnit

from bppsa_nb import Adam, Bitstream, Trainer
from bppsa_nb.training.loss import cross_entropy

METHODS = [("linear", None), ("blelloch", None), ("chunked", None), *(("truncated", k) for k in (0, 2, 99))]


def draw(dtype, layers):
    rng = np.random.default_rng(0)
    model = MinimalGatedUnit(2, 5, 3, num_layers=layers, rng=rng, dtype=dtype)
    x, h0 = rng.standard_normal((17, 4, 2)), rng.uniform(-1, 1, (layers, 4, 5))
    return model, x.astype(dtype), h0.astype(dtype), rng.integers(3, size=4)


@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_central_differences(layers):
    model, x, h0, y = draw(np.float64, layers)

    def loss():
        return cross_entropy(model.forward(x, h0, backend="numpy").logits, y)[0]

    activations = model.forward(x, h0, backend="numpy")
    grads = model.backward(activations, cross_entropy(activations.logits, y)[1], backend="numpy")
    for name, param in model.params.items():
        for index in np.ndindex(param.shape):
            kept, losses = param[index], []
            for step in (1e-6, -1e-6):
                param[index] = kept + step
                losses.append(loss())
            param[index] = kept
            assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(grads[name][index], rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("method, levels", METHODS)
def test_every_method_gives_the_same_gradients(method, levels, backend, dtype, tolerance):
    model, x, h0, y = draw(dtype, 2)
    expected = model.forward(x, h0, backend="numpy")
    grad_logits = cross_entropy(expected.logits, y)[1]
    linear = model.backward(expected, grad_logits, "linear", "numpy")
    activations = model.forward(x, h0, backend)
    np.testing.assert_allclose(activations.logits, expected.logits, rtol=0, atol=tolerance)
    for name, grad in model.backward(activations, grad_logits, method, backend, levels).items():
        largest = np.abs(linear[name]).max()
        np.testing.assert_allclose(grad, linear[name], rtol=0, atol=tolerance * largest, err_msg=name)


def test_it_is_trained():
    trainer = Trainer(MinimalGatedUnit(1, 8, 4, rng=0), Adam(lr=0.02), method="blelloch", backend="cpu")
    history = trainer.fit(Bitstream(20, 64, num_classes=4, rng=0), epochs=6, batch_size=16, progress=False)
    assert history.loss[-4:].mean() < 0.9 * history.loss[:4].mean()
