"""Figures 10 to 12 and 14 of ooo backprop in shape: costs as stated, and ratios that must hold."""

import numpy as np
import pytest
from measuring import measure

from bppsa_nb import schedule
from bppsa_nb.papers.ooo import figures_10_11_data_parallel_throughput as data_parallel_throughput
from bppsa_nb.papers.ooo import figures_12_14_pipeline_throughput as pipeline_throughput


@pytest.fixture(scope="module")
def pipelines():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_throughput, "GPUS", (8, 32))
        yield pipeline_throughput.measure("quick", np.random.default_rng(0), None)


def test_resnet_50_has_its_layers_weights_and_multiply_adds():
    layers = data_parallel_throughput.resnet()
    assert len(layers) == 54
    assert layers["weights"].sum() == 25_557_032 - 53_120 - 1000  # with batch normalization, and the last bias
    assert layers["multiply_adds"].sum() == pytest.approx(3.86e9, rel=0.01)


def test_a_ring_sends_nearly_twice_the_bytes():
    seconds = data_parallel_throughput.ring([25e6], 48, 10)
    assert seconds == pytest.approx(2 * 47 / 48 * 100e6 / 1.25e9 + 2 * 47 * 50e-6)
    assert data_parallel_throughput.ring([25e6], 1, 10) == 0


def test_resnet_101_has_its_layers_and_weights():
    layers = data_parallel_throughput.resnet("ResNet-101")
    assert len(layers) == 105
    assert layers["weights"].sum() == 44_549_160 - 105_344 - 1000
    assert layers["normalized"].iloc[-1] == 0 and (layers["normalized"] == layers["output"])[:-1].all()


def test_without_batch_normalization_it_would_double(monkeypatch):
    resnet = data_parallel_throughput.resnet
    monkeypatch.setattr(data_parallel_throughput, "resnet", lambda *name: resnet(*name).assign(normalized=0))
    found = data_parallel_throughput.facts(measure(data_parallel_throughput, GPUS=(16,), RATIOS=(0.5,)))
    assert found["more"]["ResNet-50"] == pytest.approx(1.06, abs=0.01)


def test_whoever_puts_weight_gradients_off_keeps_no_more_than_before_they_could_be_computed(pipelines):
    held = pipeline_throughput.facts(pipelines)["held"]
    for system in ("OOO-Pipe1", "OOO-Pipe2"):
        assert (held.loc[system] > held.loc["GPipe"]).tolist() == [False, True]
    # Six layers on a GPU, of four micro-batches; the gradients at one of them, and those that come to it; the gradient
    # of one layer's weights, and of all six the weights and Adam's averages.
    layer, weights = pipeline_throughput.MESSAGE, pipeline_throughput.WEIGHTS
    kept, bare = 7 + 13, 7
    for inner, found in zip((kept, bare), held.loc["GPipe"], strict=True):
        assert found == (24 * inner + 2 * 9) * layer + (6 * 3 + 1) * weights
    assert (pipeline_throughput.INPUTS, pipeline_throughput.GRADIENTS, pipeline_throughput.INNER) == (7, 9, 13)


def test_the_steady_pace_is_that_of_the_busiest_device():
    net = pipeline_throughput.network(24)
    steady = pipeline_throughput.iteration("PipeDream", net, 4, 4, 1e15, 1e15)
    assert steady["seconds"] == pytest.approx(4 * 18 * net.forward[0])


def test_boundaries_between_nodes_are_slow():
    net = pipeline_throughput.network(48)
    near, far = pipeline_throughput.MESSAGE / 50e9, pipeline_throughput.MESSAGE / 3e9
    found = {policy: pipeline_throughput.boundaries(net, policy, 16, 50e9, 3e9) for policy in ("gpipe", "modulo")}
    assert np.flatnonzero(found["gpipe"] == far).tolist() == [23]
    assert np.flatnonzero(found["modulo"] == far).tolist() == [7, 15, 23, 31, 39]
    assert set(found["modulo"]) == {near, far}
    assert schedule.pipeline(net, 16, boundary_cost=found["gpipe"]).makespan > 0
