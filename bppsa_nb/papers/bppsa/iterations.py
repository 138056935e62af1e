"""Iterations of the paper's two benchmarks, timed: forward pass and all methods' backward passes, in turns."""

from functools import partial

import numpy as np

from bppsa_nb.cells import gru, lstm, rnn
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.papers.timing import take_turns
from bppsa_nb.training.datasets import Bitstream
from bppsa_nb.training.datasets.audio import FEATURES, LABELS
from bppsa_nb.training.loss import cross_entropy

METHODS = {"linear": "baseline", "blelloch": "bppsa", "chunked": "chunked"}  # and what Table 6 calls them
RNN_LENGTHS = {"quick": (10, 30, 100, 300, 1000), "paper": (10, 30, 100, 300, 1000, 3000, 10000, 30000)}
RNN_BATCHES = (256, 128, 64, 32, 16, 8, 4, 2)
RNN_BATCH, RNN_LENGTH = 16, 1000  # while T varies, and while B does
RNN_SECONDS = {"quick": 0.15, "paper": 60.0}  # for one point


def rnn_chain(T, B, H, rng):
    """Make the structured chain of an RNN that has read bitstreams."""
    model = rnn.RNN(1, H, 10, rng=rng)
    x, _ = Bitstream(T, B, rng=rng).batch(np.arange(B))
    return model.chain(model.forward(x, backend="cpu"), backend="cpu")


def time_passes(model, x, y, backend, seconds, also=None):
    """Time the forward pass with its loss, all methods' backward passes, and `also`: seconds, a row per round."""
    made = None

    def forward():
        nonlocal made
        activations = model.forward(x, backend=backend)
        _, grad_logits = cross_entropy(activations.logits, y)
        made = activations, grad_logits

    def backward(method):
        model.backward(*made, method=method, backend=backend)

    calls = [forward, *(partial(backward, method) for method in METHODS)]
    if backend == "cuda":  # recorded, and without the loss: how long Python takes to issue launches is no GPU's time
        from bppsa_nb.papers.bppsa import on_gpu

        forward()
        grad_output = made[1] @ model.params["fc.weight"]
        recorded = [on_gpu.forward(model, x), *(on_gpu.backward(model, x, grad_output, method) for method in METHODS)]
        calls = [run for run, _ in recorded]
    return take_turns([*calls, also] if also else calls, seconds, (3, 200 if backend == "cuda" else 20))


def time_rnn(point, rng, seconds):
    """Time the paper's RNN at the `backend`, `T` and `B` of `point`, in seconds per iteration: a row per method."""
    backend, T, B = point["backend"], point["T"], point["B"]
    model = rnn.RNN(input_size=1, hidden_size=20, num_classes=10, rng=rng)
    x, y = Bitstream(T, B, rng=rng).batch(np.arange(B))
    rounds = time_passes(model, x, y, backend, seconds)
    forward, *backward = np.median(rounds, axis=0)
    return [
        {"method": method, "forward": forward, "backward": median, "backward_std": std, "rounds": len(rounds)}
        for method, median, std in zip(METHODS, backward, np.std(rounds, axis=0)[1:], strict=True)
    ]


def time_gated(point, rng, backend, seconds):
    """Time the paper's GRU, or an LSTM, on random features, as `point` says: Table 6's columns, one row."""
    features, B = FEATURES[point["features"]], point["B"]
    model = {"GRU": gru.GRU, "LSTM": lstm.LSTM}[point["cell"]](features.size, 20, len(LABELS), rng=rng)
    x = rng.standard_normal((features.frames, B, features.size), np.float32)
    y = rng.integers(len(LABELS), size=B)
    # What does not change from round to round; times depend on sizes only.
    saved = model.forward(x, backend=backend)
    assemble = assembly(model, saved, backend)
    forward, *parts = time_passes(model, x, y, backend, seconds, assemble).T
    names = (*METHODS.values(), "forward_overhead")  # assembly and diagonals are parts of backward passes
    whole = {"forward": forward} | {name: forward + part for name, part in zip(names, parts, strict=True)}
    row = {name: np.median(each) for name, each in whole.items()}
    return [row | {f"{name}_spread": np.std(each) for name, each in whole.items()} | {"rounds": len(forward)}]


def assembly(model, activations, backend):
    """Prepare to assemble the first layer's transposed Jacobians [shape=(T, B, H, H)], as a backward pass does.

    On a GPU they stay there, scaled, beside their exponents of two [shape=(T, B)].
    """
    if backend != "cuda":
        chains = implementation("bppsa_nb.chains.runs", backend)
        return lambda: chains.jacobians_T(model.chain(activations, backend=backend))
    from bppsa_nb.papers.bppsa import on_gpu

    return on_gpu.assembly(model, activations)
