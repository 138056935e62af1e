"""A layer of any cell compiled for CPUs; counterpart of `bppsa_nb.cells.layer`."""

import numpy as np

from bppsa_nb.cells import layer
from bppsa_nb.cells.backward_cpu import backward  # noqa: F401  all of the linear scan in one go
from bppsa_nb.cells.cell_cpu import back, table_of
from bppsa_nb.cells.forward_cpu import run_steps
from bppsa_nb.cells.layer import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.cells.samples_cpu import add_biases, add_weights, biases, share_samples
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import panels, product
from bppsa_nb.machine.views import pointer, room
from bppsa_nb.machine.workers import parallel_for

_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use
_THRESHOLD_NUMBERS = 2**18  # the same for numbers that are read and written once
_PIECE = 2**12  # numbers that go together then
_PARTS = 8  # sums of parameter gradients that are added up apart, for as many workers at most
_ROWS = 256  # of a product that adds to them: enough for registers to last, and small enough to stay in the cache


def forward(cell, x, saved, weight_ih, weight_hh, *added, spans=WHOLE):
    """Run a cell over time; see `bppsa_nb.cells.layer.forward`."""
    size = weight_hh.shape[1]
    weights_x = panels(weight_ih.reshape(cell.gates, size, weight_ih.shape[1]).mT)  # by columns, as products take them
    weights_h = panels(weight_hh.reshape(cell.gates, size, size).mT)
    weights = table_of(cell, x.dtype), weights_x, weights_h, biases(cell, *added)
    share_samples(run_steps, x, weights, saved, tuple(spans) if spans.resets.size else None)
    if spans.lengths.size:
        spans.end(saved[0])


def chain(cell, weight_hh, states, kept, spans=WHOLE):
    """Take the transposed Jacobians of a layer's states for a chain; see `bppsa_nb.cells.layer.chain`."""
    S, (steps, batch, size) = cell.states, kept_shape(states)
    slopes = np.empty((cell.sums, steps, batch, S, size), states.dtype)
    carry = np.zeros((S if cell.carries else 0, *slopes.shape[1:]), states.dtype)
    _share_pieces(_derive, cell, states, kept, spans, slopes, carry[S - cell.carries :])
    return layer.chain_of(cell, weight_hh, slopes[cell.split :][: cell.gates], carry if cell.carries else None, spans)


def sum_gradients(cell, states, kept, grad_states, spans=WHOLE):
    """Compute gradients at the sums [shape=(P, T, B, H)]; see `bppsa_nb.cells.layer.sum_gradients`."""
    steps, batch, size = kept_shape(states)
    at_sums = np.empty((cell.sums, steps, batch, size), states.dtype)
    grads = grad_states[1:].reshape(steps * batch * cell.states, size)
    _share_pieces(_go_back, cell, states, kept, spans, grads, at_sums)
    return at_sums


def kept_shape(states):
    """Return T, B and H of a layer's states."""
    return states.shape[1] - 1, *states.shape[2:]


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
def _go_back(cell, piece, states, kept, grads, at_sums, first, last):
    """Go back from gradients at the states, for pieces first ... last - 1."""
    before, states = states
    (S, _, batch, size), count = states.shape, at_sums[0].size
    past = np.empty((S, piece), states.dtype)
    mode = flush()
    for q in range(first, last):
        start, n = q * piece, min(piece, count - q * piece)
        after = start + batch * size
        back(cell, grads, S * start, before, start, states, after, kept, start, at_sums, start, past, 0, n)
    restore(mode)
    return True


def parameter_gradients(cell, x, states, at_sums, spans=WHOLE):
    """Sum up the gradients of a layer's parameters; counterpart of `bppsa_nb.cells.layer.parameter_gradients`."""
    (steps, batch, inputs), size, gates = x.shape, states.shape[3], cell.gates
    rows, block = steps * batch, max(1, _ROWS // batch) * batch
    parts = max(1, min(_PARTS, -(-rows // block)))  # not as many as there are threads: sums shall not depend on those
    totals = np.zeros((parts, gates * (inputs + size + 2) * size), x.dtype)
    seen = x.reshape(1, rows, inputs), spans.before(states[:1])[0, :steps].reshape(1, rows, size)
    arrays = product(x.dtype), (gates, cell.split), seen, at_sums.reshape(cell.sums, rows, size), block, totals
    parallel_for(_add_up, parts, *arrays, parallel=rows * (inputs + size) * gates * size > _THRESHOLD)
    return np.concatenate([totals.sum(axis=0), at_sums[gates + cell.split :].sum(axis=(1, 2)).reshape(-1)])


@compiled
def _add_up(product, gates, seen, at_sums, block, totals, first, last):
    """Add up for parts first ... last - 1 of all rows, block after block."""
    (x, hidden), (_, rows, size), width = seen, at_sums.shape, seen[0].shape[2]
    blocks, parts = (rows + block - 1) // block, len(totals)
    scratch = room(x, (max(width, size) * (size + 2 * block),))
    for part in range(first, last):
        total = pointer(totals, part * totals.shape[1])
        for start in range(blocks * part // parts * block, blocks * (part + 1) // parts * block, block):
            n = min(start + block, rows) - start
            here = pointer(x, start * width), pointer(hidden, start * size)
            add_weights(product, at_sums, here, scratch, (start, width, 0, n, 1), gates, total)
            add_biases(at_sums, start, n, gates[0] + gates[1], gates, pointer(total, gates[0] * (width + size) * size))
    return True
