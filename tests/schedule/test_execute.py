import gc
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from comparing import assert_gradients
from random_networks import random_batch, random_network
from rings import more
from texts import beside, refuses
from trainers import assert_same

from bppsa_nb import SGD, Adam, schedule
from bppsa_nb.schedule.execute import Executor
from bppsa_nb.schedule.layers import Layer, split
from bppsa_nb.sparse import Flatten, Linear, Network, prune
from bppsa_nb.training.loss import cross_entropy

POLICIES = ["conventional", "gpipe", "1f1b", "fast_forward", "modulo", "zero_bubble"]


def random_costs(layers, rng, sync=False):
    """Costs of which some are nothing."""
    parts = [rng.integers(0, 4, layers) for _ in range(4)]
    return schedule.Network(*parts[:3], sync=parts[3] if sync else None)


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
            for name in split(network)[layer - 1].params if kind == "δW" else ():
                sums[name] = sums[name] + grads[m][name] if name in sums else grads[m][name]
    return losses, sums


def assert_in_order(measured, timeline):
    """What ran is a schedule of the same operations, in the same order."""
    measured.check()
    assert measured.operations.workers == timeline.operations.workers
    for worker in range(len(timeline.operations.workers)):
        assert measured.order(worker) == timeline.order(worker)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_any_pipeline_in_turns(policy, seed):
    rng = np.random.default_rng([seed, POLICIES.index(policy)])
    network = random_network(rng, dtype=np.float32 if seed == 0 else np.float64)
    L, M = len(split(network)), int(rng.integers(1, 6))
    costs = random_costs(L, rng) if seed % 2 else schedule.Network.uniform(L)
    how = {"flush": bool(rng.random() < 0.5)} if policy not in ("conventional", "gpipe") else {}
    how["assumptions"] = schedule.Assumptions(first_output_grad=bool(seed % 3 == 0))
    devices, boundary = int(rng.integers(1, L + 1)), rng.integers(0, 2, L - 1)
    timeline = schedule.pipeline(costs, devices, M, policy, boundary_cost=boundary, **how)
    x, labels = random_batch(network, 2 * M, rng)
    with Executor(timeline, network, 2 * M, processes=False) as run:
        results = [run(x, labels) for _ in range(2)]
    losses, expected = in_order_of(timeline, network, x, labels)
    for result in results:
        np.testing.assert_array_equal(result.losses, losses)
        assert list(result.grads) == list(network.params)
        assert_same(result.grads, expected)
        assert_in_order(result.timeline, timeline)
        assert [event.label for event in result.events] == [event.label for event in timeline.events]
    assert result.loss == pytest.approx(ordinary(network, x, labels)[0], rel=1e-12 if seed else 1e-6)
    if seed:
        assert_gradients(result.grads, ordinary(network, x, labels)[1], 1e-12)


@pytest.mark.parametrize("policy", ["conventional", "fast_forward"])
def test_one_micro_batch_gives_the_ordinary_gradients_to_the_last_bit(policy):
    network = random_network(7, dtype=np.float32)
    network.masks = prune(network.params, 0.3)
    x, labels = random_batch(network, 5, 0)
    timeline = schedule.pipeline(schedule.Network.uniform(len(split(network))), 1, 1, policy)
    with Executor(timeline, network, 5) as run:
        result = run(x, labels)
    loss, expected = ordinary(network, x, labels)
    assert result.loss == loss
    assert_same(result.grads, expected)


@pytest.mark.parametrize("seed", range(6))
def test_data_parallel_timelines_train_like_one_process(seed):
    """S[δW] comes in any order, and every layer is updated right before its next forward pass."""
    rng = np.random.default_rng(seed)
    network, reference = random_network(seed), random_network(seed)
    L = len(split(network))
    costs = random_costs(L, rng, sync=True) if seed % 2 else schedule.Network.uniform(L, sync=1)
    policy = [{"policy": "fifo"}, {"policy": "priority"}, {"policy": "reverse_first_k", "k": L}][seed % 3]
    timeline = schedule.data_parallel(costs, **policy)
    optimizer = Adam(1e-2)
    batches = [random_batch(network, 4, [seed, i]) for i in range(4)]
    with Executor(timeline, network, 4, optimizer=Adam(1e-2)) as run:
        for i, batch in enumerate(batches[:-1]):
            # The first forward pass is computed, the others are the last run's. Then without telling in advance.
            following = tuple(array.copy() for array in batches[i + 1])
            result = run(*batch, following=following) if i < 2 else run(*batch)
            following[0][:] = 0  # whoever reuses an array
            loss, grads = ordinary(reference, *batch)
            assert result.loss == loss
            assert_same(result.grads, grads)
            optimizer.step(reference.params, grads)
            assert_same(network.params, reference.params)
            assert_in_order(result.timeline, timeline)
        result = run(*batches[3])
        assert result.loss == ordinary(reference, *batches[3])[0]
    with Executor(timeline, network, 4) as run:
        before = {name: param.copy() for name, param in network.params.items()}
        for _ in range(2):
            assert_same(run(*batches[0]).grads, ordinary(network, *batches[0])[1])
        assert_same(network.params, before)


