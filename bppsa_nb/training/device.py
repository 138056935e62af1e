"""Whole training steps on a GPU: parameters, averages and all that a step works on stay there between iterations.

A step is a fixed sequence of launches: forward pass, loss, scan, gradients of the parameters, optimizer. On a GPU, the
sequence is recorded once as a CUDA graph and replayed, so that issuing a step costs one launch instead of dozens
(out-of-order backprop calls that pre-compiled kernel issue, Section 4.2). Of a stack of layers, the main stream goes
from scan to scan, while a sub-stream computes weight gradients, which no other layer waits for (Section 4.1). Per step,
the inputs go to the device, and loss and parameters come back, in one copy each.
"""

import math
import warnings
from functools import partial

import numpy as np

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.chunked_cuda import Chunks as LoopChunks
from bppsa_nb.cells.layer import chain_of
from bppsa_nb.cells.recurrent import Recurrent, overflow
from bppsa_nb.cells.stacked import resolve_method
from bppsa_nb.cells.unroll import TOLERANCE, SolverOptions
from bppsa_nb.chains.levels_cuda import launch_scan, workspace
from bppsa_nb.chains.plan import chunk_length, explain
from bppsa_nb.chains.structured_cuda import Chunks, Links, launch_chunked, launch_prepare, launch_sweep
from bppsa_nb.machine import arrays_cuda, backends
from bppsa_nb.machine.cuda import follow, new_stream, record, records, require, wait
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.training import kernels_cuda as kernels
from bppsa_nb.training.local import LocalStrategy, check_gradients, differs, is_recurrent
from bppsa_nb.training.loss import check_labels, check_order
from bppsa_nb.training.optimizers import SGD, Adam


class DeviceStrategy(LocalStrategy):
    """Steps of recurrent layers: whole on the GPU where it knows all that is computed, otherwise as on the host."""

    steps = "on the GPU"

    def __init__(self):
        self.training = None
        self._warned = False

    def _compute(self, trainer, x, y, lengths=None):
        check_order(x, y)
        model, optimizer = trainer.model, trainer.optimizer
        on_host = trainer.forward.method == "newton" or trainer.forward.checkpoint_every is not None
        if lengths is not None or on_host or not self._runs_whole(model, optimizer, trainer.backend, x):
            return super()._compute(trainer, x, y, lengths)
        model.check_input(x)
        labels = check_labels(y, x.shape[1], model.num_classes)
        if self.training is None or (self.training.model, self.training.optimizer) != (model, optimizer):
            self.training = DeviceTraining(model, optimizer)
        options = SolverOptions(**{"method": "auto"} | trainer.forward.how())
        method, length = resolve_method(model, options, x.shape, "cuda")
        length = length if method.method == "chunked" else None
        loss, converged = self.training.step(x, labels, trainer.method, trainer.levels, length)
        return loss, partial(self._update_whole, trainer, x.shape, length, converged)

    def _update_whole(self, trainer, shape, length, converged):
        self.training.commit()
        share, model = None, trainer.model
        if length is not None:
            sizes = *shape[:2], model.hidden_size, model.dtype, "cuda", model.cell.gates
            expected = explain(*sizes, forward=True).seconds
            share = expected["chunked"] / expected["linear"] + (not converged)  # or else the loop followed
        trainer.forward.remember(share)

    def _runs_whole(self, model, optimizer, backend, x):
        if not isinstance(model, Recurrent) or backends.resolve(backend) != "cuda":  # not as when the trainer was made
            return False
        # Only what exactly these compute is known to the GPU.
        own = [] if is_recurrent(model) else [model]
        own += [optimizer] if differs(optimizer, (SGD, Adam)) else []
        if not own and model.params.keys() == model.shapes().keys():
            return np.ndim(x) == 3 and len(x) > 0  # a sequence without steps needs no GPU
        if not self._warned:
            self._warned = True
            names = " and ".join(type(part).__name__ for part in own) or "parameters of its own"
            warnings.warn(
                f"whole steps run on the GPU only of a cell's layers and nothing else, by SGD or Adam; with {names}, "
                "forward and backward of the model and the optimizer's step are called",
                stacklevel=6,  # who called Trainer.step
            )
        return False


