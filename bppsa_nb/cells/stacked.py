"""Recurrent layers on layers: forward, and back from gradients at any state; and a linear layer on the last state."""

import functools
from functools import partial
from operator import attrgetter

import numpy as np

from bppsa_nb.cells import unroll
from bppsa_nb.cells.chunked import Chunks
from bppsa_nb.cells.layer import NAMES
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains import plan
from bppsa_nb.machine.dispatch import implementation

_LOOP, _CHUNKS = unroll.SolverOptions("linear"), unroll.SolverOptions("chunked", most=1)  # what "auto" takes
_is_plain = attrgetter("flags.carray")


def forward(model, x, h0, options, backend):
    """Run all layers of a model on the host; on backend ``"cuda"``, arrays come and go.

    The model is a `Recurrent`, or what has as much of it as layers need: `params`, `hidden_size`, `dtype`,
    `cell_module` and `gate_blocks`. `x` is [shape=(T, B, I)], `h0` [shape=(L, B, H)]. Returns, of every layer, what is
    saved, a tuple of hidden states [shape=(T + 1, B, H)], and of a GRU the gates [shape=(4, T, B, H)]; and how its
    states were found, a `Solved`, or None for the loop.
    """
    functions, saved, solved, below = functions_of(model.cell_module, backend), [], [], x
    for layer, initial in enumerate(h0):
        found, how_solved = solve_layer(model, functions, layer, below, initial, options, backend)
        saved.append(found)
        solved.append(how_solved)
        below = found[0][1:]
    return saved, solved


def backward(model, x, saved, ends, local_grads, how, inputs=False):
    """Go back through all layers of a model on the host, from the last one to the first.

    `model`, `x` and `saved` are as `forward` takes and returns them, `how` (method, backend, levels) as
    `bppsa_nb.chains.backprop.choose` returns it. `ends` are gradients of the loss at every layer's last state
    [shape=(B, H)] as far as that is read by itself, or None; `local_grads` [shape=(T, B, H)] loss terms that enter at
    every state of the last layer but the initial one, or None: the last layer has one or the other. Returns the
    gradients of the layers' parameters, a dict; that at `x`, None unless `inputs` asks for it; and those at the initial
    states, a list.
    """
    method, backend, levels = how
    functions, grads, at_start, at_input = functions_of(model.cell_module, backend), {}, [], None
    for layer in reversed(range(len(saved))):
        weight_ih, weight_hh, kept, below = layer_parts(model, x, saved, layer)
        grad_output, wanted = ends[layer], inputs or layer > 0
        if local_grads is not None and len(local_grads):
            grad_output = local_grads[-1] if grad_output is None else local_grads[-1] + grad_output
        elif grad_output is None:
            grad_output = np.zeros_like(kept[0][0])
        (grad_output,) = plain(grad_output)
        if method == "linear" and "backward" in functions:
            arrays = weight_ih, weight_hh, below, kept, grad_output, local_grads
            found, at_input, start = functions["backward"](*arrays, wanted)
        else:
            links = functions["chain"](weight_hh, *kept)
            grad_hidden = _backpropagate(links, grad_output, _from_h0(local_grads), method, backend, levels)
            start = grad_hidden[0].copy()
            from_x, from_h = functions["gate_gradients"](links, *kept, grad_hidden)
            found = functions["parameter_gradients"](below, kept[0], from_x, from_h)
            at_input = functions["input_gradients"](weight_ih, from_x) if wanted else None
        for name, grad in found.items():
            grads[f"{name}_l{layer}"] = grad
        at_start.insert(0, start)
        local_grads = at_input  # the layer below is read at every step
    return grads, at_input, at_start


def _from_h0(local_grads):
    """Put the initial state, where no loss enters, before loss terms at all others."""
    if local_grads is None:
        return None
    return np.concatenate([np.zeros((1, *local_grads.shape[1:]), local_grads.dtype), local_grads])


def _backpropagate(links, grad_output, local_grads, method, backend, levels):
    """Find the gradients at one layer's hidden states [shape=(T + 1, B, H)]."""
    if not all(np.isfinite(grads).all() for grads in (grad_output, local_grads) if grads is not None):
        method = "linear"  # what overflowed on the way here is passed on; a scan would refuse it
    run = partial(chain.go_back, links, grad_output, local_grads, backend)
    return chain.in_range(run, method, levels)