def test_the_last_runs_forward_pass_is_not_computed_again(monkeypatch):
    network, calls = random_network(1), []
    forward = Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda self, *inputs: calls.append(self) or forward(self, *inputs))
    timeline = schedule.data_parallel(schedule.Network.uniform(8, sync=1))
    first, second = (random_batch(network, 4, i) for i in range(2))
    with Executor(timeline, network, 4, optimizer=SGD(0.1)) as run:
        for batch, passes in ((first, 2), (second, 1), (first, 2)):
            calls.clear()
            run(*batch, following=second)
            assert len(calls) == passes * 8
        second[0][:] *= 2  # announced, and then something else
        calls.clear()
        run(*second)
        assert len(calls) == 2 * 8


def test_two_streams_train_like_one_process():
    network, reference, optimizer = random_network(1), random_network(1), Adam(1e-2)
    regions = schedule.Regions.blocks(schedule.Network.uniform(8), [2, 5, 8])
    timeline = schedule.joint_regions(regions, range(2, 9), np.full((7, len(regions)), 1.3))
    assert len(timeline.order(1)) == 7
    with Executor(timeline, network, 4, optimizer=Adam(1e-2)) as run:
        for i in range(3):
            x, labels = random_batch(network, 4, i)
            result, (loss, grads) = run(x, labels), ordinary(reference, x, labels)
            assert result.loss == loss
            assert_same(result.grads, grads)
            assert_in_order(result.timeline, timeline)
            assert result.timeline.memory()[0][1][0] == timeline.memory()[0][1][0] == 10  # 8 inputs, δO of layer 8
            assert result.timeline.work == pytest.approx(result.timeline.operations.duration.sum())
            optimizer.step(reference.params, grads)
            assert_same(network.params, reference.params)
    with pytest.raises(ValueError, match="processes must be False where a device has two streams"):
        Executor(timeline, network, 4, processes=True)


def with_stale_weights(timeline, network, optimizer, x, labels):
    """PipeDream's gradients by ordinary backward passes: each layer has the weights of a version of its own."""
    M, layers = timeline.operations.micro_batches, split(network)
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
            network.params.update({name: versions[seen[i + 1, m]][name] for name in layer.params})
        loss, grads = ordinary(network, *part)
        losses.append(loss)
        optimizer.step(latest, grads)
    network.params.update(latest)
    return losses


@pytest.mark.parametrize("processes", [False, True])
def test_pipedream_takes_the_weights_of_its_forward_pass(processes):
    network, reference = random_network(2), random_network(2)
    L = len(split(network))
    timeline = schedule.pipeline(schedule.Network.uniform(L), 3, 7, "1f1b", flush=False, boundary_cost=0.25)
    assert timeline.staleness().max() == 2
    optimizer = Adam(3e-2)
    with Executor(timeline, network, 14, optimizer=Adam(3e-2), processes=processes) as run:
        for i in range(2):
            x, labels = random_batch(network, 14, i)
            result = run(x, labels)
            expected = with_stale_weights(timeline, reference, optimizer, x, labels)
            np.testing.assert_array_equal(result.losses, expected)
            assert_same(network.params, reference.params)
            assert result.grads is None
            assert_in_order(result.timeline, timeline)


