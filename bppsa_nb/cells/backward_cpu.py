"""Ordinary back-propagation through a layer, compiled for CPUs: in one go, from the loss to the parameters.

What a step leaves stays in the cache: after every few steps back, the pre-activation gradients are multiplied into
those of the parameters, and forgotten. From memory, only what the forward pass left is read, and that once. Samples
never wait for each other: cores share out groups of them.
"""

import math
from itertools import accumulate

import numpy as np

from bppsa_nb.cells.layer import NAMES
from bppsa_nb.cells.layer_cpu import add_products, gather_panels, room_for_panels, samples_together
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import multiply, panels, product
from bppsa_nb.machine.views import add, copy, flat_view
from bppsa_nb.machine.workers import parallel_for

_ROWS = 256  # of pre-activation gradients, before the parameters have their turn
_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use


def backward(weight_ih, weight_hh, x, saved, grad_output, local_grads, inputs):
    """Compute the gradients of a layer's parameters, a dict; at its input, None unless `inputs` asks for it; at h_0.

    This is a sweep along the layer's chain, its gate gradients, and those of `bppsa_nb.cells.layer`, with their
    arguments; `saved` are hidden states [shape=(T + 1, B, H)], and of a GRU the gates [shape=(4, T, B, H)]. Loss terms
    enter at all states but h_0: `local_grads` is [shape=(T, B, H)] or None, and its last one is part of `grad_output`.
    """
    (steps, batch, width), size = x.shape, grad_output.shape[1]
    hidden, *gates = saved
    gates = gates[0] if gates else None  # without them, no code for them is compiled
    num_gates = len(weight_hh) // size
    weights_h = panels(weight_hh.reshape(num_gates, size, size))
    weights_x = weights_h[:, :0]
    if inputs:
        by_gate = weight_ih.reshape(num_gates, size, width)
        weights_x = panels(by_gate if gates is None else by_gate[[2, 0, 1]])  # as `_back` has them
    local = np.empty((0, batch, size), x.dtype) if local_grads is None else local_grads
    at_input = np.empty((steps if inputs else 0, batch, width), x.dtype)
    at_start, group = np.empty(grad_output.shape, x.dtype), samples_together(batch, weight_hh)
    shapes = weight_ih.shape, weight_hh.shape, (num_gates * size,), (num_gates * size,)
    ends = list(accumulate(map(math.prod, shapes)))
    groups = -(-batch // group)
    totals = np.zeros((groups, ends[-1]), x.dtype)
    work = steps * batch * (weight_ih.size + weight_hh.size)
    gradients = grad_output, local, at_input, at_start
    arrays = product(x.dtype), (x, hidden), gates, (weights_x, weights_h, totals), gradients
    parallel_for(_back, groups, group, *arrays, parallel=work > _THRESHOLD)
    total = totals[0] if groups == 1 else np.add.reduce(totals)  # in the order of the groups, whichever core had them
    grads = {}
    for name, start, end, shape in zip(NAMES, [0, *ends], ends, shapes, strict=False):
        grads[name] = total[start:end].reshape(shape)
    return grads, at_input if inputs else None, at_start


@compiled
def _back(size_of_group, product, seen, gates, parameters, gradients, first, last):
    """Go back with groups first ... last - 1 of samples."""
    # A GRU's pre-activation gradients come in the order N, R, Z, M: inputs were added to the first three, states to the
    # last three. Parameters have them in the order R, Z and N or M. An RNN has one pre-activation.
    (x, hidden), (weights_x, weights_h, totals) = seen, parameters
    grad_output, local, at_input, at_start = gradients
    (steps, batch, width), size = x.shape, hidden.shape[2]
    num_gates, together = weights_h.shape[1], max(1, _ROWS // min(batch, size_of_group))
    num_sums = num_gates if gates is None else num_gates + 1  # a constant would have every loop over them unrolled
    of_x, of_h = size * width, size * size  # numbers of a gate's weights
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
        to_x = group * totals.shape[1]  # where this group's sums begin: by_x, then by_h and both biases
        to_h, to_bias = to_x + num_gates * of_x, to_x + num_gates * (of_x + of_h)
        before = flush()
        for end in range(steps, 0, -together):
            start = max(end - together, 0)
            for t in range(end - 1, start - 1, -1):
                here = t * state + b0 * size
                if gates is None:
                    _rnn_step(grad, flat_view(hidden, here + state, n), flat_view(at_sums, (t - start) * n, n))
                else:
                    _gru_step(grad, through, gates, here, hidden, at_sums, (t - start) * n, together * n)
                multiply(product, at_sums[num_sums - num_gates :, t - start], weights_h, grads)
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
                    add_products(product, at, x_rows[:, :, :rows], found_x, flat_view(totals, to_x + gate * of_x, of_x))
                if k >= num_sums - num_gates:
                    gate = k - (num_sums - num_gates)
                    add_products(product, at, h_rows[:, :, :rows], found_h, flat_view(totals, to_h + gate * of_h, of_h))
        copy(grad, flat_view(at_start, b0 * size, n))
        for k in range(num_sums):
            for b in range(samples):
                terms = flat_view(others, k * n + b * size, size)
                if k < num_gates:
                    add(flat_view(totals, to_bias + (k + num_gates - 1) % num_gates * size, size), terms)
                if k >= num_sums - num_gates:
                    add(flat_view(totals, to_bias + (num_gates + k - (num_sums - num_gates)) * size, size), terms)
        restore(before)
    return True


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
