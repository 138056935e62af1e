"""Ordinary back-propagation through a layer, compiled for CPUs: in one go, from the loss to the parameters.

Gradients at preactivations stay in the cache: after every few steps back, they are multiplied into those
of the parameters, and forgotten. From memory, only what the forward pass left is read, and that once. Samples never
wait for each other: cores share out groups of them.
"""

import numpy as np

from bppsa_nb.cells.cell_cpu import CARRY, PREACTS, SPLIT, back, table_of
from bppsa_nb.cells.samples_cpu import add_biases, add_weights, in_groups, longest, samples_together
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import multiply, panels
from bppsa_nb.machine.views import add, buffer, clear, copy, copy_rows, pointer

_ROWS = 256  # of gradients at preactivations, before they are multiplied into those of the parameters


def backward(cell, weights, x, saved, grad_output, local_grads, inputs, spans=WHOLE):
    """Return the gradients of a layer's parameters, one after the other; at its input, if `inputs` asks for it; at h_0.

    This is a sweep along the layer's chain, and what `bppsa_nb.cells.layer` makes of it; `weights` are weight_ih and
    weight_hh, `saved` states and what is kept. Loss terms enter at all h but h_0: `local_grads` is [shape=(T, B, H)] or
    None, and its last one is part of `grad_output` [shape=(B, S H)]: of each sample, where `spans` say how long it is.
    """
    new = np.zeros if spans.lengths.size else np.empty
    at_input, at_start = new(x.shape, x.dtype) if inputs else x[:0], np.empty(grad_output.shape, x.dtype)
    saved = x, spans.before(saved[0]), *saved
    gradients = grad_output, x[:0] if local_grads is None else local_grads, at_input, at_start
    (weight_ih, weight_hh), (steps, batch, width), size = weights, x.shape, weights[1].shape[1]
    weights_h = panels(weight_hh.reshape(-1, size, size))
    weights_x = weights_h[:, :0]
    if inputs:
        by_gate = weight_ih.reshape(-1, size, width)
        if cell.split:  # as preactivations come
            by_gate = np.concatenate([by_gate[-cell.split :], by_gate[: -cell.split]])
        weights_x = panels(by_gate)
    group = samples_together(batch, weight_hh)
    groups = -(-batch // group)
    added = 2 * len(weight_hh) + size * len(cell.vectors)
    totals = np.zeros((groups, weight_ih.size + weight_hh.size + added), x.dtype)
    work = steps * batch * (weight_ih.size + weight_hh.size)
    parameters = table_of(cell, x.dtype), weights_x, weights_h, totals
    in_groups(_back, batch, group, work, weights_h, saved, parameters, gradients, spans.flat)
    total = totals[0] if groups == 1 else np.add.reduce(totals)  # in the order of the groups, whichever core had them
    return total, at_input if inputs else None, at_start


@compiled
def _back(size_of_group, product, saved, parameters, gradients, spans, first, last):
    """Go back with groups first ... last - 1 of samples."""
    x, began, states = saved[0], saved[1], saved[2]  # the compiler unpacks four at once by way of twice the code
    kept, cell, weights_x = saved[3], parameters[0], parameters[1]
    weights_h, totals = parameters[2], parameters[3]
    grad_output, local = gradients[0], gradients[1]
    at_input, at_start = gradients[2], gradients[3]
    (steps, batch, width), (resets, lengths) = x.shape, spans
    num_states, gates, size = states.shape[0], weights_h.shape[1], states.shape[3]
    preacts, split, carry, state = cell[PREACTS], cell[SPLIT], cell[CARRY], batch * size
    together = max(1, _ROWS // min(batch, size_of_group))
    for group in range(first, last):
        b0 = group * size_of_group
        samples = min(size_of_group, batch - b0)
        until = longest(lengths, steps, b0, samples)
        n, most = samples * size, together * samples
        grad_preacts, biases_at = buffer(x, (preacts, most, size)), buffer(x, (preacts, samples, size))
        grads, past = buffer(x, (num_states, samples, size)), buffer(x, (num_states, samples, size))
        scratch = buffer(x, (max(width, size) * (size + 2 * most),))
        total = pointer(totals, group * totals.shape[1])
        clear(biases_at, preacts * n)
        clear(grads, num_states * n)
        _by_states(lengths, grad_output, b0, grads, until)
        before = flush()
        for end in range(until, 0, -together):
            start = max(end - together, 0)
            for t in range(end - 1, start - 1, -1):
                here, there = t * state + b0 * size, (t - start) * n
                back(cell, grads, 0, began, here, states, here + state, kept, here, grad_preacts, there, past, 0, n)
                sizes, places = (gates, samples, size), (split * most * size + there, 0, 0)
                multiply(product, grad_preacts, weights_h, grads, sizes, places, t)
                if carry:
                    add(grads, past, n)
                for s in range(1, num_states):
                    copy(pointer(past, (s - 1 + carry) * n), pointer(grads, s * n), n)
                if resets.size:
                    _leave(resets, t * batch + b0, grads)
                if local.size and t > 0:
                    add(grads, pointer(local, here - state), n)
                if lengths.size:
                    _by_states(lengths, grad_output, b0, grads, t)
                if at_input.size:
                    places = there, 0, (t * batch + b0) * width
                    multiply(product, grad_preacts, weights_x, at_input, sizes, places, 0)
            for k in range(preacts):
                for s in range(end - start):
                    add(pointer(biases_at, k * n), pointer(grad_preacts, k * most * size + s * n), n)
            seen = pointer(x, (start * batch + b0) * width), pointer(began, (start * batch + b0) * size)
            block = 0, width, batch, samples, end - start
            add_weights(product, grad_preacts, seen, scratch, block, (gates, split), total)
        for s in range(num_states):
            there = pointer(at_start, (b0 * num_states + s) * size)
            copy_rows(pointer(grads, s * n), size, there, num_states * size, size, samples)
        add_biases(biases_at, 0, samples, preacts, (gates, split), pointer(total, gates * (width + size) * size))
        restore(before)
    return True


@inline
def _leave(resets, begin, grads):
    """Have nothing go back past where some samples begin anew."""
    num_states, samples, size = grads.shape
    for b in range(samples):
        if resets[begin + b]:
            for s in range(num_states):
                clear(pointer(grads, (s * samples + b) * size), size)


@inline
def _by_states(lengths, gradients, begin, grads, t):
    """Copy gradients [shape=(B, S H)] of samples that end after t steps to rows of each state [shape=(S, samples, H)].

    Without lengths, that is all of them.
    """
    num_states, samples, size = grads.shape
    for b in range(samples):
        if not lengths.size or lengths[begin + b] == t:
            for s in range(num_states):
                there = pointer(gradients, ((begin + b) * num_states + s) * size)
                copy(there, pointer(grads, (s * samples + b) * size), size)
