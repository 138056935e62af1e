"""Whole training steps on a GPU: parameters, averages and all that a step works on stay there between iterations.

A step is a fixed sequence of launches: forward pass, loss, scan, gradients of the parameters, optimizer. On a GPU, the
sequence is recorded once as a CUDA graph and replayed, so that issuing a step costs one launch instead of dozens
(out-of-order backprop calls that pre-compiled kernel issue, Section 4.2). Of a stack of layers, the main stream goes
from scan to scan, while a sub-stream computes weight gradients, which no other layer waits for (Section 4.1). On the
simulator, every launch is issued anew, one after the other. Per step, the inputs go to the device, and loss and
parameters come back, in one copy each.
"""

import math
from functools import partial

import numpy as np
from numba import cuda

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.chains.backprop import choose
from bppsa_nb.chains.levels_cuda import launch_prepare, launch_scan, workspace
from bppsa_nb.chains.plan import chunk_length
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.chains.structured_cuda import Chunks, Links, launch_chunked, launch_sweep, prepare
from bppsa_nb.machine import backends
from bppsa_nb.machine.cuda import require
from bppsa_nb.machine.twins import twin
from bppsa_nb.training.optimizers import SGD, Adam, out_of_range

_THREADS = 256
_SETTINGS = 8  # numbers that the optimizer's kernels read
DONE, LOST, LOGITS, GRADIENTS, UPDATE = range(5)  # how a step ended: the last three overflowed, LOST is for `RangeLost`


