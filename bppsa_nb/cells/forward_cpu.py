"""A layer's loop over time compiled for CPUs, from its input to its states.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs the cell's equations once over
all their numbers. The loop is compiled once for all cells, and given the address of those (`cell_cpu`).
"""

import numpy as np

from bppsa_nb.cells.cell_cpu import step
from bppsa_nb.cells.samples_cpu import gather, longest, repeated, scatter, steps_of_block
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.tiles import multiply, multiply_in_turn
from bppsa_nb.machine.views import clear, copy, flat_view


@compiled
def run_steps(group, product, x, weights, saved, spans, first, last):
    """Run groups first ... last - 1 of samples: together, or each as long as its longest."""
    most = group if spans[1].size else (last - first) * group
    for begin in range(first * group, min(last * group, x.shape[1]), most):
        _run_samples(product, x, weights, saved, spans, begin, min(most, x.shape[1] - begin))
    return True


@inline
def _run_samples(product, x, weights, saved, spans, begin, count):
    """Run samples begin ... begin + count - 1."""
    (states, kept), (cell, weights_x, weights_h, bias), inputs = saved, weights, x.shape[2]
    size, gates, num_states, num_kept = states.shape[3], weights_h.shape[1], len(states), len(kept)
    n, together = count * size, steps_of_block(count * size, num_states + num_kept)
    rows, from_x = np.empty((1, together * count, inputs), x.dtype), np.empty((gates, together * count, size), x.dtype)
    from_h, to_sums = np.empty((gates, count, size), x.dtype), repeated(bias, size, count)
    block = np.empty((num_states, together + 2, count, size), x.dtype)
    found = np.empty((num_kept, together * count, size), x.dtype)
    for k in range(num_states):
        gather(states[k], begin, count, 0, 1, block[k])
    total = longest(spans, len(x), begin, count)
    for start in range(0, total, together):
        steps = min(together, total - start)
        gather(x, begin, count, start, steps, rows)
        for k in range(gates):
            multiply(product, rows[:, : steps * count], weights_x[:, k : k + 1], from_x[k, : steps * count])
        for s in range(steps):
            before = _place_of(spans, start + s, begin, s, block)
            for i in range(gates):
                k = gates - 1 - i if (start + s) & 1 else i
                states_before = block[0, before : before + 1]
                multiply_in_turn(product, states_before, weights_h[:, k : k + 1], from_h[k], start + s)
            here, after = s * n, (s + 1) * n
            step(cell, from_x, here, from_h, 0, to_sums, 0, block, before * n, block, after, found, here, n)
        for k in range(num_kept):
            scatter(found[k], begin, count, start, steps, kept[k])
        for k in range(num_states):
            scatter(block[k, 1:], begin, count, start + 1, steps, states[k])
            last_state = flat_view(block, (k * (together + 2) + steps) * n, n)
            copy(last_state, flat_view(block, k * (together + 2) * n, n))


@inline
def _place_of(spans, t, begin, s, block):
    """Return where the states before a step are: in place s, or where some begin anew, these with zeros, in the last.

    Their own place keeps what the step before ended with.
    """
    resets, _ = spans
    (num_states, places, count, size), any_anew = block.shape, False
    if resets.size:
        for b in range(count):
            any_anew |= resets[t, begin + b]
    if not any_anew:
        return s
    for k in range(num_states):
        for b in range(count):
            there = flat_view(block, ((k * places + s) * count + b) * size, size)
            here = flat_view(block, ((k * places + places - 1) * count + b) * size, size)
            if resets[t, begin + b]:
                clear(here)
            else:
                copy(there, here)
    return places - 1
