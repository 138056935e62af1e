"""Layers on layers: forward from the first to the last, and back from the last to the first: chain, scan, gradients.

Both directions are written once, over something that computes single layers: `Host`, in NumPy or compiled for CPUs;
`bppsa_nb.cells.stack_cuda.Device`, on a GPU; `bppsa_nb.distributed.layers.Ranks`, whose steps are spread over ranks.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb.cells import unroll
from bppsa_nb.cells.cell import WHOLE, Spans
from bppsa_nb.cells.layer import new_saved
from bppsa_nb.chains import methods, plan
from bppsa_nb.machine.checks import on_gpu
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.memory import contiguous

LOOP, _CHUNKS = unroll.SolverOptions("linear"), unroll.SolverOptions("chunked", most=1)  # what "auto" takes


def forward(layers, x, starts):
    """Run all layers forward, from inputs [shape=(T, B, I)] and the initial states of every layer."""
    below = x
    for layer, start in enumerate(starts):
        layers.forward(layer, below, start)
        below = layers.hidden[layer]


def backward(layers, x, ends, terms=None, inputs=False):
    """Go back through all layers, from the last one to the first; return the gradient at `x`, if `inputs` asks for it.

    `ends` are gradients of the loss at every layer's last states [shape=(B, S H)], or at h only [shape=(B, H)], as far
    as these are read by themselves, or None. `terms`, if any, are loss terms at all states of every layer but the
    initial ones [shape=(T, B, S H)], or at h only [shape=(T, B, H)], or None: the last layer has one or the other.
    """
    found = None
    for layer in reversed(range(len(ends))):
        below, wanted, own = layers.hidden[layer - 1] if layer else x, inputs or layer > 0, terms and terms[layer]
        found = own if found is None else found if own is None else layers.add(found, own)
        entering = layers.enter(layer, ends[layer], found)
        if layers.sweeps:
            found = layers.sweep(layer, below, entering, wanted)
        else:
            gradients = layers.scan(layers.chain(layer), entering)
            found = layers.gradients(layer, below, gradients, wanted)  # the layer below is read at every step
    return found


def layers_of(model, x, backend, options=LOOP, how=None, spans=WHOLE, saved=None, new=None):
    """Return what computes the layers of a model on a backend, and takes and gives arrays that are where `x` is.

    Where there are no steps, and by Newton's method, that is the host. On a GPU, `new` makes arrays.
    """
    if backend == "cuda" and len(x) and options.method != "newton":
        return implementation(__name__, "cuda").Device(model, x.shape, options, how, saved, new)
    return Host(model, x.shape, backend, options, how, spans, saved)


def run(model, x, starts, options, backend, spans=WHOLE, new=None):
    """Run all layers forward; return states [shape=(L, S, T + 1, B, H)], what cells keep, or None, and `Host.solved`.

    `x` is [shape=(T, B, I)], and `starts` are S initial states [shape=(B, H)] of every layer. For layers on a GPU,
    these may be on the host, and None stands for zeros.
    """
    layers = layers_of(model, x, backend, options, spans=spans, new=new)
    forward(layers, layers.take(x), starts)
    return layers.give(layers.states, x), layers.give(layers.kept, x) if model.cell.kept else None, layers.solved


def run_back(model, x, saved, read, how, inputs=False, spans=WHOLE, new=None):
    """Go back through all layers; `saved` are states and what cells keep, `read` the ends and terms of `backward`.

    Returns gradients of the layers' parameters, a dict; that at `x` or None; and those at the initial states, a list.
    """
    layers = layers_of(model, x, how[1], how=how, spans=spans, saved=saved, new=new)
    ends, terms = ([each if each is None else layers.take(each) for each in own] for own in read)
    at_input = backward(layers, layers.take(x), ends, terms, inputs)
    grads = {name: layers.give(grad, x) for name, grad in layers.grads.items()}
    at_start = [layers.give(grad, x) for grad in layers.at_start]
    return grads, at_input, at_start


def there(array):
    """Return the module for models whose arrays are where this one is: this one, or its counterpart for a GPU."""
    return implementation(__name__, "cuda" if on_gpu(array) else "numpy")


@dataclass(frozen=True)
class Segments:
    """How layers go through time in segments: of sequences longer than memory, only the states before each are kept.

    A backward pass goes from the last segment to the first: each runs forward once more, from the states that it began
    with, and then back. With segments of √T steps, all that is held is √T states and one segment's activations, for one
    more forward pass; `bppsa_nb.graphs.saving` says what else of a recurrent step could be kept.

    A segment has so many `steps`, the last one perhaps fewer; `options`, `backend` and `spans` are those of `Host`.
    """

    steps: int
    options: unroll.SolverOptions
    backend: str
    spans: Spans = WHOLE

    def count(self, T):
        """Return how many segments T steps are; no steps are one, too."""
        return max(1, -(-T // self.steps))

    def forward(self, model, x, starts, read=lambda steps, states: None):
        """Run layers forward from states [shape=(L, S, B, H)]; return what is kept, all last states, and how.

        Kept are the states before each segment, and after the last one, of samples that ended those they ended with
        [shape=(L, S, segments + 1, B, H)]. Last states are one for each sequence [shape=(L, S, B or n, H)]. How layers
        were solved comes by segment. All else that is needed of a segment's states is `read` from them, at its steps.
        """
        kept, solved = np.empty((*starts.shape[:2], self.count(len(x)) + 1, *starts.shape[2:]), starts.dtype), []
        kept[:, :, 0] = starts
        ended = np.empty_like(self.spans.starts if self.spans.places.size else starts)
        for s in range(self.count(len(x))):
            part, (states, _, how), (spans, here) = self._run(model, x, kept, s)
            last = np.array([[spans.last(each) for each in own] for own in states])
            kept[:, :, s + 1] = states[:, :, -1] if spans.places.size else last
            ended[:, :, here] = last
            solved += how
            read(part, states)
        return kept, ended, solved

    def backward(self, model, x, kept, read, how, inputs=False):
        """Return what `run_back` returns, from what `forward` kept; other arguments are those of `run_back`."""
        L, S, _, B, H = kept.shape
        ends, total = np.zeros((L, self.spans.starts.shape[2] or B, S * H), kept.dtype), {}
        for own, end in zip(ends, read[0], strict=True):
            if end is not None:
                own[:, : end.shape[1]] = end
        at_input = np.empty_like(x) if inputs else None
        for s in reversed(range(self.count(len(x)))):
            part, (*saved, _), (spans, here) = self._run(model, x, kept, s)
            terms = [each if each is None else each[part] for each in read[1]]
            found, at, at_start = run_back(model, x[part], saved, (ends[:, here], terms), how, inputs, spans)
            # The gradient at the states that a segment begins with is that at those where the one before it ends.
            ends[:, here] = at_start
            total = {name: total[name] + grad if total else grad for name, grad in found.items()}
            if inputs:
                at_input[part] = at
        return total, at_input, list(ends)

    def _run(self, model, x, kept, s):
        """Run a segment; return which steps it has, what `run` returns, and what `Spans.part` does."""
        part = slice(s * self.steps, min((s + 1) * self.steps, len(x)))
        spans, here = self.spans.part(part, kept[:, :, s])
        return part, run(model, x[part], kept[:, :, s], self.options, self.backend, spans), (spans, here)


class Host:
    """The layers of a model on the host.

    `model` is a `Recurrent`, or what has as much of it as layers need: `params`, `hidden_size`, `num_layers`, `dtype`
    and `cell`. Inputs have a `shape` (T, B, I); `options` say how states are found, `how` (method, backend, levels) how
    gradients go back, and `spans` which steps belong together.

    Attributes
    ----------
    states, kept : np.ndarray [shape=(L, S, T + 1, B, H)] and [shape=(L, K, T, B, H)]
        What every layer has saved; see `bppsa_nb.cells.layer`.
    hidden : list of np.ndarray [shape=(T, B, H)]
        What every layer hands to the one above it.
    solved : list
        How the states of every layer were found, a `Solved`, or None for the loop.
    flat : list of np.ndarray
        Gradients of every layer's parameters, one after the other; `grads` are those by name.
    at_start : list of np.ndarray [shape=(B, S H)]
        Gradients at the initial states of every layer.
    """

    def __init__(self, model, shape, backend, options=LOOP, how=None, spans=WHOLE, saved=None):
        self.model, self.shape, self.backend, self.spans = model, shape, backend, spans
        self.options, self.length = resolve_method(model, options, shape, backend)
        self.how, self._run = how, layer_of(backend).forward
        self._there = "numpy" if backend == "cuda" else backend  # which has loops over host arrays, and nothing else
        self.functions = layer_of(self._there)
        self.cell, (T, B), (L, H) = model.cell, shape[:2], (model.num_layers, model.hidden_size)
        self.names = [[f"{name}_l{layer}" for name in self.cell.names] for layer in range(L)]
        self.params = [contiguous(*self.cell.of_layer(model.params, layer)) for layer in range(L)]
        new = np.zeros if spans.lengths.size else np.empty
        self.states, self.kept = saved or (new((L, self.cell.states, T + 1, B, H), model.dtype), None)
        if self.kept is None:
            self.kept = new((L, self.cell.kept, T, B, H), model.dtype)
        self.saved = [(self.states[layer], self.kept[layer]) for layer in range(L)]
        self.hidden, self.solved = [states[0, 1:] for states, _ in self.saved], [None] * L
        self.flat, self.at_start = [None] * L, [None] * L
        self.sweeps = how is not None and how[0] == "linear" and hasattr(self.functions, "backward")

    @property
    def grads(self):
        """Gradients of the layers' parameters by name."""
        found = {}
        for names, flat in zip(self.names, self.flat, strict=True):
            start = 0
            for name, param in ((name, self.model.params[name]) for name in names):
                found[name] = flat[start : start + param.size].reshape(param.shape)
                start += param.size
        return found

    def take(self, array):
        """Take an array of the caller's."""
        return contiguous(array)[0]

    def give(self, array, like):
        """Return an array to where another one is."""
        return array

    def add(self, found, terms):
        """Return loss terms at every h of a layer with others, at its states or at h only."""
        total = np.array(terms)
        total[:, :, : found.shape[2]] += found
        return total

    def forward(self, layer, below, start):
        """Find the states of a layer; it begins with `start` [shape=(S, B, H)], or with what is there already."""
        (states, kept), params, spans = self.saved[layer], self.params[layer], self.spans.of(layer)
        if start is not None:
            states[:, 0] = start
        if self.options.method == "linear":
            self._run(self.cell, below, (states, kept), *params, spans=spans)
            return
        h0 = by_samples(states[:, 0])
        run, make = self.chunks_of(layer)
        make = make if spans.whole else partial(make, resets=[spans.resets])
        bound = np.maximum(1, abs(h0)) if self.cell.bounded else None
        linearize = partial(self._linearize, params[1])
        how = self.options, self.length, run, below, h0, make, linearize, bound
        (hidden, found), self.solved[layer] = unroll.solve(*how)
        states, kept = self.saved[layer] = contiguous(by_states(hidden), found)
        spans.end(states)
        self.hidden[layer] = states[0, 1:]
        if len(self.saved) == 1:
            self.states, self.kept = states[None], kept[None]
        else:
            self.states[layer], self.kept[layer] = states, kept

    def chunks_of(self, layer):
        """Return what runs a layer's steps, and what cuts its time loop into chunks, for `unroll.solve`."""
        spans = self.spans.of(layer)._replace(lengths=WHOLE.lengths)

        def run(x, h0, resets=WHOLE.resets):
            saved = new_saved(self.cell, by_states(h0), len(x))
            of_steps = spans._replace(resets=resets)
            self._run(self.cell, *contiguous(x), saved, *self.params[layer], spans=of_steps)
            return by_samples(saved[0]), saved[1]

        chunks = implementation("bppsa_nb.cells.chunked", self._there).Chunks
        return run, partial(chunks, self.cell, self.params[layer], spans) if self._there == "cpu" else chunks

    def _linearize(self, weight_hh, chunks):
        """Return the products of the Jacobians of chunks [shape=(chunks, B, S H, S H)]."""
        hidden, kept = chunks.side_by_side()
        apart = [Spans(chunks.batched(resets), *WHOLE[1:]) for resets in chunks.resets]
        links = layer_of(self._there).chain(self.cell, weight_hh, *contiguous(by_states(hidden), kept), *apart)
        products, exponents = methods.multiply(links, 1, chunks.length, self._there)
        return np.ldexp(products, exponents[..., None]).reshape(chunks.count, chunks.B, *products.shape[2:])

    def enter(self, layer, end, terms):
        """Return where the loss enters a layer: the gradient at its last states [shape=(B, S H)], and at every h.

        At the last states these are what was read of them by themselves, and h with all the others.
        """
        (S, _, batch, size), (sample, *_) = self.states[layer].shape, self.spans.places
        total = np.zeros((len(sample) or batch, S * size), self.states.dtype)
        if end is not None:
            total[:, : end.shape[1]] = end
        if terms is not None and len(terms):  # at the others' last states, terms enter by themselves
            total[self.spans.final, : terms.shape[2]] += terms[-1] if sample.size else self.spans.last(terms)
        return total, terms

    def sweep(self, layer, below, entering, wanted):
        """Do what `chain`, `scan` and `gradients` do, in one go."""
        arrays = self.params[layer][:2], below, self.saved[layer], *entering
        found = self.functions.backward(self.cell, *arrays, wanted, self.spans.of(layer))
        self.flat[layer], at_input, self.at_start[layer] = found
        return at_input

    def chain(self, layer):
        """Return the transposed Jacobians of a layer's states."""
        return self.functions.chain(self.cell, self.params[layer][1], *self.saved[layer], self.spans.of(layer))

    def scan(self, links, entering):
        """Return the gradients at all states of a layer [shape=(T + 1, B, S H)]."""
        (grad_output, terms), (method, backend, levels), lengths = entering, self.how, self.spans.lengths
        sample, _, stop = self.spans.places
        if terms is not None or lengths.size or sample.size:
            ends, grad_output = grad_output, grad_output[self.spans.final]
            at_all = np.zeros((links.shape[0] + 1, *grad_output.shape), links.dtype)
            if terms is not None:  # none enters at the initial states, nor at others than h
                at_all[1:, :, : terms.shape[2]] = terms
            if lengths.size:
                at_all[lengths, np.arange(len(grad_output))] = grad_output
                grad_output = at_all[-1]
            if sample.size:
                at_all[stop, sample] += ends
                at_all[-1] = grad_output
            terms = at_all
        run = partial(methods.go_back, links, *contiguous(grad_output), terms, backend)
        return methods.in_range(run, method, levels)

    def gradients(self, layer, below, grad_states, wanted):
        """Find the gradients of a layer's parameters; return those at its input, if they are wanted."""
        (states, kept), functions, spans = self.saved[layer], self.functions, self.spans.of(layer)
        self.at_start[layer] = grad_states[0].copy()
        if spans.places.size:
            saved = self.params[layer][1], self.saved[layer]
            self.at_start[layer] = functions.start_gradients(self.cell, *saved, grad_states, spans)
        grad_preacts = functions.preact_gradients(self.cell, states, kept, grad_states, spans)
        self.flat[layer] = functions.parameter_gradients(self.cell, below, states, grad_preacts, spans)
        return functions.input_gradients(self.cell, self.params[layer][0], grad_preacts) if wanted else None


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


def by_samples(states):
    """View states [shape=(S, ..., B, H)] with all of a sample together [shape=(..., B, S, H)]."""
    return np.moveaxis(states, 0, -2)


def by_states(states):
    """View what `by_samples` returns as it was."""
    return np.moveaxis(states, -2, 0)


def layer_of(backend):
    """Return the module that computes layers on a backend."""
    return implementation("bppsa_nb.cells.layer", backend)


def logits(head, last):
    """Compute logits [shape=(B, C)] from the last layer's last states [shape=(B, H)]; `head` is fc.weight, fc.bias."""
    weight, bias = head
    return last @ weight.T + bias


def from_logits(head, last, grad_logits):
    """Go back through `logits`: return the gradients of both parameters, and those at the states."""
    return grad_logits.T @ last, np.add.reduce(grad_logits), grad_logits @ head[0]
