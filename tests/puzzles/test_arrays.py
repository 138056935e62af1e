"""The puzzles about Jacobians, gradients and sparse products."""

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.puzzles import arrays

split = np.split
CHANGED = "it changes {0}, which others still read; work on a copy, and leave {0} as it is"
BY_HEART = "IndexError on line 1 of yours: index 2 is out of bounds for axis 0 with size 2 (with H = 2; with H = 3 it"
# By what an answer is called and given: what it returns, and what is said then.
WRONG = {
    "rnn_jacobian(W, h)": [
        ("(1 - h**2)[:, None] * W", "that is the Jacobian; it is to be transposed"),
        ("W.T", "the slopes of tanh are missing"),
        ("W.T * (1 - h**2)[:, None]", "the slopes belong to what is behind the step: to columns"),
        ("W * (1 - h**2)", "the slopes belong to what is behind the step: to the rows"),
        ("W.T * (1 - h)", "the slope of tanh is 1 - h'², the square"),
        ("W.T * (1 - np.tanh(h) ** 2)", "h' is what tanh gave already"),
        ("W.T @ (1 - h**2)", "is an array of shape (3,) and should be an array of shape (3, 3)"),
        ("2 * W", "rnn_jacobian(weight_hh, h)[0, 0] is 0.2515 and should be "),
        ("W @ h[:2]", "ValueError on line 1 of yours: matmul"),
        ("np.ma.masked_all(W.shape)", "is a masked array and should be a plain one"),
        ("np.multiply(W, (1 - h**2)[:, None], out=W).T", CHANGED.format("weight_hh")),
        ("W.T * np.subtract(1, h * h, out=h)", CHANGED.format("h")),
        ("(W.T * (1 - h**2)).astype(str)", "is an array of <U32 and should be one of numbers"),
        ("np.sqrt(W.T + 0j) ** 2 * (1 - h**2)", "is an array of complex128 and should be"),
        ("(W.T * (1 - h**2)).tolist()", "and should be an array of shape (3, 3)"),
        ("np.array([[W[j, i] * (1 - h[j] ** 2) for j in range(3)] for i in range(3)])", BY_HEART),
    ],
    "gru_jacobian(W, h, r, z, n, m)": [
        ("right(W, h, r, z, n, m).T", "that is the Jacobian; it is to be transposed"),
        ("right(W, h, r, z, n, m) - np.diag(z)", "a way is missing: past the gates"),
        ("right(W, h, r, z, n, 0 * m)", "a way is missing: through r"),
        ("np.diag(z) + W[6:].T * ((1 - z) * (1 - n**2) * r)", "through z and through r"),
        ("right(W, 2 * n - h, r, z, n, m)", "through z it is (h - n), and not (n - h)"),
        ("right(W, h, r, z, n, m) + W[6:].T * ((1 - z) * (1 - n**2) * (1 - r))", "through m there is a factor r"),
        ("right(W, h, r, z, n, m) + W[:3].T * ((1 - z) * (1 - n**2) * (1 - m) * r * (1 - r))", "r there is a factor m"),
        ("0", "gru_jacobian(...) is 0 and should be an array of shape (3, 3)"),
        ("[right(W, h, r, z, n, m), z.fill(0)][0]", CHANGED.format("z")),
        ("right(W, h[:3], r[:3], z, n, m)", "(3,) (5,)  (with H = 5; with H = 3 it was right)"),
    ],
    "weight_gradient(g, h)": [
        ("(sums(g, h[:-1]).T, g.sum((0, 1)))", "it is transposed"),
        ("(sums(g, h[1:]), g.sum((0, 1)))", "the state *before* the step, hidden[:-1]"),
        ("(sums(g[-1:], h[-2:-1]), g[-1].sum(0))", "that is of the last step"),
        ("(sums(g[:1], h[:1]), g[0].sum(0))", "that is of the first step"),
        ("(sums(g, h[:-1]) / len(g), g.sum((0, 1)))", "nobody divides by T"),
        ("(sums(g, h[:-1]) / g.shape[1], g.sum((0, 1)))", "the loss has divided by B already"),
        ("(sums(g, h[:-1]), g.mean((0, 1)))", "the gradient of b_hh: gradients of all steps"),
        ("(sums(g, h[:-1]), g[-1].sum(0))", "that is of the last step; b_hh is used"),
        ("sums(g, h[:-1])", "should return two arrays"),
        ("(sums(g, h[:-1]), np.cumsum(g, 0, out=g)[-1].sum(0))", CHANGED.format("grad_sums")),
        ("(sum(g[t].T @ h[t] for t in range(4)), g.sum((0, 1)))", "T = 2, B = 3, H = 4"),
        ("(sums(g, h[:-1]), g.sum((0, 1))[None])", "b_hh is an array of shape (1, 3)"),
    ],
    "sparse_product(s, p, q, a, b)": [
        ("(a[p] * b[q])[: len(s) - 1]", "what it returned[0] is 2.2500"),
        ("(a[p] * b[q])[s[:-1]]", "that is the first product of each entry"),
        ("(a[p] * b[q])[s[1:] - 1]", "that is the last product of each entry"),
        ("np.cumsum(a[p] * b[q])[s[1:] - 1]", "those are running totals"),
        ("a[p] * b[q]", "array of shape (22,) and should be an array of shape (11,)"),
        ("np.add.reduceat(a[q] * b[p], s[:-1])", "IndexError on line 1 of yours"),
        ("np.add.reduceat(a[p] * b[q], s)", "IndexError on line 1 of yours"),
        ("[np.add.reduceat(a[p] * b[q], s[:-1]), b.fill(0)][0]", CHANGED.format("b")),
    ],
}


def right(*given):
    return arrays.gru_jacobian(*given)


def sums(grad, hidden):
    return sum(grad[t].T @ hidden[t] for t in range(len(grad)))


@pytest.mark.parametrize("name", arrays.PUZZLES)
def test_solutions_are_right_and_stubs_are_not(name):
    puzzle, names = arrays.PUZZLES[name], {"np": np}
    assert puzzle.check(puzzle.solution).right and puzzle.solution.__name__ == name and len(puzzle.hints) == 3
    exec(puzzle.stub, names)
    assert not puzzle.check(names[name]).right


@pytest.mark.parametrize("answer, row", [(answer, row) for answer, rows in WRONG.items() for row in range(len(rows))])
def test_wrong_answers_are_told_why(answer, row):
    (name, _, names), (text, message) = answer[:-1].partition("("), WRONG[answer][row]
    verdict = arrays.PUZZLES[name].check(eval(f"lambda {names}: {text}", globals()))
    assert not verdict and message in verdict.message


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
        (i_r, i_z, i_n), (h_r, h_z, m) = split(sums, 3), split(W @ h + model.params["bias_hh_l0"], 3)
        r, z = 1 / (1 + np.exp(-i_r - h_r)), 1 / (1 + np.exp(-i_z - h_z))
        found = arrays.gru_jacobian(W, h, r, z, np.tanh(i_n + r * m), m)
    np.testing.assert_allclose(found, nudged, atol=1e-8)
