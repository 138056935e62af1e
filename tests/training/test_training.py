"""The paper's setting, trained for 300 iterations by both methods: the check that can fail is on the gradients."""

import numpy as np
import pytest
from rings import large, more

import bppsa_nb as bp
from bppsa_nb.training.loss import cross_entropy

B, H, ITERATIONS = 16, 20, 300


def trainer(method, backend):
    return bp.Trainer(bp.RNN(1, H, 10, rng=0), bp.Adam(lr=1e-5), method=method, backend=backend)


@pytest.mark.parametrize(("T", "backend"), [more(30, "numpy"), (100, "cpu"), large(1000, "numpy"), large(1000, "cpu")])
def test_bppsa_trains_as_bptt_does(T, backend):
    dataset = bp.Bitstream(T, ITERATIONS * B, rng=0)
    order = np.random.default_rng(0).permutation(len(dataset)).reshape(ITERATIONS, B)
    bptt, bppsa = trainer("linear", backend), trainer("blelloch", backend)
    losses = []
    for indices in order:
        x, y = dataset.batch(indices)
        # At the same parameters: the trainer's own model, before its step.
        activations = bppsa.model.forward(x, backend=backend)
        loss, grad_logits = cross_entropy(activations.logits, y)
        expected, found = (
            bppsa.model.backward(activations, grad_logits, method=method, backend=backend)
            for method in ("linear", "blelloch")
        )
        for name, reference in expected.items():
            assert np.abs(found[name] - reference).max() <= 1e-5 * np.abs(reference).max(), name
        losses.append((bptt.step(x, y), loss))
        bppsa.optimizer.step(bppsa.model.params, found)
    reference, curve = np.transpose(losses)
    np.testing.assert_allclose(curve, reference, rtol=1e-5)
    assert len(set(reference)) == ITERATIONS  # something was learned from every batch
    start = bp.RNN(1, H, 10, rng=0).params
    assert all((param != start[name]).any() for name, param in bppsa.model.params.items())
