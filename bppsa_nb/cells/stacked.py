"""Recurrent layers on layers: forward, and back from gradients at any state; and a linear layer on the last state."""

from functools import partial
from operator import attrgetter

import numpy as np

from bppsa_nb.cells import unroll
from bppsa_nb.cells.spans import WHOLE, Spans
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains import plan
from bppsa_nb.machine.dispatch import implementation

LOOP, _CHUNKS = unroll.SolverOptions("linear"), unroll.SolverOptions("chunked", most=1)  # what "auto" takes
_is_plain = attrgetter("flags.carray")


def forward(model, x, h0, options, backend, spans=WHOLE):
    """Run all layers of a model on the host; on backend ``"cuda"``, arrays come and go.

    The model is a `Recurrent`, or what has as much of it as layers need: `params`, `hidden_size`, `dtype` and `cell`.
    `x` is [shape=(T, B, I)], `h0` [shape=(L, S, B, H)]; `spans`, which a GPU does not know, say which steps belong
    together. Returns, of every layer, what is saved, its states and what its cell keeps (see `bppsa_nb.cells.layer`);
    and how its states were found, a `Solved`, or None for the loop.
    """
    saved, solved, below = [], [], x
    for layer, start in enumerate(h0):
        found, how_solved = solve_layer(model, layer, below, start, options, backend, spans)
        saved.append(found)
        solved.append(how_solved)
        below = found[0][0, 1:]
    return saved, solved


def backward(model, x, saved, ends, local_grads, how, inputs=False, spans=WHOLE):
    """Go back through all layers of a model on the host, from the last one to the first.

    `model`, `x`, `saved` and `spans` are as `forward` takes and returns them, `how` (method, backend, levels) as
    `bppsa_nb.chains.backprop.choose` returns it. `ends` are gradients of the loss at every layer's last states
    [shape=(B, S H)], or at h only [shape=(B, H)], as far as these are read by themselves, or None; `local_grads`
    [shape=(T, B, H)] loss terms that enter at every h of the last layer but the initial one, or None: the last layer
    has one or the other. Returns the gradients of the layers' parameters, a dict; that at `x`, None unless `inputs`
    asks for it; and those at the initial states, a list.
    """
    method, backend, levels = how
    cell, functions, grads, at_start, at_input = model.cell, layer_of(backend), {}, [], None
    apart = spans.given
    for layer in reversed(range(len(saved))):
        weights, kept, below = layer_parts(model, x, saved, layer)
        (grad_output,), wanted = plain(at_end(ends[layer], local_grads, kept[0], spans)), inputs or layer > 0
        if method == "linear" and hasattr(functions, "backward"):
            arrays = weights, below, kept, grad_output, local_grads
            found, at_input, start = functions.backward(cell, *arrays, wanted, spans)
        else:
            links = functions.chain(cell, weights[1], *kept, **apart)
            terms = from_h0(local_grads, links)
            if spans.lengths.size:
                terms = np.zeros((len(x) + 1, *grad_output.shape), model.dtype) if terms is None else terms
                terms[spans.lengths, np.arange(len(grad_output))] = grad_output
                grad_output = terms[-1]
            grad_states = _backpropagate(links, grad_output, terms, method, backend, levels)
            start = grad_states[0].copy()
            at_sums = functions.sum_gradients(cell, *kept, grad_states, **apart)
            found = functions.parameter_gradients(cell, below, kept[0], at_sums, **apart)
            at_input = functions.input_gradients(cell, weights[0], at_sums) if wanted else None
        for name, grad in found.items():
            grads[f"{name}_l{layer}"] = grad
        at_start.insert(0, start)
        local_grads = at_input  # the layer below is read at every step
    return grads, at_input, at_start


def at_end(end, local_grads, states, spans=WHOLE):
    """Return the gradient at a layer's last states: what was read of them by themselves, and h with all the others.

    The former may be at h only, the first H numbers.
    """
    (S, _, batch, size), read = states.shape, local_grads is not None and len(local_grads) > 0
    if end is not None and end.shape[1] == S * size and not read:
        return end
    if end is None and read and S == 1:
        return spans.last(local_grads)
    total = np.zeros((batch, S * size), states.dtype)
    if end is not None:
        total[:, : end.shape[1]] = end
    if read:
        total[:, :size] += spans.last(local_grads)
    return total


def from_h0(local_grads, links):
    """Put loss terms at h among those at all states: none enters at the initial ones, nor at others than h."""
    if local_grads is None:
        return None
    T, *shape = links.shape
    terms = np.zeros((T + 1, *shape), links.dtype)
    terms[1:, :, : local_grads.shape[2]] = local_grads
    return terms


def _backpropagate(links, grad_output, local_grads, method, backend, levels):
    """Find the gradients at one layer's states [shape=(T + 1, B, S H)]."""
    if not all(np.isfinite(grads).all() for grads in (grad_output, local_grads) if grads is not None):
        method = "linear"  # what overflowed on the way here is passed on; a scan would refuse it
    run = partial(chain.go_back, links, grad_output, local_grads, backend)
    return chain.in_range(run, method, levels)


