"""The vanilla RNN compiled for CPUs; counterpart of `bppsa_nb.cells.rnn`.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs once over all their numbers, in
a loop that the compiler vectorizes.
"""

import numpy as np

from bppsa_nb.cells.backward_cpu import backward  # noqa: F401  all of the linear scan in one go
from bppsa_nb.cells.chunked_cpu import distance, gather_rows, offsets_of, scatter_rows
from bppsa_nb.cells.layer_cpu import by_columns, gather, repeated, scatter, share_numbers, share_samples, steps_of_block
from bppsa_nb.chains.counts import CHECK_EVERY
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.elementary import tanh
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import GROUP, multiply, multiply_in_turn
from bppsa_nb.machine.views import copy, flat_view


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 9 over time; see `bppsa_nb.cells.rnn.forward`."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    hidden[0] = h0
    share_samples(run_steps, x, (by_columns(weight_ih, 1), by_columns(weight_hh, 1), bias_ih + bias_hh), hidden)
    return hidden


GATES = 0
added = np.add  # what biases add to the sum


@compiled
def run_steps(group, product, x, weights, hidden, first, last):
    """Run groups first ... last - 1 of samples."""
    (_, batch, inputs), width, (weights_x, weights_h, bias) = x.shape, hidden.shape[2], weights
    begin, count = first * group, min(last * group, batch) - first * group
    n, together = count * width, steps_of_block(count * width, 1)
    states, rows = np.empty((together + 1, count, width), x.dtype), np.empty((1, together * count, inputs), x.dtype)
    from_h, sums = np.empty((count, width), x.dtype), states.reshape((together + 1) * count, width)[count:]
    to_sum = repeated(bias, width, count)[0]
    of_h, before = flat_view(from_h, 0, n), flat_view(states, 0, n)
    gather(hidden, begin, count, 0, 1, before)
    for start in range(0, len(x), together):
        steps = min(together, len(x) - start)
        gather(x, begin, count, start, steps, rows)
        multiply(product, rows[:, : steps * count], weights_x, sums[: steps * count])
        for s in range(steps):
            multiply_in_turn(product, states[s : s + 1], weights_h, from_h, start + s)
            after = flat_view(states, (s + 1) * n, n)
            for i in range(n):
                after[i] = tanh(after[i] + to_sum[i] + of_h[i])
        scatter(sums, begin, count, start + 1, steps, hidden)
        copy(flat_view(states, steps * n, n), before)
    return True


def prepare(weight_ih, weight_hh, bias_ih, bias_hh):
    """Lay weights out as `run_chunks` takes them: by columns, and what biases add."""
    return by_columns(weight_ih, 1), by_columns(weight_hh, 1), (bias_ih + bias_hh)[None]


@compiled
def run_chunks(product, weights, saved, chunks, length, tol, first, last):
    """Run groups of chunks, each until all of it met what was there; see `bppsa_nb.cells.chunked_cpu.Chunks`."""
    (weights_x, weights_h, added), (x, indices, began, found) = weights, chunks
    batch, inputs, width, after = x.shape[1], x.shape[2], began.shape[2], saved[0][1:]
    for group in range(first, last):
        offsets = offsets_of(indices, group * GROUP, min(GROUP, len(indices) - group * GROUP), length, batch)
        count, n, most = len(offsets), len(offsets) * width, CHECK_EVERY * len(offsets)
        rows, from_x = np.empty((1, most, inputs), x.dtype), np.empty((most, width), x.dtype)
        states, from_h = np.empty((1, count, width), x.dtype), np.empty((count, width), x.dtype)
        state, to_sum, of_h = flat_view(states, 0, n), flat_view(added, 0, n), flat_view(from_h, 0, n)
        gather_rows(began, indices[group * GROUP : group * GROUP + count], 0, states[0])
        look, gap = length if tol < 0 else min(CHECK_EVERY, length), x.dtype.type(0)
        for start in range(0, length, CHECK_EVERY):
            stop = min(start + CHECK_EVERY, length)
            for s in range(start, stop):
                gather_rows(x, offsets, s * batch, rows[0, (s - start) * count : (s - start + 1) * count])
            here = (stop - start) * count
            multiply(product, rows[:, :here], weights_x, from_x[:here])
            for s in range(start, stop):
                multiply(product, states, weights_h, from_h)
                of_x = flat_view(from_x, (s - start) * n, n)
                for i in range(n):
                    state[i] = tanh(of_x[i] + to_sum[i] + of_h[i])
                if s + 1 == look and tol >= 0:
                    gap = distance(states[0], offsets, s * batch, after)
                scatter_rows(states[0], offsets, s * batch, after)
            if stop == look:
                if gap <= tol:
                    break
                look = min(2 * look + CHECK_EVERY, length)
        found[group, 0], found[group, 1] = stop, gap if gap <= tol else 0
    return True


def chain(weight_hh, hidden):
    """Take the transposed Jacobians for a chain of one weight; see `bppsa_nb.cells.rnn.chain`."""
    slopes = np.empty((1, *hidden[1:].shape), hidden.dtype)
    share_numbers(_slopes, hidden[1:].reshape(-1), slopes.reshape(-1))
    return StructuredChain.made(weight_hh[None], slopes)


@compiled
def _slopes(hidden, slopes, first, last):
    one = hidden.dtype.type(1)
    for i in range(first, last):
        slopes[i] = one - hidden[i] * hidden[i]
    return True


def gate_gradients(chain, hidden, grad_hidden):
    """Compute pre-activation gradients; see `bppsa_nb.cells.rnn.gate_gradients`."""
    at = np.empty_like(chain.slopes[0])
    share_numbers(_gate_gradients, grad_hidden[1:].reshape(-1), chain.slopes.reshape(-1), at.reshape(-1))
    return [at], [at]


@compiled
def _gate_gradients(grad, slopes, at, first, last):
    before = flush()
    for i in range(first, last):
        at[i] = slopes[i] * grad[i]
    restore(before)
    return True
