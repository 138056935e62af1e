"""What layers of any cell share, compiled for CPUs; twin of `bppsa_nb.cells.layer`.

Samples never wait for each other, so cores share out groups of them; what waits for no other step is computed for all
steps at once, and shared out by time.

Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C that arrives while Numba wraps them up
turns into a SystemError.
"""

import numpy as np

from bppsa_nb.cells.layer import input_gradients  # noqa: F401  NumPy's products serve compiled cells, too
from bppsa_nb.machine.compiling import njit
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.machine.tiles import GROUP, product
from bppsa_nb.machine.views import add, numbers
from bppsa_nb.machine.workers import THREADS, one_blas_thread, share_out

keep_freed_memory()

# Without the "numpy" error model every division would carry a branch (ZeroDivisionError), and its loop would
# not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and infinity keep their meaning.
compiled = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)

_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use
_WORTH_NUMBERS = 2**18  # the same for numbers that are read and written once
_CACHE = 2**18  # bytes of weights that a core surely keeps close by
STEPS = 32  # whose inputs are multiplied at once: few enough for what they add to stay in the cache
_PARTS = 8  # sums of parameter gradients that are added up apart, for as many workers at most
_ROWS = 256  # of a product that adds to them: enough for BLAS, and small enough to stay in the cache


def share_samples(function, sums, x, weight_ih, weight_hh, bias, *filled):
    """Have a compiled forward pass go through time, by groups of samples where that is worth it."""
    (steps, batch, _), size = x.shape, weight_hh.shape[1]
    by_x, by_h = by_columns(weight_ih, sums), by_columns(weight_hh, sums)
    added = np.tile(bias.reshape(-1, size), batch)  # repeated for all samples
    group = group_size(batch, by_x.nbytes + by_h.nbytes)
    arrays = product(x.dtype), group, x, by_x, by_h, added, *filled
    share_out(function, -(-batch // group), *arrays, worth=steps * batch * (by_x.size + by_h.size) > _WORTH)


def group_size(batch, weights):
    """Return how many samples go through time together, if the cell's weights have so many bytes."""
    # Weights that a core's own cache does not hold come from a slower one at every step, once for each group.
    return GROUP if weights <= _CACHE else -(-batch // (THREADS * GROUP)) * GROUP


def by_columns(weight, sums):
    """Lay a cell's weights (sums * H, J) out as `machine.tiles.multiply` takes them: (sums, J, H)."""
    return np.ascontiguousarray(weight.reshape(sums, len(weight) // sums, -1).transpose(0, 2, 1))


def share_numbers(function, array, *arrays):
    """Have compiled code go once over arrays, all steps and samples at once, in pieces where that is worth it."""
    share_out(function, array.size, array, *arrays, worth=array.size > _WORTH_NUMBERS)


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; twin of `bppsa_nb.cells.layer.parameter_gradients`."""
    (steps, batch, inputs), size, count = x.shape, hidden.shape[2], len(from_x)
    rows, block = steps * batch, max(1, _ROWS // batch) * batch
    parts = max(1, min(_PARTS, -(-rows // block)))  # not as many as there are threads: sums shall not depend on those
    shapes = (count, size * inputs), (count, size * size), (2 * count, size)
    sums = [np.zeros((parts, *shape), x.dtype) for shape in shapes]
    seen = x.reshape(rows, inputs), hidden[:steps].reshape(rows, size)
    at_sums = tuple(at.reshape(rows, size) for at in (*from_x, *from_h))
    with one_blas_thread():
        share_out(_add_up, parts, *seen, at_sums, block, *sums, worth=rows * (inputs + size) * count * size > _WORTH)
    by_x, by_h, biases = (found.sum(axis=0) for found in sums)
    return {
        "weight_ih": by_x.reshape(-1, inputs),
        "weight_hh": by_h.reshape(-1, size),
        "bias_ih": biases[:count].reshape(-1),
        "bias_hh": biases[count:].reshape(-1),
    }


@compiled
def _add_up(x, hidden, at_sums, block, by_x, by_h, biases, first, last):
    """Add up for parts first ... last - 1 of all rows, block after block."""
    (rows, size), count, parts = at_sums[0].shape, len(at_sums) // 2, len(biases)
    blocks = (rows + block - 1) // block
    found_x, found_h = np.empty((size, x.shape[1]), x.dtype), np.empty((size, size), x.dtype)
    for part in range(first, last):
        for start in range(blocks * part // parts * block, blocks * (part + 1) // parts * block, block):
            stop = min(start + block, rows)
            for k in range(2 * count):
                if k < count:
                    seen, found, total = x, found_x, by_x[part, k]
                else:
                    seen, found, total = hidden, found_h, by_h[part, k - count]
                at = at_sums[k][start:stop]
                np.dot(at.T, seen[start:stop], found)
                add(total, numbers(found, 0, found.size))
                for i in range(len(at)):
                    add(biases[part, k], at[i])
    return True
