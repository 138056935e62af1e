"""A layer's loop over time compiled for CPUs, from its input to its states.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs the cell's equations once over
all their numbers. The loop is compiled once for all cells, and given the address of those (`cell_cpu`).
"""

from bppsa_nb.cells.cell_cpu import step
from bppsa_nb.cells.samples_cpu import longest
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.tiles import multiply
from bppsa_nb.machine.views import clear, copy, copy_rows, pointer, room

_STEPS = 32  # that a group of samples goes before it writes to memory that others write to as well
_BLOCK = 2**15  # numbers of these steps, at the most: the cache keeps so many


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
        rows, from_x = room(x, (1, together * count, inputs)), room(x, (gates, together * count, size))
        from_h, to_sums = room(x, (gates, count, size)), room(x, (bias.size // size, count, size))
        block = room(x, (num_states, (together + 2) * count, size))
        found = room(x, (num_kept, together * count, size))
        for k in range(bias.size // size):
            copy_rows(pointer(bias, k * size), 0, pointer(to_sums, k * n), size, size, count)
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
                step(cell, from_x, s * n, from_h, 0, to_sums, 0, block, before * n, block, after, found, s * n, n)
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
