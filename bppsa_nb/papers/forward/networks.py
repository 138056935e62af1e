"""Networks whose states are found in parallel, and what each iteration finds."""

from functools import partial

import numpy as np

import bppsa_nb as bp
from bppsa_nb.cells.chunked import Chunks
from bppsa_nb.cells.unroll import propagate

H, CLASSES = 20, 10


def make(kind, rng, iterations, dtype=np.float64):
    """Make a network: "fresh", "chaos", "gru", a "latch", or one "trained" for some iterations on sequences of 100."""
    if kind == "gru":
        return bp.GRU(1, H, CLASSES, rng=rng, dtype=dtype)
    if kind == "trained":
        model = fresh(rng, np.float32)
        trainer = bp.Trainer(model, bp.Adam(lr=1e-3), method="linear", forward="linear")
        trainer.fit(bp.Bitstream(100, 16 * iterations, rng=rng), 1, 16, rng=0, progress=False)
        return like(model, dtype)
    if kind == "latch":
        return latch()
    model = fresh(rng, dtype)
    return scaled(model, 3) if kind == "chaos" else model


def inputs(T, B, rng, dtype=np.float64):
    """Return random bits, as the paper's RNN is trained on [shape=(T, B, 1)]."""
    return bp.Bitstream(T, B, rng=rng, dtype=dtype).batch(np.arange(B))[0]


def fresh(rng, dtype=np.float64):
    """Make the paper's RNN as it starts out."""
    return bp.RNN(1, H, CLASSES, rng=rng, dtype=dtype)


def like(model, dtype):
    """Return a model with the same parameters in another precision."""
    found = fresh(0, dtype)
    for name, param in model.params.items():
        found.params[name][...] = param
    return found


def latch():
    """Make an RNN each of whose states has two basins, and stays in one until a pulse pushes it into the other."""
    model = fresh(0)
    model.params["weight_hh_l0"][...] = 1.5 * np.eye(H)
    model.params["weight_ih_l0"][...] = np.linspace(0.5, 1, H)[:, None]
    for name in ("bias_ih_l0", "bias_hh_l0"):
        model.params[name][...] = 0
    return model


def pulses(T):
    """Return what switches a `latch`: one way at the first step, and the other way after a quarter of the time."""
    x = np.zeros((T, 1, 1))
    x[0], x[T // 4] = -1, 4
    return x


def states_of(model, x):
    """Run a model of one layer step by step; return its states [shape=(T, B, H)]."""
    return _run(model, x, np.zeros((x.shape[1], H), x.dtype))[0][1:]


def scaled(model, radius):
    """Scale a model's recurrent weights to a spectral radius."""
    weight = model.params["weight_hh_l0"]
    weight *= radius / abs(np.linalg.eigvals(weight)).max()
    return model


def exponent(model, x, rng):
    """Estimate the largest Lyapunov exponent: by how much nearby states part, or meet, in a step; of one sample."""
    weight, states = model.params["weight_hh_l0"], states_of(model, x)[:, 0]
    direction, grown = rng.standard_normal(H), 0.0
    for state in states:
        direction = (1 - state**2) * (weight @ direction)
        size = np.linalg.norm(direction)
        direction, grown = direction / size, grown + np.log(size)
    return float(grown / len(states))


def newton(model, x, most, diagonal=False):
    """Yield all states [shape=(T, B, H)], corrected once more each time: Newton's method, by the scan (DEER).

    Of Jacobians, quasi-DEER takes the `diagonal` alone.
    """
    weight = model.params["weight_hh_l0"]
    added = x @ model.params["weight_ih_l0"].T + model.params["bias_ih_l0"] + model.params["bias_hh_l0"]
    states = np.tanh(added)  # a step from zeros
    yield states
    for _ in range(most):
        before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
        found = np.tanh(added + before @ weight.T)
        slopes = (1 - found**2)[..., None] * (np.diag(np.diag(weight)) if diagonal else weight)
        with np.errstate(all="ignore"):
            corrected = states + propagate(np.concatenate([slopes, slopes[:1]]), found - states)
        corrected = np.clip(corrected, -1, 1)  # whatever tanh returns
        states = np.where(np.isfinite(corrected), corrected, found)
        yield states


def chunks(model, x, length, most, tol=1e-12):
    """Yield all states, after each pass over chunks of a length."""
    cut = Chunks(partial(_run, model), x, np.zeros((x.shape[1], H), x.dtype), length)
    cut.run_all(cut.guess())
    yield cut.result()[0][1:].copy()
    for _ in range(most):
        cut.take_pass(tol)
        yield cut.result()[0][1:].copy()


def _run(model, x, h0):
    """Run Equation 9 with a product for each sample, so that it is rounded alike whatever runs beside it."""
    added = x @ model.params["weight_ih_l0"].T + model.params["bias_ih_l0"] + model.params["bias_hh_l0"]
    states, weight_T = np.concatenate([h0[None], added]), model.params["weight_hh_l0"].T
    for t in range(len(x)):
        states[t + 1] = np.tanh(added[t] + (states[t][:, None] @ weight_T)[:, 0])
    return (states,)
