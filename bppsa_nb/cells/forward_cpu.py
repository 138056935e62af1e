"""A layer's loop over time compiled for CPUs, from its input to its states.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs the cell's equations once over
all their numbers. The loop is compiled once for all cells, and given the address of those (`cell_cpu`).
"""

import numpy as np

from bppsa_nb.cells.cell_cpu import step
from bppsa_nb.cells.samples_cpu import gather, repeated, scatter, steps_of_block
from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.tiles import multiply, multiply_in_turn
from bppsa_nb.machine.views import copy, flat_view


@compiled
def run_steps(group, product, x, weights, states, kept, first, last):
    """Run groups first ... last - 1 of samples."""
    (_, batch, inputs), size, (cell, weights_x, weights_h, bias) = x.shape, states.shape[3], weights
    gates, num_states, num_kept = weights_h.shape[1], len(states), len(kept)
    begin, count = first * group, min(last * group, batch) - first * group
    n, together = count * size, steps_of_block(count * size, num_states + num_kept)
    rows, from_x = np.empty((1, together * count, inputs), x.dtype), np.empty((gates, together * count, size), x.dtype)
    from_h, to_sums = np.empty((gates, count, size), x.dtype), repeated(bias, size, count)
    block = np.empty((num_states, together + 1, count, size), x.dtype)
    found = np.empty((num_kept, together * count, size), x.dtype)
    for k in range(num_states):
        gather(states[k], begin, count, 0, 1, block[k])
    for start in range(0, len(x), together):
        steps = min(together, len(x) - start)
        gather(x, begin, count, start, steps, rows)
        for k in range(gates):
            multiply(product, rows[:, : steps * count], weights_x[:, k : k + 1], from_x[k, : steps * count])
        for s in range(steps):
            for i in range(gates):
                k = gates - 1 - i if (start + s) & 1 else i
                multiply_in_turn(product, block[0, s : s + 1], weights_h[:, k : k + 1], from_h[k], start + s)
            here, after = s * n, (s + 1) * n
            step(cell, from_x, here, from_h, 0, to_sums, 0, block, here, block, after, found, here, n)
        for k in range(num_kept):
            scatter(found[k], begin, count, start, steps, kept[k])
        for k in range(num_states):
            scatter(block[k, 1:], begin, count, start + 1, steps, states[k])
            last_state = flat_view(block, (k * (together + 1) + steps) * n, n)
            copy(last_state, flat_view(block, k * (together + 1) * n, n))
    return True
