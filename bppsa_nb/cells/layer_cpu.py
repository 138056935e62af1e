"""A layer of any cell compiled for CPUs; counterpart of `bppsa_nb.cells.layer`.

Its time loop is that of `bppsa_nb.cells.chunked_cpu`: samples are chunks of all steps.
"""

from functools import cache

import numpy as np

from bppsa_nb.cells.cell import WHOLE
from bppsa_nb.cells.cell_cpu import CARRY, GATES, PREACTS, SPLIT, back, table_of
from bppsa_nb.cells.chunked_cpu import THRESHOLD, in_groups, lay_out, longest, run_steps, samples_together, with_spans
from bppsa_nb.cells.layer import input_gradients, start_gradients  # noqa: F401  NumPy's serve compiled cells, too
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.intrinsics import add, buffer, clear, copy, copy_rows, flush, pointer, restore, shaped
from bppsa_nb.machine.tiles import NARROW, multiply, multiply_T, panel_width, panels, product
from bppsa_nb.machine.workers import THREADS, parallel_for

_THRESHOLD_NUMBERS = 2**18  # that one core has read and written once before a second one is of any use
_PIECE = 2**12  # numbers that go together then
_PARTS = 8  # sums of parameter gradients, each by itself, for as many workers at most
_samples = cache(lambda batch, dtype: (np.arange(batch)[None], np.zeros(0, dtype), dtype.type(-1)))  # made only once
_ROWS = 256  # of gradients at preactivations that a product adds to these: enough for registers, few for the cache


def forward(cell, x, saved, *params, spans=WHOLE):
    """Run a cell over time; see `bppsa_nb.cells.layer.forward`."""
    weights, (steps, batch, _), (states, _) = lay_out(cell, *params), x.shape, saved
    _, by_x, by_h, _ = weights
    group, work = samples_together(batch, by_h, THREADS), steps * batch * (by_x.size + by_h.size)
    began = np.ascontiguousarray(states[:, 0].swapaxes(0, 1))
    whole = *_samples(batch, x.dtype), began, steps
    in_groups(run_steps, batch, group, work, by_h, with_spans(x, spans), weights, saved, whole)
    if spans.lengths.size:
        spans.end(states)


