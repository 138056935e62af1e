"""The GRU compiled for CPUs; counterpart of `bppsa_nb.cells.gru`.

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
from bppsa_nb.machine.elementary import sigmoid, tanh
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import GROUP, multiply, multiply_in_turn
from bppsa_nb.machine.views import copy, flat_view


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run Equation 10 over time; see `bppsa_nb.cells.gru.forward`."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    gates = np.empty((4, len(x), *h0.shape), x.dtype)
    hidden[0] = h0
    weights = by_columns(weight_ih, 3), by_columns(weight_hh, 3), added(bias_ih, bias_hh)
    share_samples(run_steps, x, weights, hidden, gates)
    return hidden, gates


GATES = 4


def added(bias_ih, bias_hh):
    """Return what biases add to R, Z, N and M."""
    size = len(bias_hh) // 3
    found = np.empty(4 * size, bias_hh.dtype)
    found[: 3 * size], found[3 * size :] = bias_ih, bias_hh[2 * size :]
    found[: 2 * size] += bias_hh[: 2 * size]
    return found


@compiled
def run_steps(group, product, x, weights, hidden, gates, first, last):
    """Run groups first ... last - 1 of samples."""
    (_, batch, inputs), width, (weights_x, weights_h, bias) = x.shape, hidden.shape[2], weights
    begin, count = first * group, min(last * group, batch) - first * group
    n, together = count * width, steps_of_block(count * width, 5)
    states, rows = np.empty((together + 1, count, width), x.dtype), np.empty((1, together * count, inputs), x.dtype)
    from_h, found = np.empty((3, count, width), x.dtype), np.empty((4, together * count, width), x.dtype)
    h_r, h_z, h_n = flat_view(from_h, 0, n), flat_view(from_h, n, n), flat_view(from_h, 2 * n, n)
    to_sums = repeated(bias, width, count)
    to_r, to_z, to_n, to_m = to_sums[0], to_sums[1], to_sums[2], to_sums[3]
    # A copy, for what is written must not begin where what is read ends, or else the loop is not vectorized.
    before = np.empty(n, x.dtype)
    gather(hidden, begin, count, 0, 1, states)
    for start in range(0, len(x), together):
        steps = min(together, len(x) - start)
        gather(x, begin, count, start, steps, rows)
        for k in range(3):
            multiply(product, rows[:, : steps * count], weights_x[:, k : k + 1], found[k, : steps * count])
        for s in range(steps):
            for i in range(3):
                k = 2 - i if (start + s) & 1 else i
                multiply_in_turn(product, states[s : s + 1], weights_h[:, k : k + 1], from_h[k], start + s)
            here, gate = s * n, together * n
            r, z = flat_view(found, here, n), flat_view(found, gate + here, n)  # until now what inputs add to them
            n_, m = flat_view(found, 2 * gate + here, n), flat_view(found, 3 * gate + here, n)
            after = flat_view(states, here + n, n)
            copy(flat_view(states, here, n), before)
            for i in range(n):
                reset = sigmoid(r[i] + to_r[i] + h_r[i])
                update = sigmoid(z[i] + to_z[i] + h_z[i])
                state_sum = h_n[i] + to_m[i]
                new = tanh(n_[i] + to_n[i] + reset * state_sum)
                r[i], z[i], n_[i], m[i] = reset, update, new, state_sum
                after[i] = new + update * (before[i] - new)
        for k in range(4):
            scatter(found[k], begin, count, start, steps, gates[k])
        scatter(states[1:], begin, count, start + 1, steps, hidden)
        copy(flat_view(states, steps * n, n), flat_view(states, 0, n))
    return True


def prepare(weight_ih, weight_hh, bias_ih, bias_hh):
    """Lay weights out as `run_chunks` takes them: by columns, and what biases add."""
    return by_columns(weight_ih, 3), by_columns(weight_hh, 3), added(bias_ih, bias_hh).reshape(4, -1)


@compiled
def run_chunks(product, weights, saved, chunks, length, tol, first, last):
    """Run groups of chunks, each until all of it met what was there; see `bppsa_nb.cells.chunked_cpu.Chunks`."""
    (weights_x, weights_h, bias), (hidden, gates), (x, indices, began, found) = weights, saved, chunks
    batch, inputs, width, after = x.shape[1], x.shape[2], hidden.shape[2], hidden[1:]
    for group in range(first, last):
        offsets = offsets_of(indices, group * GROUP, min(GROUP, len(indices) - group * GROUP), length, batch)
        count, n, most = len(offsets), len(offsets) * width, CHECK_EVERY * len(offsets)
        rows, from_x = np.empty((1, most, inputs), x.dtype), np.empty((3, most, width), x.dtype)
        states, from_h = np.empty((1, count, width), x.dtype), np.empty((3, count, width), x.dtype)
        state, m = flat_view(states, 0, n), np.empty((count, width), x.dtype)  # apart: see `run_steps`
        h_r, h_z, h_n = flat_view(from_h, 0, n), flat_view(from_h, n, n), flat_view(from_h, 2 * n, n)
        sums = flat_view(m, 0, n)
        to_r, to_z = flat_view(bias, 0, n), flat_view(bias, GROUP * width, n)
        to_n, to_m = flat_view(bias, 2 * GROUP * width, n), flat_view(bias, 3 * GROUP * width, n)
        gather_rows(began, indices[group * GROUP : group * GROUP + count], 0, states[0])
        look, gap = length if tol < 0 else min(CHECK_EVERY, length), x.dtype.type(0)
        for start in range(0, length, CHECK_EVERY):
            stop = min(start + CHECK_EVERY, length)
            for s in range(start, stop):
                gather_rows(x, offsets, s * batch, rows[0, (s - start) * count : (s - start + 1) * count])
            here = (stop - start) * count
            for k in range(3):
                multiply(product, rows[:, :here], weights_x[:, k : k + 1], from_x[k, :here])
            for s in range(start, stop):
                for k in range(3):
                    multiply(product, states, weights_h[:, k : k + 1], from_h[k])
                row = (s - start) * count
                r, z = flat_view(from_x, row * width, n), flat_view(from_x, (most + row) * width, n)
                n_ = flat_view(from_x, (2 * most + row) * width, n)
                for i in range(n):
                    reset = sigmoid(r[i] + to_r[i] + h_r[i])
                    update = sigmoid(z[i] + to_z[i] + h_z[i])
                    state_sum = h_n[i] + to_m[i]
                    new = tanh(n_[i] + to_n[i] + reset * state_sum)
                    r[i], z[i], n_[i], sums[i] = reset, update, new, state_sum
                    state[i] = new + update * (state[i] - new)
                if s + 1 == look and tol >= 0:
                    gap = distance(states[0], offsets, s * batch, after)
                scatter_rows(states[0], offsets, s * batch, after)
                for k in range(3):
                    scatter_rows(from_x[k, row : row + count], offsets, s * batch, gates[k])
                scatter_rows(m, offsets, s * batch, gates[3])
            if stop == look:
                if gap <= tol:
                    break
                look = min(2 * look + CHECK_EVERY, length)
        found[group, 0], found[group, 1] = stop, gap if gap <= tol else 0
    return True


def chain(weight_hh, hidden, gates):
    """Take the transposed Jacobians for a chain of three weights and a carry; see `bppsa_nb.cells.gru.chain`."""
    slopes = np.empty((3, *gates.shape[1:]), hidden.dtype)
    share_numbers(_slopes, hidden[:-1].reshape(-1), gates.reshape(4, -1), slopes.reshape(3, -1))
    return StructuredChain.made(weight_hh.reshape(3, -1, weight_hh.shape[1]), slopes, gates[1])


@compiled
def _slopes(hidden, gates, slopes, first, last):
    one = hidden.dtype.type(1)
    r, z, n, m = gates[0], gates[1], gates[2], gates[3]
    to_r, to_z, to_m = slopes[0], slopes[1], slopes[2]
    for i in range(first, last):
        to_m[i] = r[i] * (one - n[i] * n[i]) * (one - z[i])
        to_r[i] = to_m[i] * (one - r[i]) * m[i]
        to_z[i] = z[i] * (one - z[i]) * (hidden[i] - n[i])
    return True


def gate_gradients(chain, hidden, gates, grad_hidden):
    """Compute pre-activation gradients; see `bppsa_nb.cells.gru.gate_gradients`."""
    at = np.empty_like(gates)
    flat = grad_hidden[1:].reshape(-1), *(array.reshape(len(array), -1) for array in (gates, chain.slopes, at))
    share_numbers(_gate_gradients, *flat)
    at_n, at_r, at_z, at_m = at
    return [at_r, at_z, at_n], [at_r, at_z, at_m]


@compiled
def _gate_gradients(grad, gates, slopes, at, first, last):
    one = grad.dtype.type(1)
    z, n = gates[1], gates[2]
    to_r, to_z, to_m = slopes[0], slopes[1], slopes[2]
    at_n, at_r, at_z, at_m = at[0], at[1], at[2], at[3]
    before = flush()
    for i in range(first, last):
        at_r[i] = to_r[i] * grad[i]
        at_z[i] = to_z[i] * grad[i]
        at_m[i] = to_m[i] * grad[i]
        at_n[i] = grad[i] * ((one - n[i] * n[i]) * (one - z[i]))
    restore(before)
    return True
