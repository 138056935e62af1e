"""Ours on a GPU, on arrays that are there already and stay, as in a training loop on the device.

A sequence of launches is recorded once as a CUDA graph and replayed.
"""

from functools import partial

import numpy as np

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.layer import chain_of
from bppsa_nb.cells.stacked import params_of
from bppsa_nb.chains import levels_cuda as levels
from bppsa_nb.chains import plan
from bppsa_nb.chains import structured_cuda as chunks
from bppsa_nb.machine import cuda as streams
from bppsa_nb.machine.arrays_cuda import copy, fill
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.cuda_compiler import cuda


def replayed(launch):
    """Return a call that runs launches and waits for them: the first time one by one, which compiles; then as a graph.

    `launch` takes a stream.
    """
    stream = streams.new_stream()
    launch(stream)
    streams.wait(stream)
    graph = streams.record(launch, stream) if streams.records() else None

    def run():
        if graph is None:
            launch(stream)  # which, being named here, keeps the arrays of a graph
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
    cell, new = model.cell, partial(cuda.device_array, dtype=model.dtype)
    states, kept, links, derive = _links(model, model.forward(x, backend="cuda"))
    x, at_sums = on_device(x), new((cell.sums, *links.shape))
    parts = new(weight_gradients.parts_of(at_sums.shape, x.shape[2]))
    names = [f"{name}_l0" for name in cell.names]
    grads = [new(model.params[name].shape) for name in names]
    launch_scan, found, lost = scan(links, grad_output, method, dense=False)

    def launch(stream):
        derive(stream)
        launch_scan(stream)
        cells.launch_sum_gradients(cell, states, kept, found, at_sums, stream)
        weight_gradients.launch_gradients(cell, x, states[0], at_sums, parts, grads, stream)

    run = replayed(launch)

    def fetch():
        check_range(lost)
        return {name: grad.copy_to_host() for name, grad in zip(names, grads, strict=True)}

    return run, fetch


def _links(model, activations):
    """Send what a layer has saved: its states, what it kept, the links of its chain, and the launch that fills them."""
    cell, (states, kept) = model.cell, activations.of_layers()[0]
    states, kept = on_device(states), cells.kept_on_device(cell, kept)
    shape = *activations.x.shape[:2], model.hidden_size
    slopes, carry = cells.new_diagonals(cell, shape, partial(cuda.device_array, dtype=model.dtype))
    weights = on_device(model.params["weight_hh_l0"])
    links = chunks.Links(chain_of(cell, weights, slopes, carry if cell.carries else None))
    return states, kept, links, partial(cells.launch_derive, cell, states, kept, slopes, carry)


def assembly(model, activations):
    """Prepare to assemble a layer's transposed Jacobians: a call that returns them scaled, and their exponents."""
    _, _, links, derive = _links(model, activations)
    T, B, H = links.shape
    mats, exps, _, lost = levels.workspace(T, B, B, H, model.dtype)

    def launch(stream):
        derive(stream)
        chunks.launch_prepare(links, mats, exps, lost, stream)

    run = replayed(launch)

    def assemble():
        run()
        return mats, exps

    return assemble


def forward(model, x):
    """Prepare a layer's forward pass; `fetch` returns the hidden states [shape=(T + 1, B, H)]."""
    (T, B, _), H = x.shape, model.hidden_size
    params, cell = [on_device(param) for param in params_of(model, 0)], model.cell
    new = partial(cuda.device_array, dtype=x.dtype)
    states, x = on_device(np.zeros((cell.states, T + 1, B, H), x.dtype)), on_device(x)
    transposed, products = new((H, cell.gates * H)), new((T, B, cell.gates * H))
    loop = products, transposed, params[3], states, cells.new_kept(cell, (T, B, H), new)

    def launch(stream):
        cells.launch_inputs(x, params, transposed, products, stream)
        cells.launch_loop(cell, cells.run_forward_of, B, loop, stream=stream)

    return replayed(launch), states[0].copy_to_host


def scan(links, grad_output, method, dense):
    """Return the launches of a scan, where the gradients will be, and what tells that its range was left."""
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