class DeviceTraining:
    """Training steps of a recurrent model on the GPU.

    Model and optimizer on the host stay the owners: what a step finds is written into their arrays by `commit`, and
    what was changed there in between is sent before the next step. Without `graph`, or where nothing `records`, every
    step issues its launches anew; without `sub_stream`, weight gradients keep the conventional order.
    """

    def __init__(self, model, optimizer, graph=True, sub_stream=True):
        self.model, self.optimizer, self.graph = model, optimizer, graph and records()
        self.shapes = {name: param.shape for name, param in model.params.items()}
        self.count = sum(param.size for param in model.params.values())
        self.averages = tuple(optimizer.zeros(model.params))
        dtype = model.dtype
        # Parameters, then averages, then the status: what comes back, in one copy.
        self.flat = cuda.to_device(np.zeros((1 + len(self.averages)) * self.count + 2, dtype))
        self.loss = cuda.to_device(np.zeros(1))
        self.grads = cuda.device_array(self.count, dtype)
        self.host = np.zeros(self.flat.shape, dtype)
        self.places = [self.views(vector) for vector in self.vectors(self.host)[:-1]]  # of parameters and averages
        self.sent = None
        self.steps = {}
        self.stream = new_stream()
        self.sub_stream = new_stream() if sub_stream and model.num_layers > 1 else None

    def views(self, flat):
        """Cut P numbers into arrays of the parameters' shapes."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            views[name] = flat[start:stop].reshape(shape)
            start = stop
        return views

    def vectors(self, flat):
        """Cut a flat array into parameters, averages and status."""
        starts = range(0, len(self.host), self.count)
        return [flat[start : min(start + self.count, len(self.host))] for start in starts]

    def step(self, x, labels, method="auto", levels=None, length=None):
        """Compute one step on the device for checked x (T, B, I), T > 0, and labels (B,).

        Returned are its loss, and whether chunks of the time loop converged, if it runs in chunks of a `length`.
        Nothing on the host changes. FloatingPointError if logits, a gradient or an update leave the range of the dtype,
        MemoryError if what a step works on does not fit.
        """
        self._send()
        T, B, _ = x.shape
        method, _, levels = self.model.choose(method, "cuda", levels, (T, B))
        status = self._run((T, B, method, levels, length), x, labels)
        converged = status != kernels.UNCONVERGED
        if not converged:  # nothing was updated
            status = self._run((T, B, method, levels, None), x, labels)
        if status == kernels.LOST:  # products of Jacobians left the range: nothing was updated, the linear scan answers
            status = self._run((T, B, "linear", None, None), x, labels)
        if status != kernels.DONE:
            self._explain(status, T)
        return float(self.loss.copy_to_host()[0]), converged

    def _run(self, key, x, labels):
        """Run a kind of step; return how it ended."""
        if key not in self.steps:
            while len(self.steps) > 4:  # a full batch and the last one of an epoch, in chunks and by the loop; linear
                self.steps.pop(next(iter(self.steps)))
            self.steps[key] = Step(self, *key)
        step = self.steps[key]
        step.load(x, labels)
        step.run()
        return self._fetch()

    def _explain(self, status, steps):
        """Raise the error of a step that left the range of the dtype."""
        if status == kernels.LOGITS:
            raise FloatingPointError(overflow(self.model.dtype))
        grads = self.views(self.grads.copy_to_host())
        if status == kernels.GRADIENTS:
            check_gradients(grads, f" after {steps} time steps")
        for name, grad in grads.items():
            self.optimizer.check_range(name, grad, [group[name] for group in self.places])

    def commit(self):
        """Write what the last step found into the model's parameters and the optimizer's state."""
        for target, source in self._pairs():
            target[...] = source
        self.optimizer.steps += 1
        self.sent = self.host.copy()

    def _pairs(self):
        """Yield every array of model and optimizer, with its place on the host's side of the flat array."""
        if not self.optimizer.state:
            self.optimizer.state = self.optimizer.zeros(self.model.params)
        groups = [self.model.params, *(self.optimizer.state[average] for average in self.averages)]
        for group, places in zip(groups, self.places, strict=True):
            yield from ((array, places[name]) for name, array in group.items())

    def _send(self):
        for source, place in self._pairs():
            place[...] = source
        if self.sent is None or not np.array_equal(self.host, self.sent):
            self.flat.copy_to_device(self.host, stream=self.stream)
        self.sent = None  # from here on the device may be ahead of the host, until a step is committed

    def _fetch(self):
        self.flat.copy_to_host(self.host, stream=self.stream)
        wait(self.stream)
        return int(self.host[-2] or self.host[-1])  # how the gradients came out, and then the update