def resolve_method(model, options, shape, backend):
    """Return how a layer whose input has a shape (T, B, I) is solved on a backend, and how long its chunks are."""
    steps, batch, _ = shape
    length = options.length
    if options.method != "linear" and length is None:
        expected = plan.known(steps, batch, model.hidden_size, model.dtype, backend, model.cell.gates, True)
        length = expected.length
        if options.method == "auto":
            options = LOOP if expected.method == "linear" else _CHUNKS
    return (LOOP, steps) if options.method == "linear" or steps <= length else (options, length)


def solve_layer(model, layer, below, start, options, backend, spans=WHOLE):
    """Run a layer forward as `options` says; return what `run_layer` returns, and how it was solved, or None."""
    options, length = resolve_method(model, options, below.shape, backend)
    if options.method == "linear":
        return run_layer(model, layer, below, start, backend, spans), None
    cell, params = model.cell, params_of(model, layer)
    below, start, *params = plain(below, start, *params)
    if options.method == "chunked" and backend == "cuda":
        solve = implementation("bppsa_nb.cells.chunked", "cuda").solve
        return solve(cell, length, *options.limits(model.dtype), below, start, *params)
    where = "numpy" if backend == "cuda" else backend  # chunks are on the host

    def linearize(chunks):
        hidden, kept = chunks.side_by_side()
        apart = [Spans(chunks.batched(resets), WHOLE.lengths) for resets in chunks.resets]
        links = layer_of(where).chain(cell, params[1], *plain(by_states(hidden), kept), *apart)
        products, exponents = implementation("bppsa_nb.chains.structured", where).products(links, chunks.length)
        return np.ldexp(products, exponents[..., None]).reshape(chunks.count, chunks.B, *products.shape[2:])

    h0, bound = by_samples(start), np.maximum(1, abs(by_samples(start))) if cell.bounded else None
    run, make = chunks_of(model, layer, backend)
    make = make if spans.whole else partial(make, resets=[spans.resets])
    (hidden, kept), solved = unroll.solve(options, length, run, below, h0, make, linearize, bound)
    states, kept = plain(by_states(hidden), kept)
    spans.end(states)
    return (states, kept), solved


def chunks_of(model, layer, backend):
    """Return what runs a layer's steps, and what cuts its time loop into chunks on the host, for `unroll.solve`."""

    def run(x, h0, *resets):
        spans = Spans(*resets, WHOLE.lengths) if resets else WHOLE
        states, kept = run_layer(model, layer, x, by_states(h0), backend, spans)
        return by_samples(states), kept

    chunks = implementation("bppsa_nb.cells.chunked", "cpu" if backend == "cpu" else "numpy").Chunks
    return run, partial(chunks, model.cell, params_of(model, layer)) if backend == "cpu" else chunks


def by_samples(states):
    """View states [shape=(S, ..., B, H)] with all of a sample together [shape=(..., B, S, H)]."""
    return np.moveaxis(states, 0, -2)


def by_states(states):
    """View what `by_samples` returns as it was."""
    return np.moveaxis(states, -2, 0)


def run_layer(model, layer, below, start, backend, spans=WHOLE):
    """Run a layer forward; return its states, and what its cell keeps."""
    return layer_of(backend).forward(model.cell, *plain(below, start, *params_of(model, layer)), **spans.given)


def params_of(model, layer):
    """List a layer's parameters."""
    return [model.params[f"{name}_l{layer}"] for name in model.cell.names]


def layer_parts(model, x, saved, layer):
    """Return what going back through a layer reads: both weights, what is saved, and its input [shape=(T, B, I)].

    `x` and `saved` are those of `forward`.
    """
    below = saved[layer - 1][0][0, 1:] if layer else x
    weight_ih, weight_hh, below, *kept = plain(*params_of(model, layer)[:2], below, *saved[layer])
    return (weight_ih, weight_hh), tuple(kept), below


def layer_of(backend):
    """Return the module that computes layers on a backend."""
    return implementation("bppsa_nb.cells.layer", backend)


def logits(model, last):
    """Compute logits [shape=(B, C)] from the last layer's last states [shape=(B, H)]."""
    return last @ model.params["fc.weight"].T + model.params["fc.bias"]


def from_logits(model, last, grad_logits):
    """Go back through `logits`: return the gradients of its parameters, a dict, and those at the states."""
    grads = {"fc.weight": grad_logits.T @ last, "fc.bias": np.add.reduce(grad_logits)}
    return grads, grad_logits @ model.params["fc.weight"]


def stacks(saved):
    """Stack what all layers have saved: their states, and what their cells keep, None where that is nothing."""
    if len(saved) == 1:  # one layer's arrays are not copied to be stacked with nothing
        states, kept = (array[None] for array in saved[0])
    else:
        states, kept = map(np.stack, zip(*saved, strict=True))
    return states, kept if kept.shape[1] else None


def plain(*arrays):
    """Return arrays as compiled code takes them."""
    # Compiled code exists once per memory layout; contiguous and writable is the only one used.
    if all(map(_is_plain, arrays)):
        return arrays
    return [array if _is_plain(array) else np.require(array, requirements=("C", "W")) for array in arrays]
