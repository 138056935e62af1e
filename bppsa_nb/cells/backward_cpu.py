"""Ordinary back-propagation through a layer, compiled for CPUs: in one go, from the loss to the parameters.

What a step leaves stays in the cache: after every few steps back, the pre-activation gradients are multiplied into
those of the parameters, and forgotten. From memory, only what the forward pass left is read, and that once. Samples
never wait for each other: cores share out groups of them. `Loops` goes there and back, step after step.
"""

import math

import numpy as np

from bppsa_nb.cells.layer import NAMES
from bppsa_nb.cells.layer_cpu import (
    add_products,
    gather_panels,
    in_groups,
    room_for_panels,
    samples_together,
    share_samples,
)
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import multiply, multiply_in_turn, panels
from bppsa_nb.machine.views import add, copy, flat_view

_ROWS = 256  # of pre-activation gradients, before the parameters have their turn


def backward(weight_ih, weight_hh, x, saved, grad_output, local_grads, inputs):
    """Compute the gradients of a layer's parameters, a dict; at its input, None unless `inputs` asks for it; at h_0.

    This is a sweep along the layer's chain, its gate gradients, and those of `bppsa_nb.cells.layer`, with their
    arguments; `saved` are hidden states [shape=(T + 1, B, H)], and of a GRU the gates [shape=(4, T, B, H)]. Loss terms
    enter at all states but h_0: `local_grads` is [shape=(T, B, H)] or None, and its last one is part of `grad_output`.
    """
    local = saved[0][:0] if local_grads is None else local_grads
    at_input, at_start = np.empty(x.shape, x.dtype) if inputs else x[:0], np.empty(grad_output.shape, x.dtype)
    total, grads, start = go_back(weight_ih, weight_hh, x, saved, (grad_output, local, at_input, at_start)), {}, 0
    biases = weight_hh.shape[:1]
    for name, shape in zip(NAMES, (weight_ih.shape, weight_hh.shape, biases, biases), strict=True):
        end = start + math.prod(shape)
        grads[name], start = total[start:end].reshape(shape), end
    return grads, at_input if inputs else None, at_start


