"""What layers of any cell share, in NumPy: from gradients at their sums to those of parameters and inputs."""

import numpy as np


def parameter_gradients(x, hidden, from_x, from_h):
    """Turn gradients at a layer's sums into gradients of its parameters (Equation 2).

    Parameters
    ----------
    x : np.ndarray [shape=(T, B, I)]
        The layer's input.
    hidden : np.ndarray [shape=(T + 1, B, H)]
    from_x, from_h : list of np.ndarray [shape=(T, B, H)]
        At what products of the input and of the hidden state were added to: one in an RNN, three in a GRU.

    Returns
    -------
    dict of str to np.ndarray
        Gradients of ``weight_ih``, ``weight_hh``, ``bias_ih`` and ``bias_hh``, summed over time and batch.
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
    """Turn gradients at a layer's sums into gradients at its input.

    Parameters
    ----------
    weight_ih : np.ndarray [shape=(G, I)]
    from_x : list of np.ndarray [shape=(T, B, H)]

    Returns
    -------
    np.ndarray [shape=(T, B, I)]
    """
    return sum(at @ weight for at, weight in zip(from_x, np.split(weight_ih, len(from_x)), strict=True))