@pytest.mark.parametrize(
    ("policy", "how"),
    [
        more("gpipe", {"boundary_cost": 0}),
        ("modulo", {"boundary_cost": [0, 2, 0.5, 0, 1, 3, 0], "flush": False}),
        more("zero_bubble", {"boundary_cost": 0.5}),
    ],
)
def test_processes_train_like_one_process(policy, how):
    network, reference = random_network(1, dtype=np.float64), random_network(1, dtype=np.float64)
    assert len(split(network)) == 8
    timeline = schedule.pipeline(schedule.Network.uniform(8), 3, 16, policy, **how)
    optimizers = [Adam(1e-2) for _ in range(2)]
    with Executor(timeline, network, 32) as run:
        for i in range(3):
            x, labels = random_batch(network, 32, i)
            result = run(x, labels)
            losses, grads = in_order_of(timeline, reference, x, labels)
            np.testing.assert_array_equal(result.losses, losses)
            assert_same(result.grads, grads)
            assert_gradients(result.grads, ordinary(reference, x, labels)[1], 1e-12)
            assert_in_order(result.timeline, timeline)
            optimizers[0].step(network.params, result.grads)
            optimizers[1].step(reference.params, grads)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_train_like_micro_batches_of_one_process(replicas):
    network, reference = random_network(4, dtype=np.float32), random_network(4, dtype=np.float32)
    L = len(split(network))
    timeline = schedule.data_parallel(schedule.Network.uniform(L, sync=2), "reverse_first_k", k=L // 2)
    one = schedule.pipeline(schedule.Network.uniform(L), 1, replicas)
    batches = [random_batch(network, 6, i) for i in range(3)]
    optimizer = SGD(0.1, momentum=0.9)
    with (
        Executor(timeline, network, 6, optimizer=SGD(0.1, momentum=0.9), processes=True, replicas=replicas) as run,
        Executor(one, reference, 6) as train,
    ):
        for batch, following in zip(batches, [*batches[1:], batches[0]], strict=True):
            result, expected = run(*batch, following=following), train(*batch)
            np.testing.assert_array_equal(result.losses, expected.losses)
            assert_same(result.grads, expected.grads)
            optimizer.step(reference.params, expected.grads)
            assert_same(network.params, reference.params)
            assert_in_order(result.timeline, timeline)


@pytest.fixture(scope="module")
def two_devices():
    network = random_network(0, linears=2, convolutions=1, free_end=False, dtype=np.float32)
    return network, schedule.pipeline(schedule.Network.uniform(len(split(network))), 2, 2, "gpipe")


@pytest.mark.outer
def test_an_error_in_a_process_is_the_callers(two_devices):
    network, timeline = two_devices
    x, labels = random_batch(network, 4, 0)
    good = network.params["last.weight"].copy()
    with Executor(timeline, network, 4) as run:
        run(x, labels)
        with pytest.raises(ValueError, match="labels must be from 0 to 3, got 7"):
            run(x, labels * 0 + 7)
        run(x, labels)  # nothing had begun
    network.params["last.weight"] = np.full_like(good, 3e38)
    try:
        with Executor(timeline, network, 4) as run, pytest.raises(FloatingPointError, match="'last' overflows") as info:
            run(x, labels)
    finally:
        network.params["last.weight"] = good
    assert str(info.value).startswith("GPU 2: ") and "Traceback" in info.value.__notes__[0]
    assert multiprocessing.active_children() == []


def test_a_dead_process_is_noticed(two_devices):
    network, timeline = two_devices
    with Executor(timeline, network, 4) as run:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"the process of GPU \d ended with exit code -9"):
            run(*random_batch(network, 4, 0))
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_all_processes(two_devices, foreground):
    network, timeline = two_devices
    x, labels = random_batch(network, 4, 0)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with Executor(timeline, network, 4) as run:
        run(x, labels)
        for process in multiprocessing.active_children():  # as a terminal does
            os.kill(process.pid, signal.SIGINT)
        run(x, labels)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                run(x, labels)
    timer.join()
    assert multiprocessing.active_children() == []
    gc.collect()  # whatever was not closed would warn


def test_an_error_leaves_the_parameters_alone():
    network = random_network(2, dtype=np.float32)
    L = len(split(network))
    timeline = schedule.pipeline(schedule.Network.uniform(L), 1, 2, "1f1b", flush=False)
    before = {name: param.copy() for name, param in network.params.items()}
    with Executor(timeline, network, 2, optimizer=SGD(1e38)) as run:
        with pytest.raises(FloatingPointError, match="overflows float32"):
            run(*random_batch(network, 2, 0))
        with pytest.raises(RuntimeError, match="an executor runs in a with block"):
            run(*random_batch(network, 2, 0))
    assert_same(network.params, before)


def test_infinite_gradients_update_nothing():
    network = Network((1, 1, 1), [Flatten("flatten"), Linear("one", 1, 1), Linear("two", 1, 2)], dtype=np.float32)
    network.params["one.weight"][:] = network.params["one.bias"][:] = 0
    network.params["two.weight"][:] = [[1e20], [-1e20]]
    before = {name: param.copy() for name, param in network.params.items()}
    x, labels = np.full((2, 1, 1, 1), 1e20, np.float32), np.zeros(2, int)
    timeline = schedule.data_parallel(schedule.Network.uniform(2, sync=1))
    with Executor(timeline, network, 2) as run:
        assert np.isinf(run(x, labels).grads["one.weight"])
    with Executor(timeline, network, 2, optimizer=SGD(0.1)) as run:
        with pytest.raises(FloatingPointError, match=r"the gradient of one\.weight overflows float32"):
            run(x, labels)
    assert_same(network.params, before)


def test_bad_input_has_clear_errors():
    network, used = random_network(1), Adam()
    used.step({"weight": np.ones(1)}, {"weight": np.ones(1)})
    layers, nine = schedule.Network.uniform(8, sync=1), schedule.pipeline(schedule.Network.uniform(9), 2, 3)
    timeline, parallel = schedule.pipeline(layers, 2, 3), schedule.data_parallel(layers)
    late = schedule.Timeline(timeline.operations, timeline.start[::-1].copy(), "reversed")
    for text, message in beside(__file__)["executors"]:
        refuses(text, message, globals() | locals())


def test_a_bad_batch_has_clear_errors():
    network, layers = random_network(1), schedule.Network.uniform(8, sync=1)
    run = Executor(schedule.pipeline(layers, 2, 3), network, 6, processes=False)
    x, labels = random_batch(network, 6, 0)
    with pytest.raises(RuntimeError, match="an executor runs in a with block"):
        run(x, labels)
    parallel = Executor(schedule.data_parallel(layers), network, 6)
    with run, parallel:
        with pytest.raises(RuntimeError, match="the executor runs already"), run:
            pass
        for text, message in beside(__file__)["batches"]:
            refuses(text, message, globals() | locals())
        run(x, labels)
