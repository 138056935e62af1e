"""What a device does in one iteration: F, δO and δW of its layers, on arrays."""

import copy
import time

import numpy as np

from bppsa_nb.schedule.operations import F, O, W
from bppsa_nb.training.loss import cross_entropy


class Steps:
    """A device, its layers (by their numbers from 1, of `last`), and what they keep between operations.

    The program is what the device does, in this order: the number of the operation, its kind, layer and micro-batch.
    `parts` are slices of a batch, one for every micro-batch, and the batch's loss is the mean of `share` of them, those
    of all replicas. `updates` says what updates the weights: None, nothing here; "each", every micro-batch, whose δO
    takes those of its F (PipeDream with weight stashing); or "before forward", every F, by the gradients that came
    before it. Every layer has a copy of the optimizer.
    """

    def __init__(self, layers, last, program, parts, share, updates=None, optimizer=None):
        self.layers, self._last, self._program = layers, last, program
        self._parts, self._share, self._updates = parts, share, updates
        self._optimizers = {number: copy.deepcopy(optimizer) for number in layers} if updates else {}
        self._gradients = {number: {kind for _, kind, l, _ in program if l == number} - {F} for number in layers}
        self.sums = {}  # layer -> gradients of its parameters, added up in the order of the program
        # What operations hand on, by kind, layer and micro-batch. The images come from the F of layer 0, the loss's
        # gradient from the δO of layer L + 1.
        self.products, self._kept = {}, {}

    def run(self, params, batch, following, times, receive=None, hand_on=None):
        """Follow the program; return the micro-batches' losses on the device with the last layer, and None elsewhere.

        `params` are the layers' parameters by name, which stay as they are: updates are in `weights`. `batch` and
        `following` are images and labels: what a forward pass at the beginning reads (None goes on from the one that
        ended the run before), and what one at the end does (None if there is none). `times` [shape=(n, 2)] receives
        start and end of every operation, in seconds. `receive` and `hand_on` are called with kind, layer and
        micro-batch before and after each one. Raises FloatingPointError if an output, or a gradient that is to update
        weights, leaves the range of the dtype.
        """
        # Who updates has copies: others, and the caller if this goes wrong, have theirs.
        own = (lambda name: params[name].copy()) if self._updates else params.__getitem__
        self._weights = {number: [own(name) for name in layer.params] for number, layer in self.layers.items()}
        self.sums = {}
        if batch is not None:
            self._feed(batch)
            if following is not None:
                for layer in self.layers:
                    self.do(F, layer, 0)
        losses = self._losses
        if following is not None:
            self._feed(following)
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            for i, kind, layer, m in self._program:
                if receive:
                    receive(kind, layer, m)
                start = time.perf_counter()
                if kind == F and self._updates == "before forward":
                    self._update(layer)
                if kind in (F, O, W):
                    self.do(kind, layer, m)
                times[i] = start, time.perf_counter()
                if hand_on:
                    hand_on(kind, layer, m)
        return losses if self._last in self.layers else None

    @property
    def weights(self):
        """Parameters after the last run, by name."""
        return self._by_name(self._weights)

    @property
    def grads(self):
        """Gradients of the last run, by parameters' names."""
        return self._by_name(self.sums)

    def _by_name(self, lists):
        pairs = (zip(self.layers[number].params, arrays, strict=True) for number, arrays in lists.items())
        return dict(pair for each in pairs for pair in each)

    def _feed(self, batch):
        # Copies: the next run still reads what this one's last forward pass did, when the batch is another.
        (x, labels), self._losses = batch, np.full(len(self._parts), np.nan)
        self._labels = [labels[part].copy() for part in self._parts]
        if 1 in self.layers:
            self.products |= {(F, 0, m): x[part].copy() for m, part in enumerate(self._parts)}

    def do(self, kind, layer, m):
        """Compute F, δO or δW of a layer and a micro-batch; what it reads must be among `products`."""
        {F: self._forward, O: self._output_grad, W: self._weight_grad}[kind](layer, m)

    def _forward(self, layer, m):
        weights = self._weights[layer]
        if self._updates == "each":
            weights = [weight.copy() for weight in weights]
        kept = self.layers[layer].forward(self.products.pop((F, layer - 1, m)), weights)
        self._kept[layer, m] = kept, weights, set(self._gradients[layer])
        if layer < self._last:
            self.products[F, layer, m] = kept[-1]
        else:
            self._losses[m], grad = cross_entropy(kept[-1], self._labels[m])
            self.products[O, layer + 1, m] = grad / self._share

    def _output_grad(self, layer, m):
        kept, weights, _ = self._kept[layer, m]
        grad = self.layers[layer].output_grad(kept, self.products[O, layer + 1, m], weights)
        if layer > 1:  # nobody needs the gradient at the images
            self.products[O, layer, m] = grad
        self._forget(O, layer, m)

    def _weight_grad(self, layer, m):
        grads = self.layers[layer].weight_grad(self._kept[layer, m][0], self.products[O, layer + 1, m])
        if layer not in self.sums:
            self.sums[layer] = grads
        else:
            for total, grad in zip(self.sums[layer], grads, strict=True):
                total += grad
        if self._updates == "each":
            self._update(layer)
            del self.sums[layer]
        self._forget(W, layer, m)

    def _forget(self, kind, layer, m):
        """Drop what a layer keeps of a micro-batch once all of its gradients are there."""
        missing = self._kept[layer, m][2]
        missing.remove(kind)
        if not missing:
            del self._kept[layer, m], self.products[O, layer + 1, m]

    def _update(self, layer):
        names = self.layers[layer].params
        grads = dict(zip(names, self.sums[layer], strict=True))
        for name, grad in grads.items():
            if not np.isfinite(grad).all():
                raise FloatingPointError(f"the gradient of {name} overflows {grad.dtype}")
        if names:
            self._optimizers[layer].step(dict(zip(names, self._weights[layer], strict=True)), grads)
