"""Whole training steps on a GPU: parameters, averages and all that a step works on stay there between iterations.

A step is a fixed sequence of launches: forward pass, loss, scan, gradients of the parameters, optimizer. On a GPU, the
sequence is recorded once as a CUDA graph and replayed, so that issuing a step costs one launch instead of dozens
(out-of-order backprop calls that pre-compiled kernel issue, Section 4.2). Of a stack of layers, the main stream goes
from scan to scan, while a sub-stream computes weight gradients, which no other layer waits for (Section 4.1). Per step,
the inputs go to the device, and loss and parameters come back, in one copy each.
"""

import warnings

import numpy as np

from bppsa_nb.cells import stack
from bppsa_nb.cells.layer_cuda import launch_linear
from bppsa_nb.cells.recurrent import HEAD
from bppsa_nb.cells.stack_cuda import Device, head_parts, launch_from_logits
from bppsa_nb.chains.plan import explain
from bppsa_nb.machine.arrays_cuda import fill
from bppsa_nb.machine.cuda import follow, new_stream, record, records, require
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.training import kernels_cuda as kernels


class Shared:
    """What steps of all shapes share: parameters, averages and status on the GPU, and what mirrors them on the host.

    Without `graph`, or where nothing `records`, every step issues its launches anew; without `sub_stream`, weight
    gradients keep the conventional order.
    """

    def __init__(self, model, optimizer, graph=True, sub_stream=True):
        self.model, self.optimizer, self.graph = model, optimizer, graph and records()
        self.count, dtype = model.params.flat.size, model.dtype
        # Parameters, then averages, then the status: what comes back, in one copy.
        self.host = np.full((1 + len(optimizer.flats(model.params))) * self.count + 2, np.nan, dtype)
        self.host[-2:] = kernels.DONE
        self.flat = cuda.to_device(self.host)
        self.loss, self.grads = cuda.to_device(np.zeros(1)), cuda.device_array(self.count, dtype)
        self.stream = new_stream()
        self.sub_stream = new_stream() if sub_stream and model.num_layers > 1 else None

    def vectors(self, flat):
        """Cut a flat array into parameters, averages and status."""
        starts = range(0, len(self.host), self.count)
        return [flat[start : min(start + self.count, len(self.host))] for start in starts]

    def pairs(self):
        """Return every flat array of model and optimizer, with its place in the mirror."""
        own = self.model.params.flat, *self.optimizer.flats(self.model.params)
        return list(zip(own, self.vectors(self.host), strict=False))

    def send(self):
        """Send what was changed on the host since it came from the GPU."""
        changed = [(own, mirror) for own, mirror in self.pairs() if not np.array_equal(own, mirror)]
        for own, mirror in changed:
            mirror[...] = own
        if changed:
            self.flat.copy_to_device(self.host, stream=self.stream)
        self.host[:-2] = np.nan  # until it is fetched: a step that Ctrl-C stops has changed what is on the GPU, or not

    def fetch(self):
        """Fetch what a step found into the mirror; return how the step ended."""
        self.flat.copy_to_host(self.host, stream=self.stream)
        self.stream.sync()
        return int(self.host[-2] or self.host[-1])  # how the gradients came out, and then the update


class Step:
    """A step for batches of a shape (T, B, I); see `bppsa_nb.training.step.Step`. Model and optimizer own all arrays.

    It is recorded as it is asked for, and, where that fails, with the loop in place of chunks that did not meet, and
    with the linear scan in place of products that left the range.
    """

    def __init__(self, model, optimizer, shape, how, options, shared):
        if not shared:
            shared["gpu"] = Shared(model, optimizer)
        self.shared, self.shape, self.how, self.options = shared["gpu"], shape, how, options
        self.chunked, self._recorded = stack.resolve_method(model, options, shape, "cuda")[0] is not stack.LOOP, {}

    def run(self, x, labels):
        """Go forward and back, and update what is on the GPU; return the loss. Nothing on the host has changed yet.

        MemoryError if what a step works on does not fit.
        """
        self.shared.send()
        options, self.converged = self.options, True
        status = self._run(self.how, options, x, labels)
        if status == kernels.UNCONVERGED:  # nothing was updated
            options, self.converged = stack.LOOP, False
            status = self._run(self.how, options, x, labels)
        if status == kernels.LOST:  # products of Jacobians left the range: nothing was updated, the linear scan answers
            status = self._run(("linear", "cuda", None), options, x, labels)
        self.done = status == kernels.DONE
        return float(self.shared.loss.copy_to_host()[0])

    def _run(self, how, options, x, labels):
        key = how, options
        if key not in self._recorded:
            self._recorded[key] = Recorded(self.shared, self.shape, how, options)
        self.last = self._recorded[key]
        self.last.load(x, labels)
        self.last.run()
        return self.shared.fetch()

    def commit(self):
        """Write what the step found into model and optimizer; return False, and change nothing, if it failed."""
        if self.done:
            self.shared.optimizer.take(self.shared.pairs())
        return self.done

    def share(self):
        """Predict the time that the forward pass took in chunks, in that of the loop."""
        model = self.shared.model
        sizes = *self.shape[:2], model.hidden_size, model.dtype, "cuda", model.cell.gates
        expected = explain(*sizes, forward=True).seconds
        return expected["chunked"] / expected["linear"] + (not self.converged)  # or else the loop followed


