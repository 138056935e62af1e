"""A layer of any cell compiled for CPUs; counterpart of `bppsa_nb.cells.layer`.

Its time loop is that of `bppsa_nb.cells.chunked_cpu`: samples are chunks of all steps.
"""

import numpy as np

from bppsa_nb.cells.backward_cpu import backward  # noqa: F401  all of the linear scan in one go
from bppsa_nb.cells.cell_cpu import back, table_of
from bppsa_nb.cells.chunked_cpu import run_steps
from bppsa_nb.cells.layer import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.cells.samples_cpu import THRESHOLD, add_biases, add_weights, in_groups, lay_out, samples_together
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import product
from bppsa_nb.machine.views import buffer, pointer
from bppsa_nb.machine.workers import parallel_for

_THRESHOLD_NUMBERS = 2**18  # that one core has read and written once before a second one is of any use
_PIECE = 2**12  # numbers that go together then
_PARTS = 8  # sums of parameter gradients, each by itself, for as many workers at most
_ROWS = 256  # of a product that adds to them: enough for registers to last, and small enough to stay in the cache


def forward(cell, x, saved, *params, spans=WHOLE):
    """Run a cell over time; see `bppsa_nb.cells.layer.forward`."""
    weights, (steps, batch, _), (states, _) = lay_out(cell, *params), x.shape, saved
    _, by_x, by_h, _ = weights
    group, work = samples_together(batch, by_h), steps * batch * (by_x.size + by_h.size)
    began = np.ascontiguousarray(np.moveaxis(states[:, 0], 0, 1))
    whole = np.arange(batch), began, np.zeros((0, 2)), steps, x.dtype.type(-1)
    in_groups(run_steps, batch, group, work, by_h, x, weights, saved, spans.flat, whole)
    spans.end(states)


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