class Step:
    """One shape of training step by one method: its arrays and launches; with a `length`, the loop is in chunks."""

    def __init__(self, training, T, B, method, levels, length):
        model = training.model
        self.training, self.cell = training, model.cell
        cell, H, L, dtype = self.cell, model.hidden_size, model.num_layers, model.dtype
        N, sums = cell.states * H, cell.gates * H
        stored = T * B * N * N if method in ("blelloch", "truncated") else 0
        of_step = N + (cell.kept + cell.sums) * H + (cell.gates + cell.states) * N
        numbers = L * T * B * of_step + T * B * (model.input_size + sums + 2 * N) + stored
        require(numbers * dtype.itemsize, f"a training step of T = {T}, B = {B}, H = {H} by method {method!r}")
        new = partial(cuda.device_array, dtype=dtype)
        # The optimizer's settings, labels, and x: what is sent, in one copy.
        self.inputs = new(kernels.SETTINGS + B + T * B * model.input_size)
        self.staged = np.zeros(self.inputs.shape, dtype)
        self.settings, self.labels, x = self._cut(self.inputs, B)
        self.x = x.reshape(T, B, model.input_size)
        self.states = [cuda.to_device(np.zeros((cell.states, T + 1, B, H), dtype)) for _ in range(L)]
        self.kept = [cells.new_kept(cell, (T, B, H), new) for _ in range(L)]
        self.diagonals = [cells.new_diagonals(cell, (T, B, H), new) for _ in range(L)]
        self.at_sums = [new((cell.sums, T, B, H)) for _ in range(L)]
        self.products, self.weight_hh_T = new((T, B, sums)), new((H, sums))
        self.logits = new((B, model.num_classes))
        self.parts = [new(weight_gradients.parts_of(self.at_sums[0].shape, n)) for n in (model.input_size, H)[:L]]
        self.params, *self.averages, self.status = training.vectors(training.flat)
        self.arrays, self.grads = training.views(self.params), training.views(training.grads)
        chains = []
        for layer, (slopes, carry) in enumerate(self.diagonals):
            chains.append(chain_of(cell, self.arrays[f"weight_hh_l{layer}"], slopes, carry if cell.carries else None))
        self.unconverged = cuda.to_device(np.zeros(1, np.int32))
        layers = zip([self.arrays[f"bias_hh_l{layer}"] for layer in range(L)], self.states, self.kept, strict=True)
        self.loops = [(self.products, self.weight_hh_T, *arrays) for arrays in layers]
        self.passes = length and [LoopChunks(self.cell, loop, length, self.unconverged) for loop in self.loops]
        self.scan = Scan(chains, (T, B, N), dtype, cell.weights, method, levels)
        self.recorded = None
        self.runs = 0

    @staticmethod
    def _cut(inputs, batch):
        first = kernels.SETTINGS + batch
        return inputs[: kernels.SETTINGS], inputs[kernels.SETTINGS : first], inputs[first:]

    def load(self, x, labels):
        """Send a batch, its labels and the optimizer's settings, in one copy."""
        settings, places, inputs = self._cut(self.staged, len(labels))
        new_settings = kernels.settings_of(self.training.optimizer)
        with np.errstate(over="ignore", under="ignore"):  # an infinite rate is found in what it makes of the parameters
            settings[: len(new_settings)] = new_settings
        places[:] = labels
        inputs[:] = x.reshape(-1)
        self.inputs.copy_to_device(self.staged, stream=self.training.stream)

    def run(self):
        """Run the step: the first time launch by launch, which compiles; then recorded."""
        if not self.training.graph or self.runs == 0:
            self.launch(self.training.stream)
        else:
            if self.recorded is None:
                self.recorded = self._record()
            self.recorded(self.training.stream)
        self.runs += 1

    def _record(self):
        try:
            return record(self.launch, self.training.stream).launch
        except Exception as error:  # a driver's, Numba's: training need not stop for it
            warnings.warn(
                f"a training step could not be recorded as a CUDA graph; its launches are issued one by one: {error}",
                stacklevel=9,  # who called Trainer.step
            )
            self.training.graph = False
            return self.launch

    def launch(self, stream):
        """Issue every launch of a step."""
        training, arrays, grads, scan = self.training, self.arrays, self.grads, self.scan
        below, zero = self.x, training.model.dtype.type(0)
        for layer, (states, kept) in enumerate(zip(self.states, self.kept, strict=True)):
            params = tuple(arrays[f"{name}_l{layer}"] for name in self.cell.names)
            cells.launch_inputs(below, params, self.weight_hh_T, self.products, stream)
            if self.passes:
                self.passes[layer].launch_fixed(TOLERANCE[states.dtype.itemsize], stream)
            else:
                cells.launch_loop(self.cell, cells.run_forward_of, states.shape[2], self.loops[layer], stream=stream)
            cells.launch_derive(self.cell, states, kept, *self.diagonals[layer], stream)
            below = states[0, 1:]
        arrays_cuda.fill(scan.gradients, zero, stream)
        kernels.one_block(kernels.classify, stream)(
            *(self.states[-1][0], arrays["fc.weight"], arrays["fc.bias"], self.labels, self.logits),
            *(scan.gradients, grads["fc.weight"], grads["fc.bias"], training.loss, self.status, scan.lost),
        )
        sub = training.sub_stream or stream
        top = len(self.states) - 1
        for layer in range(top, -1, -1):
            gradients = scan.launch(layer, layer < top, stream)
            at_sums = self.at_sums[layer]
            cells.launch_sum_gradients(self.cell, self.states[layer], self.kept[layer], gradients, at_sums, stream)
            # What δW reads stays as it is until the step ends, and only other δW work on its arrays.
            follow(sub, stream)
            below = self.states[layer - 1][0, 1:] if layer else self.x
            work = self.parts[min(layer, 1)], tuple(grads[f"{name}_l{layer}"] for name in self.cell.names)
            weight_gradients.launch_gradients(self.cell, below, self.states[layer][0], at_sums, *work, sub)
            if layer:
                # The layer below is read at every step: its loss terms enter everywhere but at h_0.
                unread = scan.gradients if self.cell.states > 1 else scan.gradients[:1]
                arrays_cuda.fill(unread, zero, stream)
                weight_ih = arrays[f"weight_ih_l{layer}"]
                cells.launch_input_gradients(self.cell, at_sums, weight_ih, scan.gradients[1:], stream)
        follow(stream, sub)
        flags = self.status, scan.lost, self.unconverged
        arrays = self.params, training.grads, self.averages, self.settings
        kernels.launch_update(training.optimizer, *arrays, flags, stream)


