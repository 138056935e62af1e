"""Ordinary back-propagation through a layer, compiled for CPUs: in one go, from the loss to the parameters.

What a step leaves stays in the cache: after every few steps back, the gradients at their sums are multiplied into those
of the parameters, and forgotten. From memory, only what the forward pass left is read, and that once. Samples never
wait for each other: cores share out groups of them.
"""

import numpy as np

from bppsa_nb.compiling import njit
from bppsa_nb.subnormals import flush, restore
from bppsa_nb.tiles import GROUP, multiply, product
from bppsa_nb.workers import one_blas_thread, share_out

_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
_inline = njit(inline="always")
_STEPS = 32  # back, before the parameters have their turn
_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use


def backward(weight_ih, weight_hh, x, saved, grad_output, local_grads, inputs):
    """Compute the gradients of a layer's parameters, and at its input.

    Parameters
    ----------
    weight_ih : np.ndarray [shape=(G, I)]
    weight_hh : np.ndarray [shape=(G, H)]
        G is H in an RNN and 3 H in a GRU.
    x : np.ndarray [shape=(T, B, I)]
        The layer's input.
    saved : list of np.ndarray
        Hidden states [shape=(T + 1, B, H)], and of a GRU the gates [shape=(4, T, B, H)].
    grad_output : np.ndarray [shape=(B, H)]
        Gradient of the loss at the last hidden state.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
        Loss terms that enter at every hidden state; `grad_output` includes the last of them.
    inputs : bool
        Whether gradients at the input are asked for.

    Returns
    -------
    grads : dict of str to np.ndarray
        Gradients of ``weight_ih``, ``weight_hh``, ``bias_ih`` and ``bias_hh``, summed over time and batch.
    at_input : np.ndarray [shape=(T, B, I)] or None
    """
    (steps, batch, width), size = x.shape, grad_output.shape[1]
    hidden, *gates = saved
    # Gradients come as those at the sums M, R, Z, N: hidden states were added to the first three of a GRU's, inputs to
    # the last three. An RNN has one sum.
    kinds, count = (4, 3) if gates else (1, 1)
    weights_x = weight_ih.reshape(count, size, width)
    weights_h = weight_hh.reshape(count, size, size)[[2, 0, 1] if gates else [0]]
    flat = batch * size
    gates = gates[0].reshape(4, steps, flat) if gates else None  # without them, no code for them is compiled
    terms = np.empty((0, flat), x.dtype) if local_grads is None else local_grads.reshape(steps + 1, flat)
    at_input = np.empty((steps if inputs else 0, batch, width), x.dtype)
    groups = -(-batch // GROUP)
    sums = [np.zeros((groups, kinds, size * columns), x.dtype) for columns in (width, size, 1)]
    work = steps * batch * (weights_x.size + weights_h.size)
    states = x.reshape(steps, batch * width), hidden.reshape(steps + 1, flat), gates
    arrays = product(x.dtype), *states, weights_x, weights_h, grad_output, terms, at_input, *sums
    with one_blas_thread():
        share_out(_back, groups, *arrays, worth=work > _WORTH)
    by_x, by_h, bias = (found.sum(axis=0) for found in sums)  # in the order of the groups, whichever core had them
    from_h, from_x = [1, 2, 0] if count == 3 else [0], slice(kinds - count, None)
    grads = {
        "weight_ih": by_x[from_x].reshape(weight_ih.shape),
        "weight_hh": by_h[from_h].reshape(weight_hh.shape),
        "bias_ih": bias[from_x].reshape(-1),
        "bias_hh": bias[from_h].reshape(-1),
    }
    return grads, at_input if inputs else None


@_compile
def _back(product, x, hidden, gates, weights_x, weights_h, grad_output, local, at_input, by_x, by_h, bias, first, last):
    """Go back with groups first ... last - 1 of samples."""
    steps, (batch, size), width = len(x), grad_output.shape, weights_x.shape[2]
    count, kinds = len(weights_h), by_h.shape[1]
    for group in range(first, last):
        b0, b1 = group * GROUP, min((group + 1) * GROUP, batch)
        samples, i0, i1 = b1 - b0, b0 * size, b1 * size
        at_sums = np.empty((kinds, _STEPS, samples, size), x.dtype)
        at, grads = at_sums.reshape(kinds, _STEPS, i1 - i0), grad_output[b0:b1].copy()
        through, bias_rows = np.zeros(i1 - i0, x.dtype), np.zeros((kinds, i1 - i0), x.dtype)
        input_rows = np.empty((_STEPS, samples * width), x.dtype)
        state_rows = np.empty((_STEPS, samples * size), x.dtype)
        found_x, found_h = np.empty((size, width), x.dtype), np.empty((size, size), x.dtype)
        grad = grads.reshape(i1 - i0)
        before = flush()
        for end in range(steps, 0, -_STEPS):
            start = max(end - _STEPS, 0)
            for t in range(end - 1, start - 1, -1):
                now = at[:, t - start]
                if gates is None:
                    _rnn_step(grad, hidden[t + 1, i0:i1], now[0])
                else:
                    _gru_step(grad, through, gates[:, t, i0:i1], hidden[t, i0:i1], now)
                multiply(product, at_sums[:count, t - start], weights_h, grads)
                if gates is not None:
                    _add(through, grad)
                if local.size:
                    _add(local[t, i0:i1], grad)
                if at_input.size:
                    multiply(product, at_sums[kinds - count :, t - start], weights_x, at_input[t, b0:b1])
            for t in range(start, end):
                _copy(x[t, b0 * width : b1 * width], input_rows[t - start])
                _copy(hidden[t, i0:i1], state_rows[t - start])
            rows = (end - start) * samples
            x_rows = input_rows[: end - start].reshape(rows, width)
            h_rows = state_rows[: end - start].reshape(rows, size)
            for k in range(kinds):
                for s in range(end - start):
                    _add(at[k, s], bias_rows[k])
            for i in range(2 * count):
                if i < count:
                    k, of_rows, found, total = i, h_rows, found_h, by_h
                else:
                    k, of_rows, found, total = i + kinds - 2 * count, x_rows, found_x, by_x
                np.dot(at_sums[k, : end - start].reshape(rows, size).T, of_rows, found)
                _add(found.reshape(-1), total[group, k])
        for k in range(kinds):
            for b in range(samples):
                _add(bias_rows[k, b * size : (b + 1) * size], bias[group, k])
        restore(before)
    return True


@_inline
def _rnn_step(grad, after, at):
    one = grad.dtype.type(1)
    for i in range(grad.size):
        at[i] = grad[i] * (one - after[i] * after[i])


@_inline
def _gru_step(grad, through, gates, hidden, at):
    """Take gradients through the gates, with the factors of `bppsa_nb.cells.gru.slopes`; and what goes past them."""
    one = grad.dtype.type(1)
    r, z, n, m = gates[0], gates[1], gates[2], gates[3]
    at_m, at_r, at_z, at_n = at[0], at[1], at[2], at[3]
    for i in range(grad.size):
        to_new = grad[i] * (one - z[i])
        to_n = to_new * (one - n[i] * n[i])
        to_m = to_n * r[i]
        at_m[i], at_n[i] = to_m, to_n
        at_r[i] = to_m * (one - r[i]) * m[i]
        at_z[i] = to_new * z[i] * (hidden[i] - n[i])
        through[i] = grad[i] * z[i]


@_inline
def _add(row, total):
    for i in range(row.size):
        total[i] += row[i]


@_inline
def _copy(row, out):
    for i in range(row.size):
        out[i] = row[i]
