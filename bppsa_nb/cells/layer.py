"""A layer of any cell, in NumPy: over time, its chain, and from gradients at states to those of all else.

A layer's states are [shape=(S, T + 1, B, H)], those it begins with first, and what its cell keeps of the steps
[shape=(K, T, B, H)]; see `bppsa_nb.cells.cell.Cell`. Gradients at states are [shape=(T + 1, B, S H)]. `spans` say
which steps belong together.
"""

import numpy as np

from bppsa_nb.cells.cell import WHOLE


def new_saved(cell, start, steps):
    """Make arrays for what a layer saves of so many steps, from initial states [shape=(S, B, H)]."""
    states = np.empty((cell.states, steps + 1, *start.shape[1:]), start.dtype)
    states[:, 0] = start
    return states, np.empty((cell.kept, steps, *start.shape[1:]), start.dtype)


def forward(cell, x, saved, *params, spans=WHOLE):
    """Run a cell over time, from `x` [shape=(T, B, I)] and the initial states, the first of the states in `saved`.

    Of the parameters, weights are [shape=(G H, I)] and [shape=(G H, H)], biases [shape=(G H,)], a cell's own vectors
    [shape=(H,)]. The other states, and what is kept, are written into `saved`.
    """
    weight_ih, weight_hh, bias_ih, bias_hh, *vectors = params
    (steps, batch, inputs), size, whole = x.shape, weight_hh.shape[1], cell.gates - cell.split
    states, kept = saved
    # No input product waits for another: all of them are one matrix product, before the time loop. Of whole sums, both
    # biases are added to it.
    to_x = np.array(bias_ih)
    to_x[: whole * size][: len(bias_hh)] += bias_hh[: whole * size]
    products = x.reshape(steps * batch, inputs) @ weight_ih.T + to_x
    from_x = np.ascontiguousarray(products.reshape(steps, batch, cell.gates, size).swapaxes(1, 2))
    weights_T, to_h = weight_hh.reshape(-1, size, size).swapaxes(1, 2), bias_hh[whole * size :].reshape(-1, 1, size)
    before = tuple(states[:, 0])
    anew = [False] * steps if spans.whole else spans.resets.any(axis=1)
    for t in range(steps):
        if anew[t]:
            before = spans.anew(t, before)
        added, from_h = from_x[t], before[0] @ weights_T
        if cell.split:
            from_h[whole:] += to_h
            preacts = *added[whole:], *(added[:whole] + from_h[:whole]), *from_h[whole:], *vectors
        else:
            preacts = *(added + from_h if len(from_h) else added), *vectors
        before, values = cell.step(cell.activate(preacts) if cell.activations else preacts, before)
        for s, found in enumerate(before):
            states[s, t + 1] = found
        for k, found in enumerate(values):
            kept[k, t] = found
    spans.end(states)


def chain(cell, weight_hh, states, kept, spans=WHOLE):
    """Take the transposed Jacobians ``(d x_{t+1} / d x_t)^T`` of a layer's states, side by side [shape=(B, S H)].

    Going a step back is to multiply by one of these: a row of one is what going back makes of a unit vector.
    """
    (S, steps, batch, size), G, p = states[:, 1:].shape, cell.gates, cell.split
    slopes = np.zeros((G, steps, batch, S, size), states.dtype)
    carry = np.zeros((S, steps, batch, S, size), states.dtype) if cell.carries else None
    before = tuple(spans.before(states)[:, :steps])
    for s, unit in enumerate(np.eye(S, dtype=states.dtype)):
        grads = tuple(np.full(states[0, 1:].shape, one, states.dtype) for one in unit)
        grad_preacts, past = cell.back(grads, before, tuple(states[:, 1:]), tuple(kept))
        for k in range(G):
            slopes[k, :, :, s] = grad_preacts[p + k]
        for k in range(len(past)):
            carry[S - len(past) + k, :, :, s] = past[k]
    return cell.chain(weight_hh, slopes, carry, spans)


def preact_gradients(cell, states, kept, grad_states, spans=WHOLE):
    """Turn gradients at the states into those at a unit's preactivations [shape=(T, B, H)], a list."""
    steps, batch, size = states[0, 1:].shape
    grads = tuple(np.moveaxis(grad_states[1:].reshape(steps, batch, cell.states, size), 2, 0))
    before = tuple(spans.before(states)[:, :steps])
    return list(cell.back(grads, before, tuple(states[:, 1:]), tuple(kept))[0])


def start_gradients(cell, weight_hh, saved, grad_states, spans):
    """Return gradients at the initial states of the sequences that samples consist of [shape=(n, S H)]."""
    (states, kept), (sample, first, _) = saved, spans.places
    (S, count, size), weights = spans.starts.shape, weight_hh.reshape(-1, weight_hh.shape[1], weight_hh.shape[1])
    grads = tuple(grad_states[first + 1, sample].reshape(count, S, size).swapaxes(0, 1))
    after = tuple(states[:, first + 1, sample]), tuple(kept[:, first, sample])
    grad_preacts, past = cell.back(grads, tuple(spans.starts), *after)
    _, from_h = cell.tell_apart(grad_preacts)
    found = [sum(at @ weight for at, weight in zip(from_h, weights, strict=True)), *[0] * (S - 1)]
    for k, grad in enumerate(past, S - len(past)):
        found[k] = found[k] + grad
    return np.concatenate(found, axis=1)


def parameter_gradients(cell, x, states, grad_preacts, spans=WHOLE):
    """Turn gradients at the preactivations into those of a layer's parameters (Equation 2), summed over time and batch.

    `x` [shape=(T, B, I)] is the layer's input. All are in one line, in the order of `Cell.names`.
    """
    # All steps and samples at once: one matrix product per weight, after the time loop.
    rows = lambda array: array.reshape(-1, array.shape[2])  # noqa: E731
    (from_x, from_h), hidden = cell.tell_apart(grad_preacts), spans.before(states[:1])[0, :-1]
    found = [rows(at).T @ rows(seen) for ats, seen in ((from_x, x), (from_h, hidden)) for at in ats]
    found += [at.sum(axis=(0, 1)) for at in (*from_x, *from_h, *grad_preacts[cell.gates + cell.split :])]
    return np.concatenate([array.reshape(-1) for array in found])


def input_gradients(cell, weight_ih, grad_preacts):
    """Turn gradients at the preactivations into those at the input [shape=(T, B, I)]."""
    from_x, _ = cell.tell_apart(grad_preacts)
    return sum(at @ weight for at, weight in zip(from_x, np.split(weight_ih, cell.gates), strict=True))
