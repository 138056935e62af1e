"""A layer of any cell compiled for CPUs; counterpart of `bppsa_nb.cells.layer`.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs the cell's equations once over
all their numbers. The loop is compiled once for all cells, and given the address of those (`cell_cpu`).
"""

import numpy as np

from bppsa_nb.cells.backward_cpu import backward  # noqa: F401  all of the linear scan in one go
from bppsa_nb.cells.cell_cpu import back, step, table_of
from bppsa_nb.cells.layer import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.cells.samples_cpu import THRESHOLD, add_biases, add_weights, in_groups, lay_out, longest, samples_together
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import multiply, product
from bppsa_nb.machine.views import buffer, clear, copy, copy_rows, pointer
from bppsa_nb.machine.workers import parallel_for

_STEPS = 32  # that a group of samples goes before it writes to memory that others write to as well
_BLOCK = 2**15  # numbers of these steps, at the most: the cache keeps so many
_THRESHOLD_NUMBERS = 2**18  # that one core has read and written once before a second one is of any use
_PIECE = 2**12  # numbers that go together then
_PARTS = 8  # sums of parameter gradients, each by itself, for as many workers at most
_ROWS = 256  # of a product that adds to them: enough for registers to last, and small enough to stay in the cache


def forward(cell, x, saved, *params, spans=WHOLE):
    """Run a cell over time; see `bppsa_nb.cells.layer.forward`."""
    weights, (steps, batch, _) = lay_out(cell, *params), x.shape
    _, by_x, by_h, _ = weights
    group, work = samples_together(batch, by_h), steps * batch * (by_x.size + by_h.size)
    # Calls of compiled code know plain tuples sooner; None costs no code.
    together = tuple(spans) if spans.resets.size else None
    in_groups(run_steps, batch, group, work, by_h, x, weights, saved, together)
    if spans.lengths.size:
        spans.end(saved[0])


@compiled
def run_steps(group, product, x, weights, saved, spans, first, last):
    """Run groups first ... last - 1 of samples: together, or each as long as its longest."""
    cell, weights_x = weights[0], weights[1]
    weights_h, bias = weights[2], weights[3]
    states, kept = saved[0], saved[1]
    total, batch, inputs = x.shape
    num_states, num_kept, gates, size = states.shape[0], kept.shape[0], weights_h.shape[1], states.shape[3]
    most = group if spans is not None and spans[1].size else (last - first) * group
    for begin in range(first * group, min(last * group, batch), most):
        count = min(most, batch - begin)
        n = count * size
        together = max(1, min(_STEPS, _BLOCK // ((num_states + num_kept) * n)))
        rows, from_x = buffer(x, (1, together * count, inputs)), buffer(x, (gates, together * count, size))
        from_h, to_preacts = buffer(x, (gates, count, size)), buffer(x, (bias.size // size, count, size))
        block = buffer(x, (num_states, (together + 2) * count, size))
        found = buffer(x, (num_kept, together * count, size))
        for k in range(bias.size // size):
            copy_rows(pointer(bias, k * size), 0, pointer(to_preacts, k * n), size, size, count)
        here, apart = pointer(states, begin * size), (total + 1) * batch * size
        copy_rows(here, apart, block, (together + 2) * n, n, num_states)
        end = total if spans is None else longest(spans, total, begin, count)
        for start in range(0, end, together):
            steps = min(together, end - start)
            here, n_x = (start * batch + begin) * inputs, count * inputs
            copy_rows(pointer(x, here), batch * inputs, rows, n_x, n_x, steps)
            for k in range(gates):
                places = 0, k * inputs * weights_x.shape[3], k * together * n
                multiply(product, rows, weights_x, from_x, (1, steps * count, inputs), places, 0)
            for s in range(steps):
                before = s if spans is None else _place_of(spans, start + s, begin, s, block, count)
                for i in range(gates):
                    k = gates - 1 - i if (start + s) & 1 else i
                    places = before * n, k * size * weights_h.shape[3], k * n
                    multiply(product, block, weights_h, from_h, (1, count, size), places, start + s)
                after = (s + 1) * n
                step(cell, from_x, s * n, from_h, 0, to_preacts, 0, block, before * n, block, after, found, s * n, n)
            for k in range(num_kept):
                there = pointer(kept, ((k * total + start) * batch + begin) * size)
                copy_rows(pointer(found, k * together * n), n, there, batch * size, n, steps)
            for k in range(num_states):
                here, there = k * (together + 2) * n, ((k * (total + 1) + start + 1) * batch + begin) * size
                copy_rows(pointer(block, here + n), n, pointer(states, there), batch * size, n, steps)
                copy(pointer(block, here + steps * n), pointer(block, here), n)
    return True


@inline
def _place_of(spans, t, begin, s, block, count):
    """Return where the states before a step are: in place s, or where some begin anew, these with zeros, in the last.

    Their own place keeps what the step before ended with.
    """
    resets, _ = spans
    (num_states, rows, size), any_anew = block.shape, False
    for b in range(count):
        any_anew |= resets[t, begin + b]
    if not any_anew:
        return s
    for k in range(num_states):
        for b in range(count):
            here = pointer(block, (k * rows + rows - count + b) * size)
            if resets[t, begin + b]:
                clear(here, size)
            else:
                copy(pointer(block, (k * rows + s * count + b) * size), here, size)
    return rows // count - 1


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
    rows, block = steps * batch, max(1, _ROWS // batch) * batch
    parts = max(1, min(_PARTS, -(-rows // block)))  # not as many as there are threads: sums shall not depend on those
    totals = np.zeros((parts, gates * (inputs + size + 2) * size), x.dtype)
    seen = x.reshape(1, rows, inputs), spans.before(states[:1])[0, :steps].reshape(1, rows, size)
    arrays = product(x.dtype), (gates, cell.split), seen, grad_preacts.reshape(cell.preacts, rows, size), block, totals
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
            add_weights(product, grad_preacts, here, scratch, (start, width, 0, n, 1), gates, total)
            biases = pointer(total, gates[0] * (width + size) * size)
            add_biases(grad_preacts, start, n, gates[0] + gates[1], gates, biases)
    return True