def go_back(weight_ih, weight_hh, x, saved, gradients):
    """Return the gradients of all four parameters, one after the other; see `backward`.

    `gradients` are that at the last states, loss terms, or none of them, and room for those at the input, or none, and
    at h_0.
    """
    (steps, batch, width), size = x.shape, weight_hh.shape[1]
    hidden, *gates = saved
    gates = gates[0] if gates else None  # without them, no code for them is compiled
    weights_h = panels(weight_hh.reshape(-1, size, size))
    weights_x = weights_h[:, :0]
    if gradients[2].size:
        by_gate = weight_ih.reshape(-1, size, width)
        weights_x = panels(by_gate if gates is None else by_gate[[2, 0, 1]])  # as `_back` has them
    group = samples_together(batch, weight_hh)
    groups = -(-batch // group)
    totals = np.zeros((groups, weight_ih.size + weight_hh.size + 2 * len(weight_hh)), x.dtype)
    work = steps * batch * (weight_ih.size + weight_hh.size)
    parameters = weights_x, weights_h, totals
    in_groups(_back, batch, group, work, weights_h, (x, hidden), gates, parameters, gradients)
    return totals[0] if groups == 1 else np.add.reduce(totals)  # in the order of the groups, whichever core had them


class Loops:
    """A layer's loops on room that serves step after step: `forward` of `cell`, its module, from zeros, and `backward`.

    `params` are the layer's four, which may change in place; x has `shape` (T, B, I).
    """

    def __init__(self, cell, params, shape):
        weight_ih, weight_hh, *self.biases = params
        (steps, batch, _), size, dtype = shape, weight_hh.shape[1], weight_hh.dtype
        self.cell, self.weights = cell, (weight_ih, weight_hh)
        # By columns, as products take them.
        self.views = [weight.reshape(-1, size, weight.shape[1]).transpose(0, 2, 1) for weight in self.weights]
        self.hidden, self.at_start = np.zeros((steps + 1, batch, size), dtype), np.empty((batch, size), dtype)
        self.saved = [self.hidden]
        if cell.GATES:
            self.saved.append(np.empty((cell.GATES, steps, batch, size), dtype))

    def forward(self, x):
        """Find the states `hidden` [shape=(T + 1, B, H)]."""
        by_x, by_h = map(panels, self.views)
        share_samples(self.cell.run_steps, x, (by_x, by_h, self.cell.added(*self.biases)), *self.saved)

    def backward(self, x, grad_output, local_grads, inputs):
        """Return the gradients of all four parameters, one after the other, and those at the input, or none."""
        local = self.hidden[:0] if local_grads is None else local_grads
        at_input = np.empty(x.shape, x.dtype) if inputs else x[:0]
        return go_back(*self.weights, x, self.saved, (grad_output, local, at_input, self.at_start)), at_input


@compiled
def _back(size_of_group, product, seen, gates, parameters, gradients, first, last):
    """Go back with groups first ... last - 1 of samples."""
    (x, hidden), (weights_x, weights_h, totals) = seen, parameters
    grad_output, local, at_input, at_start = gradients
    (steps, batch, width), size = x.shape, hidden.shape[2]
    num_gates, together = weights_h.shape[1], max(1, _ROWS // min(batch, size_of_group))
    num_sums = num_gates if gates is None else num_gates + 1  # a constant would have every loop over them unrolled
    for group in range(first, last):
        b0, b1 = group * size_of_group, min((group + 1) * size_of_group, batch)
        samples, state = b1 - b0, batch * size
        n = samples * size
        at_sums = np.empty((num_sums, together, samples, size), x.dtype)
        at_rows = at_sums.reshape(num_sums, -1, size)
        most = together * samples
        x_rows, h_rows = room_for_panels(most, x), room_for_panels(most, hidden)
        found_x, found_h = np.empty((size, width), x.dtype), np.empty((size, size), x.dtype)
        grads, others = np.empty((samples, size), x.dtype), np.empty((num_sums + 1, n), x.dtype)
        grad, through = flat_view(grads, 0, n), flat_view(others, num_sums * n, n)
        copy(flat_view(grad_output, b0 * size, n), grad)
        bias_rows = flat_view(others, 0, num_sums * n)
        for i in range(bias_rows.size):
            bias_rows[i] = 0
        total = flat_view(totals, group * totals.shape[1], totals.shape[1])
        by_x, by_h, biases = _parts(total, num_gates, size, width)
        before = flush()
        for end in range(steps, 0, -together):
            start = max(end - together, 0)
            for t in range(end - 1, start - 1, -1):
                here = t * state + b0 * size
                if gates is None:
                    _rnn_step(grad, flat_view(hidden, here + state, n), flat_view(at_sums, (t - start) * n, n))
                else:
                    _gru_step(grad, through, gates, here, hidden, at_sums, (t - start) * n, together * n)
                multiply_in_turn(product, at_sums[num_sums - num_gates :, t - start], weights_h, grads, t)
                if gates is not None:
                    add(grad, through)
                if local.size and t > 0:
                    add(grad, flat_view(local, here - state, n))
                if at_input.size:
                    multiply(product, at_sums[:, t - start], weights_x, at_input[t, b0:b1])
            gather_panels(x, b0, samples, start, end - start, x_rows)
            gather_panels(hidden, b0, samples, start, end - start, h_rows)
            for s in range(end - start):
                for k in range(num_sums):
                    add(flat_view(others, k * n, n), flat_view(at_sums, (k * together + s) * n, n))
            rows = (end - start) * samples
            for k in range(num_sums):
                at = at_rows[k : k + 1, :rows]
                if k < num_gates:
                    gate = (k + num_gates - 1) % num_gates
                    weight = flat_view(by_x, gate * size * width, size * width)
                    add_products(product, at, x_rows[:, :, :rows], found_x, weight)
                if k >= num_sums - num_gates:
                    weight = flat_view(by_h, (k + num_gates - num_sums) * size * size, size * size)
                    add_products(product, at, h_rows[:, :, :rows], found_h, weight)
        copy(grad, flat_view(at_start, b0 * size, n))
        _add_biases(flat_view(others, 0, num_sums * n), num_gates, num_sums, samples, size, biases)
        restore(before)
    return True


# A GRU's pre-activation gradients come in the order N, R, Z, M: inputs were added to the first three, states to the
# last three. Parameters have them in the order R, Z and N or M. An RNN has one pre-activation.


@inline
def _parts(total, num_gates, size, width):
    """Tell a layer's gradients apart: those of weight_ih and weight_hh, and those of both biases, rows of numbers."""
    of_x, of_h = num_gates * size * width, num_gates * size * size
    biases = flat_view(total, of_x + of_h, 2 * num_gates * size)
    return flat_view(total, 0, of_x), flat_view(total, of_x, of_h), biases


@inline
def _add_biases(at, num_gates, num_sums, samples, size, biases):
    """Add pre-activation gradients [shape=(num_sums * samples * size,)] to those of both biases."""
    for k in range(num_sums):
        for b in range(samples):
            terms = flat_view(at, (k * samples + b) * size, size)
            if k < num_gates:
                add(flat_view(biases, (k + num_gates - 1) % num_gates * size, size), terms)
            if k >= num_sums - num_gates:
                add(flat_view(biases, (2 * num_gates + k - num_sums) * size, size), terms)


@inline
def _rnn_step(grad, after, at):
    one = grad.dtype.type(1)
    for i in range(grad.size):
        at[i] = grad[i] * (one - after[i] * after[i])


@inline
def _gru_step(grad, through, gates, here, hidden, at, there, apart):
    """Take gradients through the gates, with the factors of `bppsa_nb.cells.gru.slopes`; and what goes past them.

    `here` is the step's place in each gate and in the states, `there` in the gradients at each pre-activation, which
    are `apart`.
    """
    n, one, gate = grad.size, grad.dtype.type(1), gates.size // 4
    r, z = flat_view(gates, here, n), flat_view(gates, gate + here, n)
    new, m = flat_view(gates, 2 * gate + here, n), flat_view(gates, 3 * gate + here, n)
    at_n, at_r = flat_view(at, there, n), flat_view(at, apart + there, n)
    at_z, at_m = flat_view(at, 2 * apart + there, n), flat_view(at, 3 * apart + there, n)
    before = flat_view(hidden, here, n)
    for i in range(n):
        to_new = grad[i] * (one - z[i])
        to_n = to_new * (one - new[i] * new[i])
        to_m = to_n * r[i]
        at_m[i], at_n[i] = to_m, to_n
        at_r[i] = to_m * (one - r[i]) * m[i]
        at_z[i] = to_new * z[i] * (before[i] - new[i])
        through[i] = grad[i] * z[i]
