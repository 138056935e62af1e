"""Ordinary back-propagation through a layer, compiled for CPUs: in one go, from the loss to the parameters.

What a step leaves stays in the cache: after every few steps back, the gradients at the sums are multiplied into those
of the parameters, and forgotten. From memory, only what the forward pass left is read, and that once. Samples never
wait for each other: cores share out groups of them.
"""

import math

import numpy as np

from bppsa_nb.cells.cell_cpu import CARRY, SPLIT, SUMS, back, table_of
from bppsa_nb.cells.forward_cpu import run_steps
from bppsa_nb.cells.samples_cpu import (
    add_products,
    biases,
    gather_panels,
    in_groups,
    longest,
    room_for_panels,
    samples_together,
    share_samples,
)
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import multiply, multiply_in_turn, panels
from bppsa_nb.machine.views import add, clear, copy, flat_view

_ROWS = 256  # of gradients at sums, before the parameters have their turn


def backward(cell, weights, x, saved, grad_output, local_grads, inputs, spans=WHOLE):
    """Compute the gradients of a layer's parameters, a dict; at its input, None unless `inputs` asks for it; at h_0.

    This is a sweep along the layer's chain, and what `bppsa_nb.cells.layer` makes of it; `weights` are weight_ih and
    weight_hh, `saved` states and what is kept. Loss terms enter at all h but h_0: `local_grads` is [shape=(T, B, H)] or
    None, and its last one is part of `grad_output` [shape=(B, S H)]: of each sample, where `spans` say how long it is.
    """
    local = x[:0] if local_grads is None else local_grads
    new = np.zeros if spans.lengths.size else np.empty
    at_input, at_start = new(x.shape, x.dtype) if inputs else x[:0], np.empty(grad_output.shape, x.dtype)
    saved, gradients = (spans.before(saved[0]), *saved), (grad_output, local, at_input, at_start)
    total = go_back(cell, weights, x, saved, gradients, tuple(spans))
    return by_name(cell, weights, total), at_input if inputs else None, at_start


def by_name(cell, weights, total):
    """Tell the gradients of a layer's parameters apart, which come one after the other."""
    (rows, size), grads, start = weights[1].shape, {}, 0
    shapes = weights[0].shape, (rows, size), (rows,), (rows,), *[(size,)] * len(cell.vectors)
    for name, shape in zip(cell.names, shapes, strict=True):
        end = start + math.prod(shape)
        grads[name], start = total[start:end].reshape(shape), end
    return grads


