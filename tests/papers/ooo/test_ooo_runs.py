import numpy as np
import pandas as pd
import pytest

from bppsa_nb import Adam
from bppsa_nb.papers.bppsa import figure_12_staleness as staleness
from bppsa_nb.papers.experiment import MISSED, REPRODUCED, judge
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import SGD
from bppsa_nb.training.trainer import Trainer


@pytest.fixture(scope="module")
def images():
    return Images(num_samples=4 * staleness.BATCH), Images(split="test", num_samples=20)


def test_one_device_trains_without_staleness(images):
    (row,) = staleness.train(*images, 1, {"lr": 1e-2, "seed": 3, "devices": 1})
    model, order, optimizer, losses = staleness.network(3), np.random.default_rng(3), Adam(1e-2), []
    for part in np.split(order.permutation(len(images[0])), 4):
        x, labels = images[0].batch(part)
        activations = model.forward(x)
        loss, grad = cross_entropy(activations.logits, labels)
        optimizer.step(model.params, model.backward(activations, grad, "ordinary"))
        losses.append(loss)
    loss, accuracy = Trainer(model, SGD(0)).evaluate(images[1], 100)
    assert row == {
        "epoch": 1, "staleness": 0, "training_loss": np.mean(losses), "loss": loss, "accuracy": accuracy
    }  # fmt: skip


def test_several_devices_have_stale_weights(images):
    fresh, stale = (staleness.train(*images, 2, {"lr": 1e-2, "seed": 3, "devices": devices}) for devices in (1, 4))
    assert [row["staleness"] for row in stale] == [3, 3]
    assert [row["epoch"] for row in stale] == [1, 2]
    assert stale[0]["training_loss"] != fresh[0]["training_loss"]


@pytest.mark.parametrize("stale, verdict", [((0.5, 0.6), REPRODUCED), ((0.5, 0.75), MISSED)])
def test_stale_weights_must_cost_accuracy_at_every_rate_of_the_longest_training(stale, verdict):
    rows = [
        {"images": images, "lr": lr, "devices": devices, "epoch": 3, "seed": 0, "accuracy": accuracy}
        for images, ends in ((40, (0.9, 0.9)), (400, stale))
        for lr, end in zip((0.001, 0.003), ends, strict=True)
        for devices, accuracy in ((1, 0.7), (4, end))
    ]
    (claim,) = staleness.FIGURE.claims
    assert judge(claim, staleness, staleness.facts(pd.DataFrame(rows)))[2] == verdict