class Scan:
    """The scans of a step's layers, one after the other: their arrays on the device, and their launches.

    `gradients` [shape=(T + 1, B, S H)] are, before a scan, what the loss and the layer above add at each state;
    `lost` is not 0 where products of Jacobians left the range of the dtype.
    """

    def __init__(self, chains, shape, dtype, rows, method, levels):
        (T, B, H), self.method, self.levels = shape, method, levels
        self.links = list(map(Links, chains))
        self.gradients = cuda.device_array((T + 1, B, H), dtype)
        self.lost = cuda.to_device(np.zeros(1, np.int32))
        if method == "chunked":
            self.chunks = Chunks(shape, chunk_length(*shape, dtype, "cuda", rows), dtype)
        elif method == "linear":
            self.ends = cuda.device_array((1, B, H), dtype)
        else:
            self.mats, self.exps, self.vecs, self.lost = workspace(T, B, B, H, dtype)

    def launch(self, layer, affine, stream):
        """Launch the scan of a layer; return where the gradients at its hidden states will be."""
        links, gradients = self.links[layer], self.gradients
        links.launch_joined(stream)
        steps = len(gradients) - 1
        if self.method == "linear":
            arrays_cuda.copy(gradients[steps:], self.ends, stream)
            launch_sweep(links, 0, 1, steps, self.ends, gradients, stream=stream)
            return gradients
        if self.method == "chunked":
            ends = self.chunks.ends[self.chunks.count :]
            arrays_cuda.copy(gradients[steps:], ends, stream)
            launch_chunked(links, self.chunks, gradients, affine, self.lost, stream)
            return gradients
        arrays_cuda.copy(gradients, self.vecs[1:], stream)
        launch_prepare(links, self.mats, self.exps, self.lost, stream)
        launch_scan(self.mats, self.exps, self.vecs, affine, self.levels, self.lost, stream)
        return self.vecs[: steps + 1]
