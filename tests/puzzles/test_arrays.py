"""The puzzles about Jacobians, gradients and sparse products."""

import numpy as np
import puzzle_answers
import pytest

import bppsa_nb as bp
from bppsa_nb.puzzles import arrays


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize("answer", [*puzzle_answers.read("arrays")], ids=str)
def test_answers_are_judged(answer):
    answer.judge()


def test_multiplications_are_counted():
    for name, answer, count in [
        ("rnn_jacobian", arrays.rnn_jacobian, 30),
        ("rnn_jacobian", lambda weight_hh, h: -weight_hh.T * -(1 - h**2), 30),
        ("sparse_product", arrays.sparse_product, 45),
    ]:
        assert arrays.PUZZLES[name].check(answer).costs == [("multiplications", count, count)]


@pytest.mark.parametrize("kind", ["rnn", "gru"])
def test_jacobians_are_those_of_the_cells(kind):
    model = dict(rnn=bp.RNN, gru=bp.GRU)[kind](2, 3, 4, rng=0, dtype=np.float64)
    rng = np.random.default_rng(0)
    x, h0 = rng.standard_normal((1, 1, 2)), rng.uniform(-1, 1, (1, 1, 3))
    W, h = model.params["weight_hh_l0"], h0[0, 0]

    def step(h):
        return model.forward(x, h[None, None]).hidden[0, 1, 0]

    nudged = np.array([(step(h + nudge) - step(h - nudge)) / 2e-6 for nudge in 1e-6 * np.eye(3)])
    if kind == "rnn":
        found = arrays.rnn_jacobian(W, step(h))
    else:
        sums = model.params["weight_ih_l0"] @ x[0, 0] + model.params["bias_ih_l0"]
        (i_r, i_z, i_n), (h_r, h_z, m) = np.split(sums, 3), np.split(W @ h + model.params["bias_hh_l0"], 3)
        r, z = 1 / (1 + np.exp(-i_r - h_r)), 1 / (1 + np.exp(-i_z - h_z))
        found = arrays.gru_jacobian(W, h, r, z, np.tanh(i_n + r * m), m)
    np.testing.assert_allclose(found, nudged, atol=1e-8)
