"""What layers of any cell share, in NumPy: from pre-activation gradients to those of parameters and inputs."""

import numpy as np

NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"  # of a layer's parameters


def parameter_gradients(x, hidden, from_x, from_h):
    """Turn a layer's pre-activation gradients into those of its parameters (Equation 2), by name.

    They are summed over time and batch. `x` [shape=(T, B, I)] is the layer's input, `hidden` its states [shape=(T + 1,
    B, H)]; `from_x` and `from_h` are lists of gradients [shape=(T, B, H)] at what products of the input and of the
    state were added to: one in an RNN, three in a GRU.
    """
    # All steps and samples at once: one matrix product per weight, after the time loop.
    rows = lambda array: array.reshape(-1, array.shape[2])  # noqa: E731
    return {
        "weight_ih": np.concatenate([rows(at).T @ rows(x) for at in from_x]),
        "weight_hh": np.concatenate([rows(at).T @ rows(hidden[:-1]) for at in from_h]),
        "bias_ih": np.concatenate([at.sum(axis=(0, 1)) for at in from_x]),
        "bias_hh": np.concatenate([at.sum(axis=(0, 1)) for at in from_h]),
    }


def input_gradients(weight_ih, from_x):
    """Turn pre-activation gradients, a list of [shape=(T, B, H)], into those at the input [shape=(T, B, I)]."""
    return sum(at @ weight for at, weight in zip(from_x, np.split(weight_ih, len(from_x)), strict=True))