def backward(cell, weights, x, saved, grad_output, local_grads, inputs, spans=WHOLE):
    """Return the gradients of a layer's parameters, one after the other; at its input, if `inputs` asks for it; at h_0.

    This is a sweep along the layer's chain, and what `bppsa_nb.cells.layer` makes of it, in one go. Gradients at
    preactivations stay in the cache: after every few steps back, they are multiplied into those of the parameters, and
    forgotten. From memory, only what the forward pass left is read, and that once. `weights` are weight_ih and
    weight_hh, `saved` states and what is kept. Loss terms enter at all states but the first, or at h only:
    `local_grads` is [shape=(T, B, S H or H)] or None, and its last one is part of `grad_output` [shape=(B, S H)]: of
    each sample, where `spans` say how long it is.
    Of samples that are several sequences, `grad_output` and gradients at initial states are [shape=(n, S H)].
    """
    new = np.zeros if spans.lengths.size else np.empty
    ends, several = grad_output, spans.places.size
    grad_output = ends[spans.final] if several else ends
    at_input, at_start = new(x.shape, x.dtype) if inputs else x[:0], np.empty(grad_output.shape, x.dtype)
    at_begin = np.empty(ends.shape, x.dtype) if several else at_start
    saved = x, spans.before(saved[0]) if spans.resets.size else saved[0], *saved
    (weight_ih, weight_hh), (steps, batch, width), size = weights, x.shape, weights[1].shape[1]
    local = np.empty((0, 1, 1, 1), x.dtype)
    if local_grads is not None:
        by_state = local_grads.reshape(steps, batch, local_grads.shape[2] // size, size).transpose(2, 0, 1, 3)
        local = np.ascontiguousarray(by_state)
    gradients = grad_output, local, at_input, at_start, ends, at_begin
    weights_h = panels(weight_hh.reshape(-1, size, size))
    weights_x = weights_h[:, :0]
    if inputs:
        by_gate = weight_ih.reshape(-1, size, width)
        if cell.split:  # as preactivations come
            by_gate = np.concatenate([by_gate[-cell.split :], by_gate[: -cell.split]])
        weights_x = panels(by_gate)
    group = samples_together(batch, weight_hh)
    groups = -(-batch // group)
    added = len(weight_ih) + len(weight_hh) + size * len(cell.vectors)
    totals = np.zeros((groups, weight_ih.size + weight_hh.size + added), x.dtype)
    work = steps * batch * (weight_ih.size + weight_hh.size)
    parameters = table_of(cell, x.dtype), weights_x, weights_h, totals
    in_groups(_back, batch, group, work, weights_h, saved, parameters, gradients, spans[:2])
    total = totals[0] if groups == 1 else np.add.reduce(totals)  # in the order of the groups, whichever core had them
    return total, at_input if inputs else None, at_begin


@compiled
def _back(size_of_group, product, saved, parameters, gradients, spans, first, last):
    """Go back with groups first ... last - 1 of samples."""
    x, began, states = saved[0], saved[1], saved[2]  # the compiler unpacks four at once by way of twice the code
    kept, cell, weights_x = saved[3], parameters[0], parameters[1]
    weights_h, totals = parameters[2], parameters[3]
    grad_output, local = gradients[0], gradients[1]
    at_input, at_start = gradients[2], gradients[3]
    ends, at_begin = gradients[4], gradients[5]
    (steps, batch, width), (resets, lengths) = x.shape, spans
    num_states, size, state = states.shape[0], states.shape[3], batch * states.shape[3]
    preacts, split, carry, gates, of_h = cell[PREACTS], cell[SPLIT], cell[CARRY], cell[GATES], weights_h.shape[1]
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
                if of_h:
                    sizes, places = (of_h, samples, size), (split * most * size + there, 0, 0)
                    multiply(product, grad_preacts, weights_h, grads, sizes, places, t)
                else:
                    clear(grads, n)
                if carry:
                    add(grads, past, n)
                for s in range(1, num_states):
                    copy(pointer(past, (s - 1 + carry) * n), pointer(grads, s * n), n)
                if resets.size:
                    _leave(resets, t, b0, grads, ends, at_begin)
                for s in range(len(local) if t > 0 else 0):
                    add(pointer(grads, s * n), pointer(local, (s * steps - 1) * state + here), n)
                if lengths.size:
                    _by_states(lengths, grad_output, b0, grads, t)
                if at_input.size:
                    sizes, places = (gates, samples, size), (there, 0, (t * batch + b0) * width)
                    multiply(product, grad_preacts, weights_x, at_input, sizes, places, 0)
            for k in range(preacts):
                for s in range(end - start):
                    add(pointer(biases_at, k * n), pointer(grad_preacts, k * most * size + s * n), n)
            seen = pointer(x, (start * batch + b0) * width), pointer(began, (start * batch + b0) * size)
            block = 0, width, batch, samples, end - start
            _add_weights(product, grad_preacts, seen, scratch, block, (gates, split, of_h), total)
        for s in range(num_states):
            there = pointer(at_start, (b0 * num_states + s) * size)
            copy_rows(pointer(grads, s * n), size, there, num_states * size, size, samples)
        sums = pointer(total, (gates * width + of_h * size) * size)
        _add_biases(biases_at, 0, samples, preacts, (gates, split, of_h), sums)
        restore(before)
    return True


@inline
def _leave(resets, t, begin, grads, ends, at_begin):
    """Have nothing go back past where some samples begin anew, but keep it, and go on from where others end."""
    num_states, samples, size = grads.shape
    for b in range(samples):
        number = resets[t, begin + b]
        for s in range(num_states if number else 0):
            here, place = pointer(grads, (s * samples + b) * size), ((number - 1) * num_states + s) * size
            if number > 0:
                copy(here, pointer(at_begin, place), size)
            if number > 1 and t > 0:
                copy(pointer(ends, place - num_states * size), here, size)
            else:
                clear(here, size)


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


def chain(cell, weight_hh, states, kept, spans=WHOLE):
    """Take the transposed Jacobians of a layer's states for a chain; see `bppsa_nb.cells.layer.chain`."""
    S, steps, batch, size = states[:, 1:].shape
    slopes = np.empty((cell.preacts, steps, batch, S, size), states.dtype)
    carry = np.zeros((S if cell.carries else 0, *slopes.shape[1:]), states.dtype)
    _share_pieces(_derive, cell, states, kept, spans, slopes, carry[S - cell.carries :])
    return cell.chain(weight_hh, slopes[cell.split :][: cell.gates], carry if cell.carries else None, spans)


def preact_gradients(cell, states, kept, grad_states, spans=WHOLE):
    """Compute gradients at the preactivations [shape=(P, T, B, H)]; see `bppsa_nb.cells.layer.preact_gradients`."""
    steps, batch, size = states[0, 1:].shape
    grad_preacts = np.empty((cell.preacts, steps, batch, size), states.dtype)
    grads = grad_states[1:].reshape(steps * batch * cell.states, size)
    _share_pieces(_go_back, cell, states, kept, spans, grads, grad_preacts)
    return grad_preacts


def _share_pieces(function, cell, states, kept, spans, *arrays):
    """Have compiled code go once over all steps and samples, by pieces: of a cell with two states, sample by sample."""
    count = states[0, 1:].size
    piece = _PIECE if cell.states == 1 else states.shape[3]
    arrays = table_of(cell, states.dtype), piece, (spans.before(states), states), kept, *arrays
    parallel_for(function, -(-count // piece), *arrays, parallel=count > _THRESHOLD_NUMBERS)


@compiled
def _derive(cell, piece, states, kept, slopes, carry, first, last):
    """Go back from unit gradients at each of the states, for pieces first ... last - 1."""
    before, states = states
    (S, _, batch, size), count = states.shape, slopes[0].size // len(states)
    grads = np.empty((S, piece), states.dtype)
    for s in range(S):
        for k in range(S):
            for i in range(piece):
                grads[k, i] = k == s
        for q in range(first, last):
            start, n = q * piece, min(piece, count - q * piece)
            here, after = S * start + s * n, start + batch * size
            back(cell, grads, 0, before, start, states, after, kept, start, slopes, here, carry, here, n)
    return True


@compiled
def _go_back(cell, piece, states, kept, grads, grad_preacts, first, last):
    """Go back from gradients at the states, for pieces first ... last - 1."""
    before, states = states
    (S, _, batch, size), count = states.shape, grad_preacts[0].size
    past = np.empty((S, piece), states.dtype)
    mode = flush()
    for q in range(first, last):
        start, n = q * piece, min(piece, count - q * piece)
        after = start + batch * size
        back(cell, grads, S * start, before, start, states, after, kept, start, grad_preacts, start, past, 0, n)
    restore(mode)
    return True


def parameter_gradients(cell, x, states, grad_preacts, spans=WHOLE):
    """Sum up the gradients of a layer's parameters; counterpart of `bppsa_nb.cells.layer.parameter_gradients`."""
    (steps, batch, inputs), size, gates = x.shape, states.shape[3], cell.gates
    of_h = 0 if cell.elementwise else gates
    rows, block = steps * batch, max(1, _ROWS // batch) * batch
    parts = max(1, min(_PARTS, -(-rows // block)))  # not as many as there are threads: sums shall not depend on those
    totals = np.zeros((parts, (gates * (inputs + 1) + of_h * (size + 1)) * size), x.dtype)
    seen = x.reshape(1, rows, inputs), spans.before(states[:1])[0, :steps].reshape(1, rows, size)
    at = grad_preacts.reshape(cell.preacts, rows, size)
    arrays = product(x.dtype), (gates, cell.split, of_h), seen, at, block, totals
    parallel_for(_add_up, parts, *arrays, parallel=rows * (inputs + size) * gates * size > THRESHOLD)
    return np.concatenate([totals.sum(axis=0), grad_preacts[gates + cell.split :].sum(axis=(1, 2)).reshape(-1)])


@compiled
def _add_up(product, gates, seen, grad_preacts, block, totals, first, last):
    """Add up for parts first ... last - 1 of all rows, block after block."""
    (x, hidden), (_, rows, size), width = seen, grad_preacts.shape, seen[0].shape[2]
    blocks, parts = (rows + block - 1) // block, len(totals)
    scratch = buffer(x, (max(width, size) * (size + 2 * block),))
    for part in range(first, last):
        total = pointer(totals, part * totals.shape[1])
        for start in range(blocks * part // parts * block, blocks * (part + 1) // parts * block, block):
            n = min(start + block, rows) - start
            here = pointer(x, start * width), pointer(hidden, start * size)
            _add_weights(product, grad_preacts, here, scratch, (start, width, 0, n, 1), gates, total)
            biases = pointer(total, (gates[0] * width + gates[2] * size) * size)
            _add_biases(grad_preacts, start, n, gates[0] + gates[1], gates, biases)
    return True


@inline
def _add_weights(product, grad_preacts, seen, scratch, block, gates, total):
    """Add to the gradients of both weights, which come one after the other: ``at.T @ seen`` for each gate.

    `at` are rows of `grad_preacts` [shape=(P, rows or more, H)], from one on. `seen` are inputs and states, the first
    of `samples` rows, side by side, of some steps, `batch` rows apart. `scratch` holds a product, and rows by panels.
    """
    (start, inputs, batch, samples, steps), (count, split, of_h), (_, most, size) = block, gates, grad_preacts.shape
    n = steps * samples
    for which in range(2 if of_h else 1):
        width, first = size if which else inputs, seen[1] if which else seen[0]
        panel, narrow = panel_width(width, grad_preacts.itemsize), width < NARROW
        found = shaped(scratch, 0, (width, size) if narrow else (size, width))
        rows = shaped(scratch, size * width, ((width + panel - 1) // panel, 1, n, panel))
        for p in range(len(rows)):
            for s in range(steps):
                here, there = s * batch * width + min(p * panel, width - panel), (p * n + s * samples) * panel
                copy_rows(pointer(first, here), width, pointer(rows, there), panel, panel, samples)
        for k in range(count):
            at = ((k + split if which else (k + split) % count) * most + start) * size
            if narrow:  # few columns would leave registers empty
                multiply_T(product, rows, grad_preacts, found, (1, width, n), (0, at, 0), 0)
                for i in range(size):
                    for j in range(width):
                        total[i * width + j] += found[j, i]
            else:
                multiply_T(product, grad_preacts, rows, found, (1, size, n), (at, 0, 0), 0)
                add(total, found, size * width)
            total = pointer(total, size * width)


@inline
def _add_biases(grad_preacts, start, count, preacts, gates, biases):
    """Add rows of gradients at some preactivations [shape=(P, rows, H)] to those of both biases, and of vectors."""
    (gates, split, of_h), (_, most, size) = gates, grad_preacts.shape
    for k in range(preacts):
        for b in range(start, start + count):
            terms = pointer(grad_preacts, (k * most + b) * size)
            if k < gates:
                add(pointer(biases, (k - split) % gates * size), terms, size)
            if k >= gates + split or (k >= split and of_h):
                add(pointer(biases, (k - split + of_h) * size), terms, size)
