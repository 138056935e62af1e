import numpy as np
import pytest
from random_networks import random_batch, random_network
from trainers import assert_same

from bppsa_nb import Adam, schedule
from bppsa_nb.networks.network import param_shapes
from bppsa_nb.papers.ooo.execution import profile, run
from bppsa_nb.sparse import Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU, Tanh
from bppsa_nb.training.loss import cross_entropy

POLICIES = ["conventional", "gpipe", "1f1b", "fast_forward", "modulo", "zero_bubble"]


def ordinary(network, x, labels, share=1):
    activations = network.forward(x)
    loss, grad = cross_entropy(activations.logits, labels)
    return loss, network.backward(activations, grad / share, "ordinary")


def in_order_of(timeline, network, x, labels):
    """Gradients by ordinary backward passes of the micro-batches, added up in a timeline's order."""
    M = timeline.operations.micro_batches
    parts = list(zip(np.split(x, M), np.split(labels, M), strict=True))
    losses, grads = zip(*(ordinary(network, *part, share=M) for part in parts), strict=True)
    sums = {}
    for worker in range(timeline.operations.devices):
        for kind, layer, m in timeline.order(worker):
            for name in param_shapes(schedule.split(network)[layer - 1]) if kind == "δW" else ():
                sums[name] = sums[name] + grads[m][name] if name in sums else grads[m][name]
    return losses, sums


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_any_pipeline_gives_the_ordinary_gradients_to_the_last_bit(policy, seed):
    rng = np.random.default_rng([seed, POLICIES.index(policy)])
    network = random_network(rng, dtype=np.float32 if seed == 0 else np.float64)
    L, M = len(schedule.split(network)), int(rng.integers(1, 6)) if seed else 1
    costs = schedule.Network(*rng.integers(0, 4, (3, L))) if seed % 2 else schedule.Network.uniform(L)
    how = {"flush": bool(rng.random() < 0.5)} if policy not in ("conventional", "gpipe") else {}
    how["assumptions"] = schedule.Assumptions(first_output_grad=bool(seed % 3 == 0))
    devices, boundary = int(rng.integers(1, L + 1)), rng.integers(0, 2, L - 1)
    timeline = schedule.pipeline(costs, devices, M, policy, boundary_cost=boundary, **how)
    x, labels = random_batch(network, 2 * M, rng)
    done = run(timeline, network, x, labels)
    losses, expected = in_order_of(timeline, network, x, labels)
    np.testing.assert_array_equal(done.losses, losses)
    assert_same(done.grads, expected)
    assert ((done.seconds > 0) == (timeline.operations.kind <= 2)).all()  # sending is left out
    if not seed:
        assert_same(done.grads, ordinary(network, x, labels)[1])


def with_stale_weights(timeline, network, optimizer, x, labels):
    """PipeDream's gradients by ordinary backward passes: each layer has the weights of a version of its own."""
    M, layers = timeline.operations.micro_batches, schedule.split(network)
    seen = {}  # how many updates each layer had before the forward pass of each micro-batch
    for worker in range(timeline.operations.devices):
        updates = dict.fromkeys(range(1, len(layers) + 1), 0)
        for kind, layer, m in timeline.order(worker):
            seen |= {(layer, m): updates[layer]} if kind == "F" else {}
            updates[layer] += kind == "δW"
    latest = {name: param.copy() for name, param in network.params.items()}
    versions, losses = [], []
    for m, part in enumerate(zip(np.split(x, M), np.split(labels, M), strict=True)):
        versions.append({name: param.copy() for name, param in latest.items()})
        for i, layer in enumerate(layers):
            network.params.update({name: versions[seen[i + 1, m]][name] for name in param_shapes(layer)})
        loss, grads = ordinary(network, *part)
        losses.append(loss)
        optimizer.step(latest, grads)
    network.params.update(latest)
    return losses


def test_pipedream_takes_the_weights_of_its_forward_pass():
    network, reference = random_network(2), random_network(2)
    L = len(schedule.split(network))
    timeline = schedule.pipeline(schedule.Network.uniform(L), 3, 7, "1f1b", flush=False, boundary_cost=0.25)
    assert timeline.staleness().max() == 2
    optimizer, optimizers = Adam(3e-2), [Adam(3e-2) for _ in range(L)]
    for i in range(2):
        x, labels = random_batch(network, 14, i)
        done = run(timeline, network, x, labels, optimizers)
        np.testing.assert_array_equal(done.losses, with_stale_weights(timeline, reference, optimizer, x, labels))
        assert_same(network.params, reference.params)
        assert done.grads == {}


def test_the_timeline_must_fit():
    network = random_network(1)
    x, labels = random_batch(network, 6, 0)
    layers = schedule.Network.uniform(len(schedule.split(network)), sync=1)
    other = schedule.pipeline(schedule.Network.uniform(layers.layers + 1), 1, 3)
    for timeline in (schedule.pipeline(layers, 2, 4), schedule.data_parallel(layers), other):
        with pytest.raises(ValueError, match=f"a pipeline's, of {layers.layers} layers, .* share out 6 samples, got T"):
            run(timeline, network, x, labels)


def test_a_profile_is_a_network_of_the_scheduler():
    network = random_network(5, free_end=True)
    costs = profile(network, *random_batch(network, 4, 0), rounds=2)
    assert costs.layers == len(schedule.split(network))
    assert (costs.forward > 0).all() and (costs.output_grad > 0).all()
    assert (costs.weight_grad[:-1] > 0).all() and costs.weight_grad[-1] == 0
    schedule.pipeline(costs, 2, 2, "fast_forward").check()


def test_memory_is_that_of_the_arrays():
    operators = [Conv2d("conv", 1, 2, 3, padding=1), ReLU("relu"), MaxPool2d("pool", 2), Flatten("flatten")]
    operators += [Linear("fc", 8, 3), Tanh("tanh")]
    network = Network((1, 4, 4), operators, dtype=np.float64)
    memory = profile(network, *random_batch(network, 5, 0), rounds=1).memory
    # Per sample: the image; conv's and relu's 32, pool's 8, which flattened are the same 8; fc's and tanh's 3.
    np.testing.assert_array_equal(memory.activation, 8 * 5 * np.array([16, 32 + 32 + 8, 3 + 3]))
    np.testing.assert_array_equal(memory.output_grad, 8 * 5 * np.array([32, 3, 3]))
    np.testing.assert_array_equal(memory.weight_grad, 8 * np.array([18 + 2, 24 + 3, 0]))
