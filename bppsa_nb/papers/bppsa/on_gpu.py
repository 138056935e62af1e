"""Ours on a GPU, on arrays that are there already and stay, as in a training loop on the device.

A sequence of launches is recorded once as a CUDA graph and replayed.
"""

from bppsa_nb.cells import stack
from bppsa_nb.cells.stack_cuda import Device
from bppsa_nb.chains import methods_cuda as chains
from bppsa_nb.machine import cuda as streams
from bppsa_nb.machine.arrays_cuda import copy, fill
from bppsa_nb.machine.cuda import on_device


def replayed(launch):
    """Return a call that runs launches and waits for them: the first time one by one, which compiles; then as a graph.

    `launch` takes a stream.
    """
    stream = streams.new_stream()
    launch(stream)
    stream.sync()
    graph = streams.record(launch, stream) if streams.records() else None

    def run():
        if graph is None:
            launch(stream)  # which, being named here, keeps the arrays of a graph
        else:
            graph.launch(stream)
        stream.sync()

    return run


def backward(model, x, grad_output, method):
    """Prepare the backward pass of an RNN or a GRU of one layer, from the gradient at its last state (B, H) on.

    `x` (T, B, I) is what it reads, and `method` "linear", "chunked" or "blelloch". Returned are two calls: one computes
    the diagonals, the gradients at all states, and those of the layer's parameters; the other one returns the latter by
    the names of the model's parameters.
    """
    layers = _layers(model, model.forward(x, backend="cuda"), method)
    x, end = on_device(x), on_device(grad_output)

    def launch(stream):
        layers.stream = layers.side = stream
        stack.backward(layers, x, [end])

    run = replayed(launch)

    def fetch():
        check_range(layers.scanner().lost)
        return {name: grad.copy_to_host() for name, grad in layers.grads.items()}

    return run, fetch


def _layers(model, activations, method):
    """Send what layers have saved; return them."""
    how = method, "cuda", None
    return Device(model, activations.x.shape, how=how, saved=activations.saved, waits=False)


def assembly(model, activations):
    """Prepare to assemble a layer's transposed Jacobians: a call that returns them scaled, and their exponents."""
    layers = _layers(model, activations, "blelloch")
    scan = layers.scanner()

    def launch(stream):
        layers.stream = stream
        chains.launch_prepare(layers.links(layers.chain(0)), scan.mats, scan.exps, scan.lost, stream)

    run = replayed(launch)

    def assemble():
        run()
        return scan.mats, scan.exps

    return assemble


def forward(model, x):
    """Prepare a layer's forward pass; `fetch` returns the hidden states [shape=(T + 1, B, H)]."""
    layers, x = Device(model, x.shape, waits=False), on_device(x)
    fill(layers.states, layers.states.dtype.type(0))

    def launch(stream):
        layers.stream = stream
        stack.forward(layers, x, [()])

    return replayed(launch), layers.states[0, 0].copy_to_host


def scan(links, grad_output, method, dense):
    """Return the launches of a scan, where the gradients will be, and what tells that its range was left."""
    (T, _, H), end = links.shape, on_device(grad_output[None])
    made = chains.Scan(links.shape, links.dtype, 0 if dense else links.sums // H, method)

    def launch(stream):
        fill(made.entrance, links.dtype.type(0), stream)
        copy(end, made.entrance[T:], stream)
        made.launch(links, False, stream)

    return launch, made.gradients, made.lost


def check_range(lost):
    """Raise ArithmeticError if a product left the range of its dtype: what was timed is no complete scan then."""
    if lost.copy_to_host()[0]:
        raise ArithmeticError("products left the range of their dtype: this is no time of a complete scan")