@cuda.jit
def fill(array, value):
    """Set every entry [shape=(T, B, H)] to a value, one per thread."""
    q = cuda.grid(1)
    batch, size = array.shape[1], array.shape[2]
    t = q // (batch * size)
    if t < array.shape[0]:
        array[t, q // size % batch, q % size] = value


@cuda.jit
def copy(source, target):
    """Copy an array [shape=(T, B, H)], one number per thread."""
    q = cuda.grid(1)
    batch, size = source.shape[1], source.shape[2]
    t, b, i = q // (batch * size), q // size % batch, q % size
    if t < source.shape[0]:
        target[t, b, i] = source[t, b, i]


@cuda.jit
def classify(hidden, weight, bias, labels, logits, losses, gradients, grad_weight, grad_bias, loss, status, lost):
    """Compute logits, the mean softmax cross-entropy, and gradients at the last state and of the last layer.

    One block. `logits` becomes their gradient, ``gradients[-1]`` that at the last state. The loss is worked out in
    double precision, as in `bppsa_nb.training.loss.cross_entropy`.
    """
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    last, batch, size, classes = hidden.shape[0] - 1, hidden.shape[1], hidden.shape[2], weight.shape[0]
    zero, one = hidden.dtype.type(0), hidden.dtype.type(1)
    if tid == 0:
        status[0] = zero
        lost[0] = 0
    cuda.syncthreads()
    for q in range(tid, batch * classes, threads):
        b, c = q // classes, q % classes
        total = bias[c]
        for i in range(size):
            total += hidden[last, b, i] * weight[c, i]
        logits[b, c] = total
        if total - total != zero:  # infinite, or not a number
            status[0] = hidden.dtype.type(LOGITS)
    cuda.syncthreads()
    for b in range(tid, batch, threads):
        top, label, shares = float(logits[b, 0]), int(labels[b]), 0.0
        for c in range(classes):
            top = max(top, float(logits[b, c]))
        for c in range(classes):
            shares += math.exp(float(logits[b, c]) - top)
        losses[b] = math.log(shares) - (float(logits[b, label]) - top)
        for c in range(classes):
            share = math.exp(float(logits[b, c]) - top) / shares
            logits[b, c] = (share - 1.0 if c == label else share) / batch
    cuda.syncthreads()
    if tid == 0:
        mean = 0.0
        for b in range(batch):
            mean += losses[b]
        loss[0] = mean / batch
    for q in range(tid, classes * (size + 1), threads):
        c, i = q // (size + 1), q % (size + 1)
        total = zero
        for b in range(batch):
            total += logits[b, c] * (hidden[last, b, i] if i < size else one)
        if i < size:
            grad_weight[c, i] = total
        else:
            grad_bias[c] = total
    for q in range(tid, batch * size, threads):
        b, i = q // size, q % size
        total = zero
        for c in range(classes):
            total += logits[b, c] * weight[c, i]
        gradients[last, b, i] = total


@cuda.jit
def judge(grads, status, lost):
    """Say in ``status[0]`` whether the gradients [shape=(P,)] are to be used. One block."""
    zero = grads.dtype.type(0)
    if cuda.threadIdx.x == 0 and status[0] == zero and lost[0] != 0:
        status[0] = grads.dtype.type(LOST)
    cuda.syncthreads()
    for q in range(cuda.threadIdx.x, grads.shape[0], cuda.blockDim.x):
        if grads[q] - grads[q] != zero and status[0] == zero:
            status[0] = grads.dtype.type(GRADIENTS)


@cuda.jit
def adam(params, grads, first, second, settings, status):
    """Update one parameter per thread; see `optimizers.Adam`. What is not finite is not for the host."""
    q = cuda.grid(1)
    if q < params.shape[0] and status[0] == params.dtype.type(0):
        rate, correction, new_first = settings[0], settings[1], settings[2]
        keep_second, new_second, eps = settings[3], settings[4], settings[5]
        grad = grads[q]
        first[q] += new_first * (grad - first[q])
        second[q] = second[q] * keep_second + new_second * grad * grad
        params[q] -= rate * first[q] / (math.sqrt(second[q]) * correction + eps)
        if params[q] - params[q] != params.dtype.type(0) or second[q] - second[q] != params.dtype.type(0):
            status[0] = params.dtype.type(UPDATE)


@cuda.jit
def sgd(params, grads, velocity, with_velocity, settings, status):
    """Update one parameter per thread; see `optimizers.SGD`. What is not finite is not for the host."""
    q = cuda.grid(1)
    if q < params.shape[0] and status[0] == params.dtype.type(0):
        moved = grads[q]
        if with_velocity:
            moved += velocity[q] * settings[1]
            velocity[q] = moved
        params[q] -= settings[0] * moved
        if params[q] - params[q] != params.dtype.type(0):
            status[0] = params.dtype.type(UPDATE)


def _settings(optimizer):
    """Return what the kernels multiply by in the optimizer's next step, worked out in double precision."""
    if isinstance(optimizer, SGD):
        return [optimizer.lr, optimizer.momentum]
    (beta1, beta2), steps = optimizer.betas, optimizer.steps + 1
    return [
        optimizer.lr / (1 - beta1**steps),
        (1 - beta2**steps) ** -0.5,
        1 - beta1,
        beta2,
        1 - beta2,
        optimizer.eps,
    ]


class DeviceTraining:
    """Training steps of a recurrent model on the GPU.

    Model and optimizer on the host stay the owners: what a step finds is written into their arrays by `commit`, and
    what was changed there in between is sent before the next step.

    Parameters
    ----------
    model : RNN or GRU
    optimizer : SGD or Adam
    graph : bool
        Whether to record launches and replay them; False issues every launch anew, as the simulator needs it.
    sub_stream : bool
        Whether weight gradients of a stack of layers have a stream of their own; False keeps the conventional order.
    """

    def __init__(self, model, optimizer, graph=True, sub_stream=True):
        self.model, self.optimizer, self.graph = model, optimizer, graph and not backends.simulated()
        self.shapes = {name: param.shape for name, param in model.params.items()}
        self.count = sum(param.size for param in model.params.values())
        self.averages = tuple(optimizer.zeros(model.params))
        dtype = model.dtype
        # Parameters, then averages, then the status: what comes back, in one copy.
        self.flat = cuda.to_device(np.zeros((1 + len(self.averages)) * self.count + 1, dtype))
        self.loss = cuda.to_device(np.zeros(1))
        self.grads = cuda.device_array(self.count, dtype)
        self.host = np.empty(self.flat.shape, dtype)
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

    def vectors(self):
        """Return parameters, averages and status, as parts of the flat array."""
        count, whole = self.count, len(self.host)
        vectors = [self.flat[i * count : (i + 1) * count] for i in range(1 + len(self.averages))]
        return vectors, self.flat[whole - 1 : whole]

    def step(self, x, labels, method="auto", levels=None):
        """Compute one training step on the device; nothing on the host changes.

        Parameters
        ----------
        x : np.ndarray [shape=(T, B, I)]
            Checked inputs, T at least 1.
        labels : np.ndarray of int [shape=(B,)]
            Checked classes.
        method, levels
            As `backward` of the model takes them.

        Returns
        -------
        float
            The mean loss before the update.

        Raises
        ------
        FloatingPointError
            If logits, a gradient or an update leave the range of the dtype.
        MemoryError
            If what a step works on does not fit.
        """
        self._send()
        T, B, _ = x.shape
        rows = self.model._rows
        shape = T, B, self.model.hidden_size
        method, _, levels = choose(method, "cuda", levels, shape, self.model.dtype, rows)
        key = (T, B, method, levels)
        if key not in self.steps:
            while len(self.steps) > 1:  # a full batch and the last one of an epoch
                self.steps.pop(next(iter(self.steps)))
            self.steps[key] = Step(self, *key)
        step = self.steps[key]
        step.load(x, labels, _settings(self.optimizer))
        step.run()
        status = self._fetch()
        if status == LOST:
            # Products of Jacobians left the range: nothing was updated, and the linear scan answers.
            fallback = Step(self, T, B, "linear", None)
            fallback.load(x, labels, _settings(self.optimizer))
            fallback.launch(self.stream)
            status = self._fetch()
        if status == LOGITS:
            raise FloatingPointError(f"logits overflow {self.model.dtype}, though x and all parameters are finite")
        if status == GRADIENTS:
            grads = self.views(self.grads.copy_to_host())
            name = next(name for name, grad in grads.items() if not np.isfinite(grad).all())
            raise FloatingPointError(
                f"the gradient of {name} overflows {self.model.dtype} after {T} time steps; the parameters were not "
                "updated"
            )
        if status == UPDATE:
            raise FloatingPointError(self._update_out_of_range())
        return float(self.loss.copy_to_host()[0])

    def _update_out_of_range(self):
        grads = self.views(self.grads.copy_to_host())
        for i, average in reversed(list(enumerate(("", *self.averages)))):  # what is to blame first
            for name, found in self.views(self.host[i * self.count : (i + 1) * self.count]).items():
                if not np.isfinite(found).all():
                    what = f"{average} of {name}" if average else name
                    return out_of_range(what, found.dtype, self.optimizer.steps + 1, grads[name])

    def commit(self):
        """Write what the last step found into the model's parameters and the optimizer's state."""
        if not self.optimizer.state:
            self.optimizer.state = self.optimizer.zeros(self.model.params)
        for target, source in self._pairs():
            target[...] = source
        self.optimizer.steps += 1
        self.sent = self.host.copy()

    def _pairs(self):
        """Yield every array of model and optimizer, with its place on the host's side of the flat array."""
        groups = [self.model.params, *(self.optimizer.state[average] for average in self.averages)]
        for i, group in enumerate(groups):
            places = self.views(self.host[i * self.count : (i + 1) * self.count])
            for name, array in group.items():
                yield array, places[name]

    def _send(self):
        if not self.optimizer.state:
            self.optimizer.state = self.optimizer.zeros(self.model.params)
        for source, place in self._pairs():
            place[...] = source
        if self.sent is None or not np.array_equal(self.host, self.sent):
            self.flat.copy_to_device(self.host, stream=self.stream)
        self.sent = None  # from here on the device may be ahead of the host, until a step is committed

    def _fetch(self):
        self.flat.copy_to_host(self.host, stream=self.stream)
        wait(self.stream)
        self.sent = None  # until it is committed, the device is ahead of the host
        return int(self.host[-1])


class Step:
    """One shape of training step: its arrays on the device, and its launches.

    Parameters
    ----------
    training : DeviceTraining
    T, B : int
    method : {"linear", "chunked", "blelloch", "truncated"}
    levels : int or None
    """

    def __init__(self, training, T, B, method, levels):
        model = training.model
        self.training, self.method, self.levels = training, method, levels
        self.cell = twin(model._cell, "cuda").CELL
        H, L, dtype, sums = model.hidden_size, model.num_layers, model.dtype, model._rows * model.hidden_size
        gated = model._rows == 3
        stored = T * B * H * H if method in ("blelloch", "truncated") else 0
        numbers = L * T * B * (H + (8 * H if gated else H)) + T * B * (model.input_size + sums + 2 * H) + stored
        require(numbers * dtype.itemsize, f"a training step of T = {T}, B = {B}, H = {H} by method {method!r}")
        new = partial(cuda.device_array, dtype=dtype)
        self.inputs = new(_SETTINGS + B + T * B * model.input_size)
        self.staged = np.zeros(self.inputs.shape, dtype)
        self.x = self.inputs[_SETTINGS + B :].reshape(T, B, model.input_size)
        self.hidden = [cuda.to_device(np.zeros((T + 1, B, H), dtype)) for _ in range(L)]
        self.gates = [new((4, T, B, H)) if gated else None for _ in range(L)]
        self.slopes = [new((4 if gated else 1, T, B, H)) for _ in range(L)]
        self.products, self.weight_hh_T = new((T, B, sums)), new((H, sums))
        self.logits, self.losses = new((B, model.num_classes)), cuda.device_array(B, np.float64)
        self.parts = [new((cells.parts_of(T), sums, columns)) for columns in (model.input_size + 1, H + 1)]
        self.parts_below = new((cells.parts_of(T), sums, H + 1)) if L > 1 else None
        self.lost = cuda.to_device(np.zeros(1, np.int32))
        self.gradients = new((T + 1, B, H))
        (self.params, *self.averages), self.status = training.vectors()
        self.arrays, self.grads = training.views(self.params), training.views(training.grads)
        if method == "chunked":
            self.chunks = Chunks((T, B, H), chunk_length(T, B, H, dtype, "cuda", model._rows), dtype)
        elif method == "linear":
            self.ends = new((1, B, H))
        else:
            self.mats, self.exps, self.vecs, self.lost = workspace(T, B, B, H, dtype)
        self.links = []
        for layer in range(L):
            weights = self.arrays[f"weight_hh_l{layer}"].reshape(model._rows, H, H)
            carry = self.gates[layer][1] if gated else None
            self.links.append(Links(StructuredChain.made(weights, self.slopes[layer][-model._rows :], carry)))
        self.recorded = None
        self.runs = 0

    def load(self, x, labels, settings):
        """Send a batch, its labels and the optimizer's settings, in one copy."""
        batch = len(labels)
        with np.errstate(over="ignore"):  # an infinite rate is found in what it makes of the parameters
            self.staged[: len(settings)] = settings
        self.staged[_SETTINGS : _SETTINGS + batch] = labels
        self.staged[_SETTINGS + batch :] = x.reshape(-1)
        self.inputs.copy_to_device(self.staged, stream=self.training.stream)

    def run(self):
        """Run the step: the first time launch by launch, which compiles; then recorded."""
        if not self.training.graph or self.runs == 0:
            self.launch(self.training.stream)
        else:
            if self.recorded is None:
                self.recorded = record(self.launch, self.training.stream)
            self.recorded.launch(self.training.stream)
        self.runs += 1

    def launch(self, stream):
        """Issue every launch of a step."""
        model, arrays, grads = self.training.model, self.arrays, self.grads
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        below = self.x
        for layer, (hidden, gates) in enumerate(zip(self.hidden, self.gates, strict=True)):
            params = tuple(arrays[f"{name}_l{layer}"] for name in names)
            cells.launch_forward(self.cell, below, params, self.weight_hh_T, self.products, hidden, gates, stream)
            cells.launch_slopes(self.cell, hidden, gates, self.slopes[layer], stream)
            below = hidden[1:]
        batch = self.logits.shape[0]
        over(fill, self.gradients, stream)(self.gradients, model.dtype.type(0))
        labels = self.inputs[_SETTINGS : _SETTINGS + batch]
        classify[1, _THREADS, stream](
            *(self.hidden[-1], arrays["fc.weight"], arrays["fc.bias"], labels, self.logits, self.losses),
            *(self.gradients, grads["fc.weight"], grads["fc.bias"], self.training.loss, self.status, self.lost),
        )
        sub = self.training.sub_stream or stream
        for layer in reversed(range(model.num_layers)):
            top = layer == model.num_layers - 1
            found = self._scan(layer, not top, stream)
            cells.launch_at_sums(self.slopes[layer], found, stream)
            # What δW reads stays as it is until the step ends, and only other δW work on its arrays.
            follow(sub, stream)
            below, parts = (self.hidden[layer - 1][1:], self.parts_below) if layer else (self.x, self.parts[0])
            work = parts, self.parts[1], tuple(grads[f"{name}_l{layer}"] for name in names)
            cells.launch_gradients(below, self.hidden[layer], self.slopes[layer], *work, sub)
            if layer:
                # The layer below is read at every step: its loss terms enter everywhere but at h_0.
                over(fill, self.gradients[:1], stream)(self.gradients[:1], model.dtype.type(0))
                weight = arrays[f"weight_ih_l{layer}"]
                cells.launch_input_gradients(self.slopes[layer], weight, self.gradients[1:], stream)
        follow(stream, sub)
        judge[1, _THREADS, stream](self.training.grads, self.status, self.lost)
        settings = self.inputs[:_SETTINGS]
        blocks = -(-self.training.count // _THREADS)
        if isinstance(self.training.optimizer, Adam):
            adam[blocks, _THREADS, stream](self.params, self.training.grads, *self.averages, settings, self.status)
        else:
            moving = bool(self.averages)  # as the optimizer was made, whatever its momentum is now
            velocity = self.averages[0] if moving else self.training.grads
            sgd[blocks, _THREADS, stream](self.params, self.training.grads, velocity, moving, settings, self.status)

    def _scan(self, layer, affine, stream):
        """Launch the scan of a layer; return where the gradients at its hidden states will be."""
        links, gradients = self.links[layer], self.gradients
        steps = len(gradients) - 1
        if self.method == "linear":
            over(copy, self.ends, stream)(gradients[steps:], self.ends)
            launch_sweep(links, 0, 1, steps, self.ends, gradients, stream=stream)
            return gradients
        if self.method == "chunked":
            ends = self.chunks.ends[self.chunks.count :]
            over(copy, ends, stream)(gradients[steps:], ends)
            launch_chunked(links, self.chunks, gradients, affine, self.lost, stream)
            return gradients
        over(copy, gradients, stream)(gradients, self.vecs[1:])
        launch_prepare(prepare, links.arguments[2:], self.mats, self.exps, self.lost, stream)
        launch_scan(self.mats, self.exps, self.vecs, affine, self.levels, self.lost, stream)
        return self.vecs[: steps + 1]


def over(kernel, array, stream):
    """Configure a kernel to run with one thread for each number of a device array."""
    return kernel[-(-array.size // _THREADS), _THREADS, stream]


def new_stream():
    """Make a stream that launches can be recorded on; on the simulator, where there are none, 0."""
    if backends.simulated():
        return 0
    from cuda.core import Device

    cuda.current_context()  # Numba's context, which is the device's own
    device = Device()
    device.set_current()
    return device.create_stream()


def wait(stream):
    """Return when all that was issued to a stream is done."""
    if stream:
        stream.sync()


def follow(stream, other):
    """Let what is issued to a stream from now on wait for what was issued to another one so far.

    Nothing is to be done if both are the same. While one of them is being recorded, this makes the other part of the
    recording.
    """
    if stream is not other:
        stream.wait(other)


def record(launch, stream):
    """Record launches as a CUDA graph, ready to be launched on the stream."""
    builder = stream.create_graph_builder()
    builder.begin_building()
    launch(builder.stream)
    builder.end_building()
    graph = builder.complete()
    graph.upload(stream)
    return graph