def go_back(cell, weights, x, saved, gradients, spans=tuple(WHOLE)):
    """Return the gradients of all parameters, one after the other; see `backward`.

    `saved` are states, those that steps begin with and those they end with, and what is kept; `spans` are a plain
    tuple. `gradients` are that at the last states, loss terms, or none of them, and room for those at the input, or
    none, and at the initial states.
    """
    (weight_ih, weight_hh), (steps, batch, width), size = weights, x.shape, weights[1].shape[1]
    weights_h = panels(weight_hh.reshape(-1, size, size))
    weights_x = weights_h[:, :0]
    if gradients[2].size:
        by_gate = weight_ih.reshape(-1, size, width)
        if cell.split:  # as sums come
            by_gate = np.concatenate([by_gate[-cell.split :], by_gate[: -cell.split]])
        weights_x = panels(by_gate)
    group = samples_together(batch, weight_hh)
    groups = -(-batch // group)
    added = 2 * len(weight_hh) + size * len(cell.vectors)
    totals = np.zeros((groups, weight_ih.size + weight_hh.size + added), x.dtype)
    work = steps * batch * (weight_ih.size + weight_hh.size)
    parameters = table_of(cell, x.dtype), weights_x, weights_h, totals
    in_groups(_back, batch, group, work, weights_h, (x, *saved, spans), parameters, gradients)
    return totals[0] if groups == 1 else np.add.reduce(totals)  # in the order of the groups, whichever core had them


class Loops:
    """A layer's loops on room that serves step after step: `forward`, from zeros, and `backward`.

    `params` are the layer's, which may change in place; x has `shape` (T, B, I).
    """

    def __init__(self, cell, params, shape):
        weight_ih, weight_hh, *self.biases = params
        (steps, batch, _), size, dtype = shape, weight_hh.shape[1], weight_hh.dtype
        self.cell, self.weights, S = cell, (weight_ih, weight_hh), cell.states
        # By columns, as products take them.
        self.views = [weight.reshape(-1, size, weight.shape[1]).transpose(0, 2, 1) for weight in self.weights]
        self.states, kept = np.zeros((S, steps + 1, batch, size), dtype), (cell.kept, steps, batch, size)
        self.saved, self.hidden = (self.states, np.empty(kept, dtype)), self.states[0]
        self.at_start = np.empty((batch, S * size), dtype)

    def forward(self, x):
        """Find the states, whose first are `hidden` [shape=(T + 1, B, H)]."""
        weights = table_of(self.cell, x.dtype), *map(panels, self.views), biases(self.cell, *self.biases)
        share_samples(run_steps, x, weights, self.saved)

    def backward(self, x, grad_output, local_grads, inputs):
        """Return the gradients of all parameters, one after the other, and those at the input, or none."""
        local, at_input = x[:0] if local_grads is None else local_grads, np.empty(x.shape, x.dtype) if inputs else x[:0]
        gradients = grad_output, local, at_input, self.at_start
        return go_back(self.cell, self.weights, x, (self.states, *self.saved), gradients), at_input


@compiled
def _back(size_of_group, product, seen, parameters, gradients, first, last):
    """Go back with groups first ... last - 1 of samples."""
    (x, began, states, kept, spans), (cell, weights_x, weights_h, totals) = seen, parameters
    grad_output, local, at_input, at_start = gradients
    (steps, batch, width), (num_states, _, _, size), hidden = x.shape, states.shape, began[0]
    gates, split, carry = weights_h.shape[1], cell[SPLIT], cell[CARRY]
    sums, together = cell[SUMS], max(1, _ROWS // min(batch, size_of_group))
    for group in range(first, last):
        b0, b1 = group * size_of_group, min((group + 1) * size_of_group, batch)
        samples, state = b1 - b0, batch * size
        n = samples * size
        at_sums = np.empty((sums, together, samples, size), x.dtype)
        at_rows = at_sums.reshape(sums, -1, size)
        most = together * samples
        x_rows, h_rows = room_for_panels(most, x), room_for_panels(most, hidden)
        found_x, found_h = np.empty((size, width), x.dtype), np.empty((size, size), x.dtype)
        grads, past = np.empty((num_states, samples, size), x.dtype), np.empty((num_states, n), x.dtype)
        grad, biases_at = flat_view(grads, 0, n), np.zeros((sums, n), x.dtype)
        until = longest(spans, steps, b0, samples)
        clear(flat_view(grads, 0, num_states * n))
        _by_states(grad_output, b0, grads, spans[1], until)
        total = flat_view(totals, group * totals.shape[1], totals.shape[1])
        by_x, by_h, biases = _parts(total, gates, size, width)
        before = flush()
        for end in range(until, 0, -together):
            start = max(end - together, 0)
            for t in range(end - 1, start - 1, -1):
                here, there = t * state + b0 * size, (t - start) * n
                back(cell, grads, 0, began, here, states, here + state, kept, here, at_sums, there, past, 0, n)
                multiply_in_turn(product, at_sums[split:, t - start], weights_h, grads[0], t)
                if carry:
                    add(grad, flat_view(past, 0, n))
                for s in range(1, num_states):
                    copy(flat_view(past, (s - 1 + carry) * n, n), flat_view(grads, s * n, n))
                _leave(spans, t, b0, grads)
                if local.size and t > 0:
                    add(grad, flat_view(local, here - state, n))
                if spans[1].size:
                    _by_states(grad_output, b0, grads, spans[1], t)
                if at_input.size:
                    multiply(product, at_sums[:, t - start], weights_x, at_input[t, b0:b1])
            gather_panels(x, b0, samples, start, end - start, x_rows)
            gather_panels(hidden, b0, samples, start, end - start, h_rows)
            for s in range(end - start):
                for k in range(sums):
                    add(flat_view(biases_at, k * n, n), flat_view(at_sums, (k * together + s) * n, n))
            rows = (end - start) * samples
            for k in range(sums):
                at = at_rows[k : k + 1, :rows]
                if k < gates:
                    weight = flat_view(by_x, (k - split) % gates * size * width, size * width)
                    add_products(product, at, x_rows[:, :, :rows], found_x, weight)
                if split <= k < split + gates:
                    weight = flat_view(by_h, (k - split) * size * size, size * size)
                    add_products(product, at, h_rows[:, :, :rows], found_h, weight)
        _by_samples(grads, b0, at_start)
        _add_biases(biases_at, samples, gates, split, biases)
        restore(before)
    return True


@inline
def _add_biases(at_sums, samples, gates, split, biases):
    """Add gradients at all sums of some samples [shape=(P, samples * H)] to those of both biases, and of vectors."""
    size = at_sums.shape[1] // samples
    for k in range(len(at_sums)):
        for b in range(samples):
            terms = flat_view(at_sums, (k * samples + b) * size, size)
            if k < gates:
                add(flat_view(biases, (k - split) % gates * size, size), terms)
            if k >= split:
                add(flat_view(biases, (gates + k - split) * size, size), terms)


@inline
def _parts(total, gates, size, width):
    """Tell a layer's gradients apart: of weight_ih, of weight_hh, and of both biases and vectors, rows of numbers."""
    of_x, of_h = gates * size * width, gates * size * size
    biases = flat_view(total, of_x + of_h, total.size - of_x - of_h)
    return flat_view(total, 0, of_x), flat_view(total, of_x, of_h), biases


@inline
def _leave(spans, t, begin, grads):
    """Have nothing go back past where some samples begin anew."""
    resets, _ = spans
    (num_states, samples, size) = grads.shape
    if resets.size:
        for b in range(samples):
            if resets[t, begin + b]:
                for s in range(num_states):
                    clear(flat_view(grads, (s * samples + b) * size, size))


@inline
def _by_states(gradients, begin, grads, lengths, t):
    """Copy gradients [shape=(B, S H)] of samples that end after t steps to rows of each state [shape=(S, samples, H)].

    Without lengths, that is all of them.
    """
    (num_states, samples, size) = grads.shape
    for b in range(samples):
        if not lengths.size or lengths[begin + b] == t:
            for s in range(num_states):
                there = flat_view(gradients, ((begin + b) * num_states + s) * size, size)
                copy(there, flat_view(grads, (s * samples + b) * size, size))


@inline
def _by_samples(grads, begin, gradients):
    """Copy what `_by_states` copies back."""
    (num_states, samples, size) = grads.shape
    for s in range(num_states):
        for b in range(samples):
            there = flat_view(gradients, ((begin + b) * num_states + s) * size, size)
            copy(flat_view(grads, (s * samples + b) * size, size), there)
