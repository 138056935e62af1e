"""Do what a schedule says on a real network, one operation after the other, and measure what each of them takes."""

import time
from collections import Counter
from typing import NamedTuple

import numpy as np

from bppsa_nb import schedule
from bppsa_nb.machine.workers import one_blas_thread
from bppsa_nb.networks.network import gradients_of, param_shapes, params_of
from bppsa_nb.schedule.operations import F, O, W
from bppsa_nb.training.loss import cross_entropy


class Done(NamedTuple):
    """What a run gives: losses of the micro-batches, gradients of their mean, seconds of each of the operations."""

    losses: np.ndarray
    grads: dict
    seconds: np.ndarray


def run(timeline, network, x, labels, optimizers=None):
    """Do the operations of a `pipeline`'s timeline, in the order of their starts, on a batch: a `Done`.

    The timeline is of as many layers as `schedule.split` makes of the network; micro-batches are equal parts of the
    batch. `optimizers`, one per layer, update the layer's parameters after every δW, and there are no gradients then.
    A micro-batch's δO takes the parameters that its F had: PipeDream with weight stashing.
    """
    layers, ops = schedule.split(network), timeline.operations
    if ops.ends_forward or ops.network.layers != len(layers) or len(x) % ops.micro_batches:
        sizes = f"{len(layers)} layers, with micro-batches that share out {len(x)} samples"
        raise ValueError(f"timeline must be a pipeline's, of {sizes}, got {timeline!r}")
    steps, seconds = _Steps(network, layers, x, labels, ops, optimizers), np.zeros(len(ops))
    do = {F: steps.forward, O: steps.output_grad, W: steps.weight_grad}
    with one_blas_thread():
        for i in timeline.sequence.tolist():
            if ops.kind[i] in do:
                start = time.perf_counter()
                do[ops.kind[i]](int(ops.layer[i]), int(ops.micro_batch[i]))
                seconds[i] = time.perf_counter() - start
    return Done(steps.losses, steps.grads, seconds)


class _Steps:
    """F, δO and δW of layers from 1 on, and what they leave for each other, by layer and micro-batch."""

    def __init__(self, network, layers, x, labels, ops, optimizers):
        count = ops.micro_batches
        self.params, self.layers, self.optimizers = network.params, layers, optimizers
        self.labels, self.losses, self.grads = np.split(labels, count), np.zeros(count), {}
        self.inputs = {(1, m): part for m, part in enumerate(np.split(x, count))}
        self.kept, self.arrived = {}, {}  # what F computed, and with which parameters; gradients at outputs
        gradients = (ops.kind == O) | (ops.kind == W)
        self.missing = Counter(zip(ops.layer[gradients].tolist(), ops.micro_batch[gradients].tolist(), strict=True))

    def forward(self, layer, m):
        params = {name: self.params[name] for name in param_shapes(self.layers[layer - 1])}
        if self.optimizers:
            params = {name: param.copy() for name, param in params.items()}
        arrays = [self.inputs.pop((layer, m))]
        for operator in self.layers[layer - 1]:
            arrays.append(operator.forward(arrays[-1], *params_of(operator, params)))
        self.kept[layer, m] = arrays, params
        if layer < len(self.layers):
            self.inputs[layer + 1, m] = arrays[-1]
        else:
            self.losses[m], grad = cross_entropy(arrays[-1], self.labels[m])
            self.arrived[layer, m] = grad if self.optimizers else grad / len(self.losses)

    def output_grad(self, layer, m):
        (arrays, params), grad = self.kept[layer, m], self.arrived[layer, m]
        for operator, x, y in zip(self.layers[layer - 1][::-1], arrays[-2::-1], arrays[:0:-1], strict=True):
            grad = operator.backward(grad, x, y, *params_of(operator, params))
        self.arrived[layer - 1, m] = grad
        self._used(layer, m)

    def weight_grad(self, layer, m):
        grads = gradients_of(self.layers[layer - 1][-1], self.arrived[layer, m], self.kept[layer, m][0][-2])
        if self.optimizers and grads:
            self.optimizers[layer - 1].step({name: self.params[name] for name in grads}, grads)
        elif not self.optimizers:
            for name, grad in grads.items():
                self.grads[name] = self.grads[name] + grad if name in self.grads else grad
        self._used(layer, m)

    def _used(self, layer, m):
        """Forget what a layer keeps of a micro-batch once all of its gradients are there."""
        self.missing[layer, m] -= 1
        if not self.missing[layer, m]:
            del self.kept[layer, m], self.arrived[layer, m]


def profile(network, x, labels, rounds):
    """Measure what a network's layers cost on this machine: `schedule.Network`, of medians in seconds, and of bytes.

    x and labels are one micro-batch. F of the last layer includes the loss. What a layer keeps are the inputs of its
    operators, and the output of one without parameters, whose derivative may read it.
    """
    activations, layers = network.forward(x), schedule.split(network)
    wanted = schedule.Assumptions(first_output_grad=True)
    timeline = schedule.pipeline(schedule.Network.uniform(len(layers)), 1, assumptions=wanted)
    runs = [run(timeline, network, x, labels).seconds for _ in range(rounds + 1)]  # the first does not count
    numbers = [timeline.operations.select(kind)[0] for kind in (F, O, W)]
    forward, output_grad, weight_grad = np.median(runs[1:], axis=0)[numbers]
    arrays, first, kept, outputs, sizes = [activations.x, *activations.outputs], 0, [], [], []
    for layer in layers:
        last, params = first + len(layer), param_shapes(layer)
        kept.append(_bytes(arrays[first : last + (not params)]))
        outputs.append(arrays[last].nbytes)
        sizes.append(sum(network.params[name].nbytes for name in params))
        first = last
    memory = schedule.Memory(kept, outputs, sizes)
    return schedule.Network(forward, output_grad, np.where(sizes, weight_grad, 0), memory=memory)


def _bytes(arrays):
    """Add up the sizes of arrays; views of one memory, as Flatten makes them, count once."""
    return sum({array.__array_interface__["data"][0]: array.nbytes for array in arrays}.values())
