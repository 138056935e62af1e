"""Samples of different lengths, and states that begin anew: as if every piece had been a sequence of its own."""

from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from minimal_gated_unit import MinimalGatedUnit

from bppsa_nb import GRU, LSTM, RNN

MODELS = {"RNN": RNN, "relu": partial(RNN, nonlinearity="relu"), "GRU": GRU, "LSTM": LSTM, "own": MinimalGatedUnit}
WAYS = [  # how to go forward, and back
    *((back, None, {"method": "linear"}) for back in ("linear", "blelloch", "chunked")),
    ("truncated", 99, {"method": "linear"}),
    ("linear", None, {"method": "chunked", "length": 3}),
    ("chunked", None, {"method": "newton", "length": 2}),
    ("linear", None, {"method": "newton", "length": 1}),
]


def pieces(resets, lengths):
    """List the pieces of every sample, pairs of steps."""
    found = []
    for b in range(resets.shape[1]):
        starts = [0, *(t for t in range(1, lengths[b]) if resets[t, b])]
        found.append(list(zip(starts, [*starts[1:], lengths[b]], strict=True)))
    return found


def draw(kind, sizes, layers, seed, share):
    """Draw a model, its input, where samples begin, and which steps belong together."""
    (T, B, inputs, H), rng = sizes, np.random.default_rng(seed)
    model = MODELS[kind](inputs, H, 3, layers, rng=rng, dtype=np.float64)
    h0 = rng.uniform(-1, 1, (model.cell.states, layers, B, H))
    given_h0 = h0[0] if len(h0) == 1 else tuple(h0)
    resets, lengths = rng.random((T, B)) < share, rng.integers(1, T + 1, B)
    return model, rng.standard_normal((T, B, inputs)), h0, given_h0, resets, lengths, rng.standard_normal((B, 3))


def apart(model, x, h0, resets, lengths, grad_logits):
    """Compute states, logits and gradients piece by piece, each a sequence of its own."""
    states = np.zeros((model.num_layers, model.cell.states, len(x) + 1, *h0.shape[2:]))
    states[:, :, 0] = np.moveaxis(h0, 0, 1)
    logits, total = np.zeros_like(grad_logits), {name: np.zeros_like(p) for name, p in model.params.items()}
    for b, own in enumerate(pieces(resets, lengths)):
        for start, stop in own:
            begin = h0[:, :, b : b + 1] * (start == 0 and not resets[0, b])
            begin = begin[0] if len(begin) == 1 else tuple(begin)
            found = model.forward(np.array(x[start:stop, b : b + 1]), begin, "numpy", method="linear")
            states[:, :, start + 1 : stop + 1, b] = found.states[:, :, 1:, 0]
        logits[b] = found.logits[0]
        for name, grad in model.backward(found, grad_logits[b : b + 1], "linear", "numpy").items():
            total[name] += grad
    return states, logits, total


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(MODELS)),
    sizes=st.tuples(st.integers(1, 14), st.integers(1, 20), st.integers(1, 4), st.integers(1, 6)),
    layers=st.integers(1, 3),
    seed=st.integers(0, 99),
    share=st.sampled_from([0, 0.1, 0.5, 1]),
    ragged=st.sampled_from([None, "any", "sorted"]),
    way=st.sampled_from(WAYS),
    backend=st.sampled_from(["numpy", "cpu"]),
)
def test_pieces_are_sequences_of_their_own(kind, sizes, layers, seed, share, ragged, way, backend):
    model, x, h0, given_h0, resets, lengths, grad_logits = draw(kind, sizes, layers, seed, share)
    lengths = {"any": lengths, "sorted": np.sort(lengths)[::-1]}.get(ragged, np.full(sizes[1], sizes[0]))
    expected, logits, grads = apart(model, x, h0, resets, lengths, grad_logits)
    back, levels, how = way
    activations = model.forward(
        x, given_h0, backend, **how, lengths=None if ragged is None else lengths, resets=resets if share else None
    )
    tol = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(activations.states, expected, **tol)
    np.testing.assert_allclose(activations.logits, logits, **tol)
    found = model.backward(activations, grad_logits, back, backend, levels)
    for name, grad in grads.items():
        np.testing.assert_allclose(found[name], grad, **tol, err_msg=name)
