"""A cell that the package does not have, in one file: a minimal gated unit, with a single gate f (Zhou et al., 2016).

``f_t = sigmoid(W_if x_t + b_if + W_hf h_{t-1} + b_hf)``, ``M_t = W_hn h_{t-1} + b_hn``,
``n_t = tanh(W_in x_t + b_in + f_t M_t)``, ``h_t = (1 - f_t) n_t + f_t h_{t-1}``.
"""

import numpy as np
from scipy.special import expit

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.chains.structured import StructuredChain


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run the cell over time; return hidden states [shape=(T + 1, B, H)], and f, n and M [shape=(3, T, B, H)]."""
    hidden = np.empty((len(x) + 1, *h0.shape), x.dtype)
    gates = np.empty((3, len(x), *h0.shape), x.dtype)
    hidden[0] = h0
    f, n, m = gates
    for t in range(len(x)):
        x_f, x_n = np.split(x[t] @ weight_ih.T + bias_ih, 2, axis=1)
        h_f, m[t] = np.split(hidden[t] @ weight_hh.T + bias_hh, 2, axis=1)
        f[t] = expit(x_f + h_f)
        n[t] = np.tanh(x_n + f[t] * m[t])
        hidden[t + 1] = (1 - f[t]) * n[t] + f[t] * hidden[t]
    return hidden, gates


def diagonals(hidden, gates):
    """Derive h_t by the three sums: F of the gate, M of the state, N of the candidate."""
    f, n, m = gates
    to_n = (1 - f) * (1 - n * n)
    return f * (1 - f) * (hidden[:-1] - n + m * to_n), f * to_n, to_n


def chain(weight_hh, hidden, gates):
    """Take the transposed Jacobians: two weights, whose sums are F and M, and a carry."""
    to_f, to_m, _ = diagonals(hidden, gates)
    size = weight_hh.shape[1]
    return StructuredChain.made(weight_hh.reshape(2, size, size), np.stack([to_f, to_m]), gates[0])


def gate_gradients(chain, hidden, gates, grad_hidden):
    """Turn gradients at the states into those at what inputs are added to (F, N), and states (F, M)."""
    at_f, at_m = chain.slopes * grad_hidden[1:]
    return [at_f, diagonals(hidden, gates)[2] * grad_hidden[1:]], [at_f, at_m]


class MinimalGatedUnit(Recurrent):
    """Layers of the cell, and a linear layer on the last state."""

    cell_module, gate_blocks, kept_gates = __name__, 2, 3