def resolve_method(model, options, shape, backend):
    """Return how a layer whose input has a shape (T, B, I) is solved on a backend, and how long its chunks are."""
    steps, batch, _ = shape
    length = options.length
    if options.method != "linear" and length is None:
        expected = plan.known(steps, batch, model.hidden_size, model.dtype, backend, model.gate_blocks, True)
        length = expected.length
        if options.method == "auto":
            options = _LOOP if expected.method == "linear" else _CHUNKS
    return (_LOOP, steps) if options.method == "linear" or steps <= length else (options, length)


def solve_layer(model, functions, layer, below, initial, options, backend):
    """Run a layer forward as `options` says; return what `run_layer` returns, and how it was solved, or None."""
    options, length = resolve_method(model, options, below.shape, backend)
    if options.method == "linear":
        return run_layer(model, functions, layer, below, initial), None
    below, initial, *params = plain(below, initial, *(model.params[f"{name}_l{layer}"] for name in NAMES))
    if options.method == "chunked" and "solve" in functions:
        return functions["solve"](length, *options.limits(model.dtype), below, initial, *params)
    run, make = partial(run_layer, model, functions, layer), chunks_of(model, functions, layer, backend)
    where = "numpy" if backend == "cuda" else backend  # chunks are on the host

    def linearize(chunks):
        links = functions_of(model.cell_module, where)["chain"](params[1], *plain(*chunks.side_by_side()))
        products, exponents = implementation("bppsa_nb.chains.structured", where).products(links, chunks.length)
        return np.ldexp(products, exponents[..., None]).reshape(chunks.count, chunks.B, *products.shape[2:])

    bound = np.maximum(1, abs(initial))
    return unroll.solve(options, length, run, below, initial, make, linearize, bound)


def chunks_of(model, functions, layer, backend):
    """Return what cuts a layer's time loop into chunks on the host, as `unroll.solve` takes it."""
    if "run_chunks" not in functions:
        return Chunks
    params = [model.params[f"{name}_l{layer}"] for name in NAMES]
    return partial(implementation("bppsa_nb.cells.chunked", backend).Chunks, functions, params)


def run_layer(model, functions, layer, below, initial):
    """Run a layer forward; return its hidden states, and the gates if it has any."""
    params = [model.params[f"{name}_l{layer}"] for name in NAMES]
    result = functions["forward"](*plain(below, initial, *params))
    return result if isinstance(result, tuple) else (result,)


def layer_parts(model, x, saved, layer):
    """Return what going back through a layer reads; `x` and `saved` are those of `forward`.

    These are both weights; a list of the hidden states [shape=(T + 1, B, H)], and of a GRU the gates [shape=(4, T, B,
    H)]; and the layer's input [shape=(T, B, I)].
    """
    params, below = model.params, saved[layer - 1][0][1:] if layer else x
    arrays = params[f"weight_ih_l{layer}"], params[f"weight_hh_l{layer}"], below, *saved[layer]
    weight_ih, weight_hh, below, *kept = plain(*arrays)
    return weight_ih, weight_hh, kept, below


def logits(model, last):
    """Compute logits [shape=(B, C)] from the last layer's last states [shape=(B, H)]."""
    return last @ model.params["fc.weight"].T + model.params["fc.bias"]


def from_logits(model, last, grad_logits):
    """Go back through `logits`: return the gradients of its parameters, a dict, and those at the states."""
    grads = {"fc.weight": grad_logits.T @ last, "fc.bias": np.add.reduce(grad_logits)}
    return grads, grad_logits @ model.params["fc.weight"]


@functools.cache
def functions_of(cell, backend):
    """Look up what computes a cell, by name: its form for a backend, or NumPy where there is none but for the chain."""
    own = implementation(cell, backend, otherwise="numpy")
    shared = implementation("bppsa_nb.cells.layer", "numpy" if own.__name__ == cell else backend)
    found = {name: getattr(own, name) for name in ("forward", "chain", "gate_gradients")}
    found |= {name: getattr(shared, name) for name in ("parameter_gradients", "input_gradients")}
    # Some cells have all of the linear scan in one go, and chunks of the time loop, or all that solves these.
    more = "backward", "prepare", "run_chunks", "GATES", "solve"
    return found | {name: getattr(own, name) for name in more if hasattr(own, name)}


def stack(arrays):
    """Stack the arrays of all layers."""
    # One layer's array is not copied to be stacked with nothing.
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def plain(*arrays):
    """Return arrays as compiled code takes them."""
    # Compiled code exists once per memory layout; contiguous and writable is the only one used.
    if all(map(_is_plain, arrays)):
        return arrays
    return [array if _is_plain(array) else np.require(array, requirements=("C", "W")) for array in arrays]