class Recorded:
    """One shape of training step by one method: its arrays and launches, recorded when it runs again."""

    def __init__(self, shared, shape, how, options):
        model, (T, B, inputs) = shared.model, shape
        cell, H, L, dtype = model.cell, model.hidden_size, model.num_layers, model.dtype
        N, sums = cell.states * H, cell.gates * H
        stored = T * B * N * N if how[0] in ("blelloch", "truncated") else 0
        numbers = L * T * B * (N + (cell.kept + cell.preacts) * H) + stored
        numbers += T * B * (inputs + sums + (cell.gates + cell.states + 2) * N)
        require(numbers * dtype.itemsize, f"a training step of T = {T}, B = {B}, H = {H} by method {how[0]!r}")
        self.shared = shared
        # The optimizer's numbers, labels, and x: what is sent, in one copy.
        self.staged = np.zeros(kernels.NUMBERS + B + T * B * inputs, dtype)
        self.inputs = cuda.device_array(self.staged.shape, dtype)
        self.numbers, self.labels, x = self._cut(self.inputs, B)
        self.x, self.logits = x.reshape(shape), cuda.device_array((B, model.num_classes), dtype)
        self.params, *self.averages, self.status = shared.vectors(shared.flat)
        views, grads = model.params.views(self.params), model.params.views(shared.grads)
        self.head = [views[name] for name in HEAD], [grads[name] for name in HEAD]
        self.layers = Device(model, shape, options, how, arrays=(views, grads), waits=False)
        self.layers.unconverged = cuda.to_device(np.zeros(1, np.int32))
        self.head_parts = head_parts(B, model.num_classes, self.layers.states[0, 0, 0])
        fill(self.layers.states, dtype.type(0))
        self.recorded, self.runs = None, 0

    @staticmethod
    def _cut(inputs, batch):
        first = kernels.NUMBERS + batch
        return inputs[: kernels.NUMBERS], inputs[kernels.NUMBERS : first], inputs[first:]

    def load(self, x, labels):
        """Send a batch, its labels and the optimizer's numbers, in one copy."""
        settings, places, inputs = self._cut(self.staged, len(labels))
        numbers = self.shared.optimizer.numbers()
        with np.errstate(over="ignore", under="ignore"):  # an infinite rate is found in what it makes of the parameters
            settings[: len(numbers)] = numbers
        places[:] = labels
        inputs[:] = x.reshape(-1)
        self.inputs.copy_to_device(self.staged, stream=self.shared.stream)

    def run(self):
        """Run the step: the first time launch by launch, which compiles; then recorded."""
        if not self.shared.graph or self.runs == 0:
            self.launch(self.shared.stream)
        else:
            if self.recorded is None:
                self.recorded = self._record()
            self.recorded(self.shared.stream)
        self.runs += 1

    def _record(self):
        try:
            return record(self.launch, self.shared.stream).launch
        except Exception as error:  # a driver's, Numba's: training need not stop for it
            warnings.warn(
                f"a training step could not be recorded as a CUDA graph; its launches are issued one by one: {error}",
                stacklevel=9,  # who called Trainer.step
            )
            self.shared.graph = False
            return self.launch

    def launch(self, stream):
        """Issue every launch of a step."""
        layers, (of_head, grads_of_head) = self.layers, self.head
        layers.stream, layers.side = stream, self.shared.sub_stream or stream
        starts = [()] * len(layers.hidden)
        stack.forward(layers, self.x, starts)
        entrance, scan = layers.scanner().entrance, layers.scanner()
        fill(entrance, entrance.dtype.type(0), stream)
        states = layers.states[len(starts) - 1, 0]
        last = states[len(states) - 1]
        launch_linear(last, *of_head, self.logits, stream)
        arrays = self.logits, self.labels, self.shared.loss, self.status, scan.lost
        kernels.one_block(kernels.cross_entropy, stream)(*arrays)
        found = *grads_of_head, entrance[len(entrance) - 1]
        launch_from_logits(last, of_head[0], self.logits, self.head_parts, found, stream)
        stack.backward(layers, self.x, [None] * (len(starts) - 1) + [entrance])
        follow(stream, layers.side)
        flags = self.status, scan.lost, layers.unconverged
        arrays = self.params, self.shared.grads, self.averages, self.numbers
        kernels.launch_update(self.shared.optimizer, *arrays, flags, stream)
