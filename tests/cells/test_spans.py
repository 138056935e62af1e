"""Samples of different lengths, and states that begin anew: as if every piece had been a sequence of its own."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from minimal_gated_unit import MinimalGatedUnit
from minimal_gru import MinimalGRU
from peephole_lstm import PeepholeLSTM

from bppsa_nb import GRU, LSTM, RNN, Adam, Trainer
from bppsa_nb.cells import stack
from bppsa_nb.cells.cell import WHOLE
from bppsa_nb.training.datasets import ArrayDataset

MODELS = {"RNN": RNN, "relu": partial(RNN, nonlinearity="relu"), "GRU": GRU, "LSTM": LSTM, "own": MinimalGatedUnit}
MODELS |= {"peephole": PeepholeLSTM, "elementwise": MinimalGRU}
WAYS = [  # how to go forward, and back
    *((back, None, {"method": "linear"}) for back in ("linear", "blelloch", "chunked")),
    ("truncated", 99, {"method": "linear"}), ("linear", None, {"method": "chunked", "length": 3}),
    ("chunked", None, {"method": "newton", "length": 2}), ("linear", None, {"method": "newton", "length": 1}),
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
@example("GRU", (5, 40, 2, 3), 1, 0, 0.5, "any", WAYS[0], "cpu")  # more samples than are computed at a time
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


@given(
    kind=st.sampled_from(list(MODELS)),
    sizes=st.tuples(st.integers(3, 14), st.integers(1, 12), st.integers(1, 4), st.integers(1, 6)),
    layers=st.integers(1, 3),
    seed=st.integers(0, 99),
    way=st.sampled_from(WAYS),
    backend=st.sampled_from(["numpy", "cpu"]),
)
@example("LSTM", (9, 12, 2, 3), 2, 0, WAYS[1], "cpu")
@example("GRU", (9, 12, 2, 3), 1, 1, WAYS[0], "cpu")
@example("LSTM", (9, 12, 2, 3), 1, 2, WAYS[4], "numpy")
def test_several_sequences_are_one_sample(kind, sizes, layers, seed, way, backend):
    model, x, _, _, resets, _, _ = draw(kind, sizes, layers, seed, 0.3)
    (T, B, *_), rng, (S, H) = sizes, np.random.default_rng(seed), (model.cell.states, sizes[3])
    resets[0], numbers = True, np.zeros((T, B), np.int32)
    places = [(b, *step) for b, own in enumerate(pieces(resets, [T] * B)) for step in own]
    numbers[[first for _, first, _ in places], [b for b, *_ in places]] = 1 + np.arange(len(places))
    starts, ends = rng.uniform(-1, 1, (layers, S, len(places), H)), rng.standard_normal((layers, len(places), S * H))
    terms = [rng.standard_normal((T, B, S * H)) if own else None for own in (*rng.integers(2, size=layers - 1), 1)]
    spans = WHOLE._replace(resets=numbers, places=np.array(places).T, starts=starts)
    back, levels, how = way
    options, first = stack.unroll.SolverOptions(**how), spans.places[1] == 0
    states, kept, _ = stack.run(model, x, list(starts[:, :, first]), options, backend, spans)
    how, states_of_parts = (back, backend, levels), np.array(states)
    found = stack.run_back(model, x, (states, kept), ([*ends], terms), how, True, spans)
    again = stack.Segments(int(rng.integers(1, T + 2)), options, backend, spans)

    def read(steps, own):
        states_of_parts[:, :, 1:][:, :, steps] = own[:, :, 1:]

    left, last, _ = again.forward(model, x, starts[:, :, first], read)
    np.testing.assert_allclose(states_of_parts, states, **(tol := {"rtol": 1e-9, "atol": 1e-10}))
    np.testing.assert_allclose(last, states[:, :, spans.places[2], spans.places[0]], **tol)
    for one, other in zip(again.backward(model, x, left, ([*ends], terms), how, True), found, strict=True):
        for name in one if isinstance(one, dict) else range(len(one)):
            np.testing.assert_allclose(one[name], other[name], **tol)
    found, at_x, at_start = found
    total, at_input = dict.fromkeys(found, 0), np.empty_like(x)
    for k, (b, begin, end) in enumerate(places):
        own = np.array(x[begin:end, b : b + 1])
        of_own = [None if each is None else np.array(each[begin:end, b : b + 1]) for each in terms]
        alone = stack.run(model, own, list(starts[:, :, k : k + 1]), stack.LOOP, "numpy")[:2]
        np.testing.assert_allclose(states[:, :, begin + 1 : end + 1, b], alone[0][:, :, 1:, 0], **tol)
        read = [end_k[k : k + 1] for end_k in ends], of_own
        expected, at_own, at_first = stack.run_back(model, own, alone, read, ("linear", "numpy", None), True)
        at_input[begin:end, b] = at_own[:, 0]
        for name, grad in expected.items():
            total[name] = total[name] + grad
        for one, other in zip(at_start, at_first, strict=True):
            np.testing.assert_allclose(one[k], other[0], **tol)
    np.testing.assert_allclose(at_x, at_input, **tol)
    for name, grad in total.items():
        np.testing.assert_allclose(found[name], grad, **tol, err_msg=name)


@pytest.mark.parametrize("lengths", [None, [13, 4, 1, 7], [4, 3, 2, 4]])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_segments_begin_anew_and_end_too(lengths, backend):
    model, x, _, h0, resets, _, grad_logits = draw("LSTM", (13, 4, 2, 3), 2, 0, 0.2)
    whole = model.forward(x, h0, backend, resets=resets, lengths=lengths)
    expected = model.backward(whole, grad_logits)
    segments = model.forward(x, h0, backend, resets=resets, lengths=lengths, checkpoint_every=4)
    np.testing.assert_allclose(segments.logits, whole.logits, rtol=1e-12)
    for name, grad in model.backward(segments, grad_logits).items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-9, atol=1e-12)


def test_padding_has_no_effect():
    model, x, _, _, _, lengths, grad_logits = draw("relu", (200, 9, 2, 4), 2, 1, 0)
    lengths[:] = np.minimum(lengths, 20)
    results = []
    for padding in 0, 1e30:  # which relu would make infinite, in loops of its own
        x[np.arange(200)[:, None] >= lengths] = padding
        activations = model.forward(x, lengths=lengths)
        results.append([activations.states, activations.logits, *model.backward(activations, grad_logits).values()])
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other) and np.isfinite(one).all()


def test_a_chain_ends_where_a_sample_begins_anew():
    model, x, _, _, resets, lengths, _ = draw("LSTM", (7, 3, 2, 2), 1, 0, 0.3)
    for backend in "numpy", "cpu":
        links = model.chain(model.forward(x, backend=backend, lengths=lengths, resets=resets), backend=backend)
        cut = resets | (np.arange(7)[:, None] >= lengths)
        assert not links.slopes[:, cut].any() and not links.carry[:, cut].any()
        assert links.slopes[:, ~cut].any(axis=(0, 2)).all()


@pytest.mark.parametrize("backend, every", [("numpy", None), ("cpu", None), ("cpu", 7)])
def test_samples_of_their_own_lengths_are_trained(backend, every):
    rng = np.random.default_rng(0)
    lengths, y = rng.integers(3, 30, 64), rng.integers(2, size=64)
    x = rng.standard_normal((30, 64, 1)).astype(np.float32)
    x[lengths - 1, np.arange(64), 0] = 2 * y - 1  # what is to be known is at the end of each
    trainer = Trainer(GRU(1, 8, 2, rng=0), Adam(lr=0.02), backend=backend, checkpoint_every=every)
    trainer.fit(ArrayDataset(x, y, lengths), epochs=40, batch_size=16, progress=False)
    assert trainer.evaluate(ArrayDataset(x, y, lengths), batch_size=20)[1] > 0.9
    assert (trainer.predict(x, lengths) == y).mean() > 0.9
    loss = trainer.step(x, y, lengths)
    short = Trainer(GRU(1, 8, 2, rng=0), Adam(lr=0.02), backend=backend)
    short.model.params = trainer.model.params
    longest = lengths.max()
    assert short.step(x[:longest], y, list(lengths)) < loss


X = np.ones((5, 3, 2), np.float32)


@pytest.mark.gpu
def test_a_gpu_takes_whole_samples_only(from_ptx):
    model = RNN(2, 3, 2)
    activations = model.forward(X, lengths=[5, 2, 1], backend="cpu")
    for call in (
        lambda: model.forward(X, lengths=[5, 2, 1], backend="cuda"),
        lambda: model.backward(activations, np.ones((3, 2), np.float32), backend="cuda"),
        lambda: model.chain(activations, backend="cuda"),
        lambda: Trainer(model, Adam(), backend="cuda").step(X, [0, 1, 1], lengths=[5, 2, 1]),
    ):
        with pytest.raises(ValueError, match="lengths and resets must be None with backend='cuda'"):
            call()
