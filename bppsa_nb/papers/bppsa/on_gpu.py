"""Ours on a GPU, on arrays that are there already and stay, as in a training loop on the device.

A sequence of launches is recorded once as a CUDA graph and replayed.
"""

import numpy as np

import bppsa_nb as bp
from bppsa_nb.cells.layer import NAMES
from bppsa_nb.chains import plan
from bppsa_nb.machine.cuda import on_device


def replayed(launch):
    """Return a call that runs launches and waits for them: the first time one by one, which compiles; then as a graph.

    `launch` takes a stream.
    """
    from bppsa_nb.machine import cuda as streams

    stream = streams.new_stream()
    launch(stream)
    streams.wait(stream)
    graph = streams.record(launch, stream) if streams.records() else None

    def run():
        if graph is None:
            launch(stream)
        else:
            graph.launch(stream)
        streams.wait(stream)

    return run


def backward(model, x, grad_output, method):
    """Prepare the backward pass of an RNN or a GRU of one layer, from the gradient at its last state (B, H) on.

    `x` (T, B, I) is what it reads, and `method` "linear", "chunked" or "blelloch". Returned are two calls: one computes
    the diagonals, the gradients at all states, and those of the layer's parameters; the other one returns the latter by
    the names of the model's parameters.
    """
    from bppsa_nb.cells import layer_cuda as cells
    from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
    from bppsa_nb.chains.structured_cuda import Links
    from bppsa_nb.machine.cuda_compiler import cuda
    from bppsa_nb.machine.dispatch import implementation

    activations = model.forward(x, backend="cuda")
    hidden, gated = on_device(activations.hidden[0]), activations.gates is not None
    gates, x = on_device(activations.gates[0]) if gated else None, on_device(x)
    (T, B, inputs), H, rows = x.shape, model.hidden_size, 3 if gated else 1
    new = lambda *shape: cuda.device_array(shape, model.dtype)  # noqa: E731
    slopes, weights = new(4 if gated else 1, T, B, H), model.params["weight_hh_l0"].reshape(rows, H, H)
    parts = new(*weight_gradients.parts_of(slopes.shape, inputs))
    names = [f"{name}_l0" for name in NAMES]
    grads = [new(*model.params[name].shape) for name in names]
    chain = bp.StructuredChain.made(on_device(weights), slopes[-rows:], gates[1] if gated else None)
    launch_scan, found, lost = scan(Links(chain), grad_output, method, dense=False)

    def launch(stream):
        cells.launch_slopes(implementation(model.cell_module, "cuda").CELL, hidden, gates, slopes, stream)
        launch_scan(stream)
        cells.launch_at_sums(slopes, found, stream)
        weight_gradients.launch_gradients(x, hidden, slopes, parts, grads, stream)

    run = replayed(launch)

    def fetch():
        check_range(lost)
        return {name: grad.copy_to_host() for name, grad in zip(names, grads, strict=True)}

    return run, fetch


def assembly(weight_hh, hidden, gates):
    """Prepare to assemble a GRU layer's transposed Jacobians: a call that returns them scaled, and their exponents."""
    from bppsa_nb.cells import gru_cuda
    from bppsa_nb.cells import layer_cuda as cells
    from bppsa_nb.chains import levels_cuda as levels
    from bppsa_nb.chains import structured_cuda as chunks
    from bppsa_nb.machine.cuda_compiler import cuda

    _, T, B, H = gates.shape
    hidden, gates, slopes = on_device(hidden), on_device(gates), cuda.device_array(gates.shape, gates.dtype)
    links = chunks.Links(bp.StructuredChain.made(on_device(weight_hh.reshape(3, H, H)), slopes[-3:], gates[1]))
    mats, exps, _, lost = levels.workspace(T, B, B, H, hidden.dtype)

    def launch(stream):
        cells.launch_slopes(gru_cuda.CELL, hidden, gates, slopes, stream)
        chunks.launch_prepare(links, mats, exps, lost, stream)

    run = replayed(launch)

    def assemble():
        run()
        return mats, exps

    return assemble


def forward(model, x):
    """Prepare a layer's forward pass; `fetch` returns the hidden states [shape=(T + 1, B, H)]."""
    from bppsa_nb.cells import layer_cuda as cells
    from bppsa_nb.machine.cuda_compiler import cuda
    from bppsa_nb.machine.dispatch import implementation

    (T, B, _), H = x.shape, model.hidden_size
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    params = tuple(on_device(model.params[name]) for name in names)
    sums, dtype = len(model.params["weight_hh_l0"]), x.dtype
    transposed, products = cuda.device_array((H, sums), dtype), cuda.device_array((T, B, sums), dtype)
    hidden, x = on_device(np.zeros((T + 1, B, H), dtype)), on_device(x)
    gates = None if sums == H else cuda.device_array((4, T, B, H), dtype)
    cell = implementation(model.cell_module, "cuda").CELL
    loop = products, transposed, params[3], hidden, gates

    def launch(stream):
        cells.launch_inputs(x, params, transposed, products, stream)
        cells.launch_loop(cell, cells.run_forward_of, B, loop, stream=stream)

    return replayed(launch), hidden.copy_to_host


def scan(links, grad_output, method, dense):
    """Return the launches of a scan, where the gradients will be, and what tells that its range was left."""
    from bppsa_nb.chains import levels_cuda as levels
    from bppsa_nb.chains import structured_cuda as chunks
    from bppsa_nb.machine.arrays_cuda import copy, fill
    from bppsa_nb.machine.cuda_compiler import cuda

    (T, B, H), dtype = links.shape, links.dtype
    output, zero = on_device(grad_output[None]), dtype.type(0)
    if method == "blelloch":
        mats, exps, vecs, lost = levels.workspace(T, B, B, H, dtype)
        prepare, jacobians = (levels.launch_prepare, links.arguments[0]) if dense else (chunks.launch_prepare, links)

        def launch(stream):
            copy(output, vecs[T + 1 :], stream)
            prepare(jacobians, mats, exps, lost, stream)
            levels.launch_scan(mats, exps, vecs, False, None, lost, stream)

        return launch, vecs[: T + 1], lost
    found, lost = cuda.device_array((T + 1, B, H), dtype), cuda.to_device(np.zeros(1, np.int32))
    if method == "chunked":
        weights = 0 if dense else links.sums // H
        kept = chunks.Chunks((T, B, H), plan.chunk_length(T, B, H, dtype, "cuda", weights), dtype)
        ends = kept.ends[kept.count :]
    else:
        ends = cuda.device_array((1, B, H), dtype)

    def launch(stream):
        fill(found, zero, stream)
        for place in (found[T:], ends):  # what the sweep starts from, and overwrites
            copy(output, place, stream)
        if method == "chunked":
            chunks.launch_chunked(links, kept, found, False, lost, stream)
        else:
            chunks.launch_sweep(links, 0, 1, T, ends, found, stream=stream)

    return launch, found, lost


def check_range(lost):
    """Raise ArithmeticError if a product left the range of its dtype: what was timed is no complete scan then."""
    if lost.copy_to_host()[0]:
        raise ArithmeticError("products left the range of their dtype: this is no time of a complete scan")
