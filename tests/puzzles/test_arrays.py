"""The puzzles about Jacobians, gradients and sparse products."""

import functools  # noqa: F401 - answers use them
import itertools  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import textwrap

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.puzzles import arrays

split = np.split
CHANGED = "it changes {0}, which others still read; work on a copy, and leave {0} as it is"
BY_HEART = "IndexError on line 1 of yours: index 2 is out of bounds for axis 0 with size 2 (with H = 2; with H = 3 it"
# What stands for longer parts of answers.
SHORT = {
    "SPLIT": "A, B, C = np.split(W, 3); q = (1 - z) * (1 - n**2)",
    "BY_Z": "np.diag(z) + B.T * ((h - n) * z * (1 - z))",
    "BY_MR": "C.T * (q * r) + A.T * (q * m * r * (1 - r))",
}
# By what an answer is called and given: what it returns, or does, and what is said then.
WRONG = {
    "rnn_jacobian(W, h)": [
        ("(1 - h**2)[:, None] * W", "that is the Jacobian; it is to be transposed"),
        ("W.T", "the slopes of tanh are missing"),
        ("W.T * (1 - h**2)[:, None]", "the slopes belong to what is behind the step: to columns"),
        ("W * (1 - h**2)", "the slopes belong to what is behind the step: to the rows"),
        ("W.T * (1 - h)", "the slope of tanh is 1 - h'², the square"),
        ("W.T * (1 - np.tanh(h) ** 2)", "h' is what tanh gave already"),
        ("W.T @ (1 - h**2)", "@ adds up products; `*` scales each column"),
        ("2 * W", "rnn_jacobian(weight_hh, h)[0, 0] is 0.2515 and should be "),
        ("W @ h[:2]", "ValueError on line 1 of yours: matmul"),
        ("np.rec.array(np.zeros((3, 3)))", "is a recarray and should be a plain array"),
        ("np.ma.masked_all(W.shape)", "is a masked array and should be a plain one"),
        ("np.multiply(W, (1 - h**2)[:, None], out=W).T", CHANGED.format("weight_hh")),
        ("W.T * np.subtract(1, h * h, out=h)", CHANGED.format("h")),
        ("(W.T * (1 - h**2)).astype(str)", "is an array of <U32 and should be one of numbers"),
        ("np.sqrt(W.T + 0j) ** 2 * (1 - h**2)", "is an array of complex128 and should be"),
        ("(W.T * (1 - h**2)).tolist()", "and should be an array of shape (3, 3)"),
        ("np.array([[W[j, i] * (1 - h[j] ** 2) for j in range(3)] for i in range(3)])", BY_HEART),
        ("np.diag(1 - h**2) @ W", "that is the Jacobian; it is to be transposed"),
        ("np.diag(1 - h**2) @ W.T", "the slopes belong to what is behind the step:"),
        ("W.T @ np.diag(h)", "[0, 0] is -0.1072 and should be 0.0343"),
        ("W.T * 1 - h**2", "parentheses are missing: 1 - h'² is one factor"),
        ("W.T * (1 - h*2)", "that is twice h'; the square is h ** 2"),
        ("W.T * (1 - h**2)**2", "the slopes are in it twice"),
        ("W.T * (h**2 - 1)", "it has the other sign; the slope is 1 - h'²"),
        ("W.T * (1 + h**2)", "[0, 0] is 0.2171 and should be 0.0343"),
        ("-W.T * (1 - h**2)", "it has the other sign; the slope is 1 - h'²"),
        ("np.diag(1 - h**2)", "those are the slopes; W_hh is missing"),
        ("1 - h**2", "is an array of shape (3,) and should be one"),
        ("np.dot(W, np.diag(1 - h**2))", "the slopes belong to what is behind the step:"),
        ("np.einsum('ij,j->ij', W, 1 - h**2)", "the slopes belong to what is behind the step:"),
        ("np.einsum('ij,i->ij', W, 1 - h**2)", "that is the Jacobian; it is to be transposed"),
        ("np.einsum('ij,i->ji', W, 1 - h**2).astype(np.float32)", "is right in its first digits only. Is"),
        ("(W.T * (1 - h**2)).astype(int)", "is an array of int64, so all behind the point"),
        ("(W.T * (1 - h**2)).astype(np.float16)", "is right in its first digits only. Is"),
        ("np.matrix(W).T * np.diag(1 - h**2)", "is a matrix, whose * is another product, and"),
        ("[[W[j, i] * (1 - h[j]**2) for j in range(len(h))] for i in range(len(h))]",
         "is a list and should be an array of shape (3,"),
        ("W *= (1 - h**2)[:, None]; return W.T", "it changes weight_hh"),
        ("J = W.T; J *= 1 - h**2; return J", "it changes weight_hh"), ("h **= 2; return W.T * (1 - h)", "it changes h"),
        ("np.square(h, out=h); return W.T * (1 - h)", "it changes h"),
        ("pass; return", "is None (is a return missing?) and should be"),
        ("yield W.T * (1 - h**2)", "is a generator, since it has a yield, and"),
        ("J = np.zeros((3, 3)); J[:] = W.T * (1 - h**2); return J", "ValueError on line 1 of yours: could not"),
        ("J = np.zeros_like(W, dtype=int); J[...] = W.T * (1 - h**2); return J",
         "is an array of int64, so all behind the point"),
        ("J = np.zeros_like(W)\nfor i in range(len(h)):\n    for j in range(len(h)):\n"
         "        J[i, j] = W[j, i] * (1 - h[i]**2)\nreturn J", "the slopes belong to what is behind the step:"),
        ("J = np.zeros_like(W)\nfor i in range(len(h) - 1):\n    for j in range(len(h)):\n"
         "        J[i, j] = W[j, i] * (1 - h[j]**2)\nreturn J", "[2, 0] and 2 more: nothing has come there"),
        ("J = W.T.copy()\nfor j in range(1, len(h)):\n    J[:, j] *= 1 - h[j]**2\nreturn J",
         "[0, 0] and 2 more: the slopes of tanh are"),
        ("J = W.T.copy()\nfor j in range(3):\n    J[:, j] *= 1 - h[j]**2\nreturn J",
         "IndexError on line 4 of yours: index 2 is out"),
        ("W.T * (1 - h**2) * np.eye(len(h))", "only the diagonal is there; other numbers"),
        ("(W.T * (1 - h**2)).ravel()", "is an array of shape (9,) and should be one"),
        ("(W.T * (1 - h**2))[None]", "is an array of shape (1, 3, 3) and should be"),
        ("np.kron(W.T, 1 - h**2)", "is an array of shape (3, 9) and should be one"),
        ("np.vdot(W, 1 - h**2)", "ValueError on line 1 of yours: cannot reshape"),
        ("np.triu(W.T * (1 - h**2))", "[1, 0] and 2 more: nothing has come there"),
        ("torch.diag(1 - h**2)", "NameError on line 1 of yours: name 'torch' is"),
        ("str(W)", "is '[[ 0.12573022 -0.13210486  0.64042265]\\n"),
        ("(W.T, 1 - h**2)", "is (array([[ 0.12573022,  0.10490012, "),
        ("{'J': W.T * (1 - h**2)}", "is {'J': array([[ 0.03434388,  0.07277385, "),
        ("((1, 2), (3,))", "is ((1, 2), (3,)) and should be an array of"),
        ("np.full_like(W, np.nan)", "[0, 0] is nan and should be 0.0343"),
        ("np.array([W.T * (1 - h**2)], dtype=object)", "is an array of object and should be one of"),
        ("lambda: W.T", "<lambda> at 0x"),
    ],
    "gru_jacobian(W, h, r, z, n, m)": [
        ("SPLIT; return BY_Z - (BY_MR)", "the sign is wrong through m and through r"),
        ("SPLIT; return BY_Z - C.T * (q * r)", "a way is missing: through r; the sign is wrong through m"),
        ("right(W, h, r, z, n, n)", "should be 0.2236. Look again at what comes through r"),
        ("right(W, h, r, z, n, m) + np.diag(z)", "Look again at what comes past the gates"),
        ("SPLIT; return BY_Z + C.T * q + A.T * (q * r * (1 - r))", "both factors are missing"),
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
        ("right(W[::-1], h, r, z, n, m)", "[0, 0] is 0.5925 and should be 0.2236"),
        ("right(np.concatenate(np.split(W, 3)[::-1]), h, r, z, n, m)", "the rows of W_r come first, then those of"),
        ("right(np.concatenate([W[3:6], W[:3], W[6:]]), h, r, z, n, m)", "the rows of W_r come first, then those of"),
        ("right(W, h, z, r, n, m)", "[0, 0] is 0.3915 and should be 0.2236"),
        ("right(W, h, r, z, n, m) - np.diag(z) + np.diag(1 - z)", "past the gates there is z, and not 1 - z"),
        ("right(W, h, r, z, n, m) - np.diag(z) + z", "past the gates number i moves number i alone:"),
        ("right(W, h, r, z, n, m) - np.diag(z) + np.eye(len(h))", "past the gates there is a factor z"),
        ("right(W, h, r, z, n, m).tolist()", "is a list and should be an array of shape (3,"),
        ("np.matrix(right(W, h, r, z, n, m))", "is a matrix, whose * is another product, and"),
        ("SPLIT; return np.diag(z) + B * ((h - n) * z * (1 - z)) + C * (q * r) + A * (q * m * r * (1 - r))",
         "W_r, W_z and W_n are to be transposed; then"),
        ("SPLIT; return np.diag(z) + B.T * ((h - n) * (1 - z)) + BY_MR",
         "through z the slope of sigmoid is z (1 - z);"),
        ("A, B, C = np.split(W, 3); q = (1 - z); return BY_Z + BY_MR", "the slope of tanh, 1 - n², is missing"),
        ("A, B, C = np.split(W, 3); q = (1 - n**2); return BY_Z + BY_MR",
         "h' has (1 - z) n in it: through m and r there"),
        ("A, B, C = np.split(W, 3); q = z * (1 - n**2); return BY_Z + BY_MR", "h' has (1 - z) n in it, and not z n"),
        ("SPLIT; return BY_Z + C.T * (q * r) + A.T * (q * m * r)", "through r the slope of sigmoid is r (1 - r);"),
        ("SPLIT; return np.diag(z) + B.T * (h * z * (1 - z)) + BY_MR",
         "h' has z n in it, too: through z it is (h - n)"),
        ("SPLIT; return BY_Z[:, None] + C.T * (q * r)[:, None] + A.T * (q * m * r * (1 - r))[:, None]",
         "columns are scaled, once the weights are"),
        ("A, B, C = np.split(W, 3, axis=1); return BY_Z", "ValueError on line 1 of yours: operands could"),
        ("A, B, C = W[:3], W[3:6], W[6:]; q = (1 - z) * (1 - n**2); return BY_Z + BY_MR",
         "ValueError on line 1 of yours: operands could"),
        ("A, B, C = np.split(W, 3); B *= ((h - n) * z * (1 - z))[:, None]; q = (1 - z) * (1 - n**2); "
         "return np.diag(z) + B.T + BY_MR", "it changes weight_hh"),
        ("J = right(W, h, r, z, n, m); m *= r; return J", "it changes m"),
        ("J = right(W, h, r, z, n, m); np.subtract(1, r, out=r); return J", "it changes r"),
        ("J = right(W, h, r, z, n, m); W.shape = (-1,); return J", "it changes weight_hh"),
        ("np.diag(z)", "a way is missing: through z and through m and"),
        ("-right(W, h, r, z, n, m)", "it has the other sign"),
        ("right(W, h, r, z, n, m)[:, 0]", "is an array of shape (3,) and should be one"),
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
        ("(sum(g[t].T @ h[t] for t in range(4)), g.sum((0, 1)))", "(with T = 1, B = 1, H = 1; with T = 4"),
        ("(sums(g, h[:-1]), g.sum((0, 1))[None])", "b_hh is an array of shape (1, 3)"),
        ("(np.einsum('tbi,tbj->ji', g, h[:-1]), g.sum((0, 1)))", "row i belongs to number i of the sum, column"),
        ("(np.einsum('tbi,tbj->ij', g, h[1:]), g.sum((0, 1)))", "W_hh is multiplied by the state *before* the"),
        ("(np.einsum('tbi,tbj->ij', g, h), g.sum((0, 1)))", "ValueError on line 1 of yours: operands could"),
        ("(np.einsum('tbi,tbj->tij', g, h[:-1]), g.sum((0, 1)))", "there is one for each step; add them up"),
        ("(np.einsum('tbi,tbj->bij', g, h[:-1]), g.sum((0, 1)))", "there is one for each sample; add them up"),
        ("(np.einsum('tbi,sbj->ij', g, h[:-1]), g.sum((0, 1)))", "gradients of a step meet states of others"),
        ("(np.einsum('tbi,tcj->ij', g, h[:-1]), g.sum((0, 1)))", "gradients of a sample meet states of others"),
        ("(g.sum((0, 1)), sums(g, h[:-1]))", "the two are swapped: that of W_hh, H by H"),
        ("(sums(g, h[:-1]), g.sum(0))", "there is one for each sample; add them up"),
        ("(sums(g, h[:-1]), g.sum(1))", "there is one for each step; add them up"),
        ("(sums(g, h[:-1]), g.sum())", "the gradient of b_hh is"),
        ("(sums(g, h[:-1]), g.sum(2))", "the gradient of b_hh is an array of shape (4,"),
        ("(sums(g, h[:-1]), g.sum((1, 2)))", "the gradient of b_hh is an array of shape"),
        ("(sums(g, h[:-1]), h[:-1].sum((0, 1)))", "those are states; b_hh itself is multiplied"),
        ("(sums(g, h[:-1]), g.sum((0, 1), keepdims=True))", "the gradient of b_hh is an array of shape (1,"),
        ("(sums(g, h[:-1]), np.einsum('tbi->i', g).astype(np.float32))", "the gradient of b_hh is right in its first"),
        ("(sums(g, h[:-1]).astype(np.float32), g.sum((0, 1)))", "the gradient of W_hh is right in its first"),
        ("(sums(g, h[:-1]).tolist(), g.sum((0, 1)).tolist())", "the gradient of W_hh is a list and should be"),
        ("(sums(g, h[:-1]), list(g.sum((0, 1))))", "the gradient of b_hh is a list and should be"),
        ("(np.matrix(sums(g, h[:-1])), g.sum((0, 1)))", "the gradient of W_hh is a matrix, whose *"),
        ("(g.T @ h[:-1], g.sum((0, 1)))", "ValueError on line 1 of yours: matmul: Input"),
        ("(g @ h[:-1], g.sum((0, 1)))", "ValueError on line 1 of yours: matmul: Input"),
        ("(np.tensordot(g, h[:-1], 2), g.sum((0, 1)))", "ValueError on line 1 of yours: shape-mismatch"),
        ("(np.outer(g.sum((0, 1)), h[:-1].sum((0, 1))), g.sum((0, 1)))", "that is a product of sums, and should be a"),
        ("(np.mean(g, 1).T @ np.mean(h[:-1], 1), g.sum((0, 1)))", "the gradient of W_hh[0, 0] is -0.1886 and"),
        ("(sums(g, h[:-1]) * len(g), g.sum((0, 1)))", "the gradient of W_hh[0, 0] is -5.7297 and"),
        ("(sums(g, h[:-1]), g[0].sum(0))", "that is of the first step; b_hh is used in"),
        ("(sums(g, h[:-1]), np.zeros(g.shape[2]))", "nothing has come there"),
        ("(sums(g, h[:-1]), g.sum((0, 1)) / len(g))", "the gradient of b_hh[0] is -0.2525 and should"),
        ("(np.zeros((g.shape[2], g.shape[2])), g.sum((0, 1)))", "nothing has come there"),
        ("W = np.zeros((3, 3), int)\nfor t in range(len(g)): W += g[t].T.astype(int) @ h[t].astype(int)\n"
         "return W, g.sum((0, 1))", "the gradient of W_hh is an array of int64, so"),
        ("W = np.zeros((g.shape[2], g.shape[2]))\nfor t in range(len(g)): W = g[t].T @ h[t]\nreturn W, g.sum((0, 1))",
         "that is of the last step; W_hh is used in all"),
        ("W = np.zeros((3, 3))\nfor t in range(len(g)): W += g[t].T @ h[t]\nreturn W, g.sum((0, 1))",
         "the gradient of W_hh is an array of shape (3,"),
        ("W = 0\nfor t in range(len(g)): W += g[t].T @ h[t + 1]\nreturn W, g.sum((0, 1))",
         "W_hh is multiplied by the state *before* the"),
        ("W = 0\nfor t in range(len(g) + 1): W += g[t].T @ h[t]\nreturn W, g.sum((0, 1))",
         "IndexError on line 3 of yours: index 4 is out"),
        ("for t in range(1, len(g)): g[t] += g[t - 1]\nreturn sums(g, h[:-1]), g[-1].sum(0)", "it changes grad_sums"),
        ("h *= 0.5; return sums(g, 2 * h[:-1]), g.sum((0, 1))", "it changes hidden"),
        ("b = g[0]; b += g[1:].sum(0); return sums(g, h[:-1]), b.sum(0)", "it changes grad_sums"),
        ("h = h[:-1].squeeze(); g = g.squeeze(); return np.einsum('tbi,tbj->ij', g, h), g.sum((0, 1))",
         "ValueError on line 1 of yours: einstein sum"),
        ("sums(g, h[:-1]), g.sum((0, 1)), 0", "it returned (array([[-1.43241524, "),
        ("{'W': sums(g, h[:-1]), 'b': g.sum((0, 1))}", "it returned {'W': array([[-1.43241524, "),
        ("np.array([1.0, 2.0])", "it returned array([1., 2.]) and should return"),
        ("(None, None)", "the gradient of W_hh is None (is a return"),
        ("(sums(g, h[:-1]), None)", "the gradient of b_hh is None (is a return"),
        ("return", "it returned None (is a return missing?) and"),
        ("yield sums(g, h[:-1])", "it returned a generator, since it has a"),
        ("(np.einsum('tbi,tbi->i', g, h[:-1]), g.sum((0, 1)))", "the gradient of W_hh is an array of shape"),
        ("(np.dot(g.reshape(-1, g.shape[2]), h[:-1].reshape(-1, g.shape[2]).T), g.sum((0, 1)))",
         "the gradient of W_hh is an array of shape (8,"),
    ],
    "sparse_product(s, p, q, a, b)": [
        ("(a[p] * b[q])[: len(s) - 1]", "what it returned[0] is 2.2500"),
        ("(a[p] * b[q])[s[:-1]]", "that is the first product of each entry"),
        ("(a[p] * b[q])[s[1:] - 1]", "that is the last product of each entry"),
        ("np.cumsum(a[p] * b[q])[s[1:] - 1]", "those are running totals"),
        ("a[p] * b[q]", "those are all products; each entry is the sum of its own"),
        ("np.add.reduceat(a[q] * b[p], s[:-1])", "IndexError on line 1 of yours"),
        ("np.add.reduceat(a[p] * b[q], s)", "IndexError on line 1 of yours"),
        ("[np.add.reduceat(a[p] * b[q], s[:-1]), b.fill(0)][0]", CHANGED.format("b")),
        ("np.add.reduceat(a[p] * b[q], s[1:])", "IndexError on line 1 of yours: index 22"),
        ("np.add.reduceat(a[p] * b[q], s[1:-1])", "the first entry is missing"),
        ("np.add.reduceat(a[p] * b[q], s[:-1] + 1)", "[0] is 2.1677 and should be 2.1468"),
        ("np.add.reduceat(a[p], s[:-1]) * np.add.reduceat(b[q], s[:-1])", "those are products of sums, and should be"),
        ("np.add.reduceat(a[p] + b[q], s[:-1])", "[0] is 3.6492 and should be 2.1468"),
        ("np.add.reduceat(a * b, s[:-1])", "ValueError on line 1 of yours: operands could"),
        ("np.add.reduceat(a[p] * b[q], s[:-1]).astype(np.float32)", "is right in its first digits only. Is"),
        ("np.add.reduceat((a[p] * b[q]).astype(int), s[:-1])", "is an array of int64, so all behind the point"),
        ("np.add.reduceat(np.float32(a[p]) * np.float32(b[q]), s[:-1])", "is right in its first digits only. Is"),
        ("[(a[p] * b[q])[i:j].sum() for i, j in zip(s[:-1], s[1:])]", "is a list and should be an array of shape"),
        ("[sum(a[p[x]] * b[q[x]] for x in range(s[k], s[k + 1])) for k in range(len(s) - 1)]",
         "is a list and should be an array of shape"),
        ("np.array([(a[p] * b[q])[i:j + 1].sum() for i, j in zip(s[:-1], s[1:])])",
         "the product at starts[k + 1] is the next"),
        ("np.array([(a[p] * b[q])[i:j - 1].sum() for i, j in zip(s[:-1], s[1:])])",
         "the last product is missing; q goes up to"),
        ("np.array([(a[p] * b[q])[i:j].mean() for i, j in zip(s[:-1], s[1:])])",
         "nobody divides; each entry is the sum of its"),
        ("np.array([(a[p] * b[q])[i] for i, j in zip(s[:-1], s[1:])])", "that is the first product of each entry;"),
        ("np.array([(a[p] * b[q])[i:j].sum() for i, j in zip(s, s[1:])])[:-1]", "the last entry is missing"),
        ("np.array([a[p[i:j]] @ b[q[i:j]] for i, j in zip(s[:-1], s[1:])])[:, None]",
         "is an array of shape (11, 1) and should be"),
        ("np.array([np.outer(a[p[i:j]], b[q[i:j]]).sum() for i, j in zip(s[:-1], s[1:])])",
         "those are products of sums, and should be"),
        ("(a[p] * b[q]).sum().round(6)", "is np.float64(-9.068977) and should"),
        ("(a[p] @ b[q]).round(6)", "is np.float64(-9.068977) and should"),
        ("a * b", "ValueError on line 1 of yours: operands could"),
        ("c = np.zeros(len(s))\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): c[k] += a[p[x]] * b[q[x]]\nreturn c",
         "there is one entry too many: starts has one"),
        ("c = np.zeros(len(s) - 1)\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): c[k] = a[p[x]] * b[q[x]]\nreturn c",
         "that is the last product of each entry; there"),
        ("c = np.zeros(len(s) - 1)\nfor k in range(len(s) - 2):\n"
         "    for x in range(s[k], s[k + 1]): c[k] += a[p[x]] * b[q[x]]\nreturn c", "[10]: nothing has come there"),
        ("c = np.zeros(len(s) - 1, int)\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): c[k] += a[p[x]] * b[q[x]]\nreturn c",
         "is an array of int64, so all behind the point"),
        ("c = np.zeros(11)\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): c[k] += a[p[x]] * b[q[x]]\nreturn c",
         "of 1 x 1 times 1 x 1, what it returned is an"),
        ("c = np.zeros(len(s) - 1)\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): c[k] += a[x] * b[x]\nreturn c",
         "IndexError on line 4 of yours: index 9 is out"),
        ("c = np.zeros(len(s) - 1); k = np.repeat(np.arange(len(s) - 1), np.diff(s)); c[k] += a[p] * b[q]; return c",
         "that is the last product of each entry; there"),
        ("c = np.zeros(len(s) - 1); t = 0\nfor k in range(len(s) - 1):\n"
         "    for x in range(s[k], s[k + 1]): t += a[p[x]] * b[q[x]]\n    c[k] = t\nreturn c",
         "those are running totals; every entry starts"),
        ("a *= 1.0; a[p[0]] = 0; return np.add.reduceat(a[p] * b[q], s[:-1])", "it changes a"),
        ("c = np.add.reduceat(a[p] * b[q], s[:-1]); s[-1] = 0; return c", "it changes starts"),
        ("c = np.add.reduceat(a[p] * b[q], s[:-1]); p += 1; return c", "it changes left"),
        ("c = np.add.reduceat(a[p] * b[q], s[:-1]); a.sort(); return c", "it changes a"),
        ("t = a[p] * b[q]; t = np.cumsum(t); return np.diff(t[s[1:] - 1])", "the first entry is missing"),
        ("np.diff(np.cumsum(a[p] * b[q])[s[:-1]])", "is an array of shape (10,) and should be one"),
        ("return", "is None (is a return missing?) and should be"),
        ("None", "is None (is a return missing?) and should be"),
        ("np.add.reduceat(a[p] * b[q], s[:-1])[None]", "is an array of shape (1, 11) and should be"),
        ("np.matrix(np.add.reduceat(a[p] * b[q], s[:-1]))", "is a matrix, whose * is another product, and"),
        ("np.bincount(s, weights=a[p] * b[q])", "ValueError on line 1 of yours: The weights"),
        ("np.bincount(p, weights=a[p] * b[q])", "is an array of shape (9,) and should be one"),
    ],
}
# Other ways to be right.
RIGHT = {
    "rnn_jacobian(W, h)": [
        "(W * (1 - h**2)[:, None]).T", "(W * (1 - h**2).reshape(-1, 1)).T", "W.T @ np.diag(1 - h**2)",
        "np.dot(np.diag(1 - h**2), W).T", "(np.diag(1 - h**2) @ W).T", "np.einsum('ji,j->ij', W, 1 - h**2)",
        "np.einsum('ab,a->ba', W, 1 - h * h)", "np.einsum('ij,jk->ik', W.T, np.diag(1 - h**2))",
        "np.transpose(W) * (1 - np.square(h))", "W.T / np.cosh(np.arctanh(h))**2", "W.T * (1 - h) * (1 + h)",
        "W.T - W.T * h**2", "np.multiply(W.T, 1 - np.power(h, 2))",
        "J = np.zeros_like(W)\nfor i in range(len(h)):\n    for j in range(len(h)):\n"
        "        J[i, j] = W[j, i] * (1 - h[j]**2)\nreturn J",
    ],
    "gru_jacobian(W, h, r, z, n, m)": [
        "SPLIT; "
        "return (np.diag(z) + np.diag((h - n) * z * (1 - z)) @ B + np.diag(q * r) @ C + np.diag(q * m * r * (1 - "
        "r)) @ A).T",
        "A, B, C = W.reshape(3, len(h), len(h)); q = (1 - z) * (1 - n**2); return BY_Z + BY_MR",
        "H = len(h); "
        "s = np.concatenate([(1 - z) * (1 - n**2) * m * r * (1 - r), (h - n) * z * (1 - z), (1 - z) * (1 - n**2) "
        "* r]); J = W.T * s; return J[:, :H] + J[:, H:2 * H] + J[:, 2 * H:] + np.diag(z)",
        "H = h.size; J = np.diag(z).astype(float)\nfor i in range(H):\n    for j in range(H):\n"
        "        q = (1 - z[j]) * (1 - n[j]**2)\n"
        "        J[i, j] += W[H + j, i] * (h[j] - n[j]) * z[j] * (1 - z[j]) + q * (r[j] * W[2 * H + j, i] + m[j] "
        "* r[j] * (1 - r[j]) * W[j, i])\nreturn J",
        "dz, dr, dn = z - z**2, r - r**2, 1 - n * n; A, B, C = np.vsplit(W, 3); "
        "return (np.eye(len(h)) * z + (dz * (h - n))[:, None] * B + ((1 - z) * dn)[:, None] * (r[:, None] * C + "
        "(m * dr)[:, None] * A)).T",
        "A, B, C = np.split(W, 3); dz = (z * (1 - z))[:, None] * B; dr = (r * (1 - r))[:, None] * A; "
        "dn = (1 - n**2)[:, None] * (m[:, None] * dr + r[:, None] * C); "
        "return (-dz * n[:, None] + (1 - z)[:, None] * dn + dz * h[:, None] + np.diag(z)).T",
        "SPLIT; J = np.zeros((len(h), len(h))); "
        "np.fill_diagonal(J, z); "
        "return J + np.einsum('ji,j->ij', B, (h - n) * z * (1 - z)) + np.einsum('ji,j->ij', C, q * r) + "
        "np.einsum('ji,j->ij', A, q * m * r * (1 - r))",
        "W = W.copy(); SPLIT; A *= (q * m * r * (1 - r))[:, None]; "
        "B *= ((h - n) * z * (1 - z))[:, None]; C *= (q * r)[:, None]; return (A + B + C).T + np.diag(z)",
    ],
    "weight_gradient(g, h)": [
        "(np.einsum('tbi,tbj->ij', g, h[:-1]), np.einsum('tbi->i', g))",
        "[sums(g, h[:-1]), g.sum((0, 1))]",
        "(sums(g, h), g.sum((0, 1)))",
        "(np.tensordot(g, h[:-1], ((0, 1), (0, 1))), g.sum(0).sum(0))",
        "(g.reshape(-1, g.shape[2]).T @ h[:-1].reshape(-1, g.shape[2]), g.reshape(-1, g.shape[2]).sum(0))",
        "(np.matmul(g.transpose(0, 2, 1), h[:-1]).sum(0), np.sum(np.sum(g, axis=1), axis=0))",
        "T, B, H = g.shape; W, b = np.zeros((H, H)), np.zeros(H)\nfor t in range(T):\n    for s in range(B):\n"
        "        W += np.outer(g[t, s], h[t, s]); b += g[t, s]\nreturn W, b",
        "T, B, H = g.shape; W, b = np.zeros((H, H)), np.zeros(H)\nfor t in range(T):\n    for s in range(B):\n"
        "        for i in range(H):\n            b[i] += g[t, s, i]\n            for j in range(H):\n"
        "                W[i, j] += g[t, s, i] * h[t, s, j]\nreturn W, b",
        "W, b = 0, 0\nfor t in range(len(g)): W, b = W + g[t].T @ h[t], b + g[t].sum(0)\nreturn W, b",
        "(sum(np.outer(a, b) for a, b in zip(g.reshape(-1, g.shape[2]), h.reshape(-1, g.shape[2]))), g.sum((0, 1)))",
        "(np.einsum('abc,abd->cd', g, h[:len(g)]), np.ones(g.shape[0] * g.shape[1]) @ g.reshape(-1, g.shape[-1]))",
        "(np.add.reduce([x.T @ y for x, y in zip(g, h)]), g.mean((0, 1)) * g.shape[0] * g.shape[1])",
        "(functools.reduce(operator.add, (g[t].T @ h[t] for t in range(len(g)))), np.apply_over_axes(np.sum, g, "
        "(0, 1)).ravel())",
    ],
    "sparse_product(s, p, q, a, b)": [
        "np.array([(a[p] * b[q])[i:j].sum() for i, j in zip(s[:-1], s[1:])])",
        "np.array([a[p[i:j]] @ b[q[i:j]] for i, j in zip(s, s[1:])])",
        "np.array([np.dot(a[p[s[k]:s[k + 1]]], b[q[s[k]:s[k + 1]]]) for k in range(len(s) - 1)])",
        "c = np.zeros(len(s) - 1)\nfor k in range(len(s) - 1):\n"
        "    for x in range(s[k], s[k + 1]): c[k] += a[p[x]] * b[q[x]]\nreturn c",
        "np.bincount(np.repeat(np.arange(len(s) - 1), np.diff(s)), weights=a[p] * b[q])",
        "c = np.zeros(len(s) - 1); np.add.at(c, np.repeat(np.arange(len(s) - 1), np.diff(s)), a[p] * b[q]); return c",
        "t = np.concatenate([[0], np.cumsum(a[p] * b[q])]); return t[s[1:]] - t[s[:-1]]",
        "np.array([x.sum() for x in np.split(a[p] * b[q], s[1:-1])])",
        "np.array(list(map(np.sum, np.split(a[p] * b[q], s[1:-1]))))",
        "np.fromiter((sum(a[p[x]] * b[q[x]] for x in range(s[k], s[k + 1])) for k in range(len(s) - 1)), float)",
        "np.add.reduceat(np.take(a, p) * np.take(b, q), s[:-1])",
        "np.add.reduceat(np.einsum('q,q->q', a[p], b[q]), s[:-1])",
        "k = np.repeat(np.arange(len(s) - 1), np.diff(s)); "
        "return (k == np.arange(len(s) - 1)[:, None]) @ (a[p] * b[q])",
        "c = np.empty(len(s) - 1)\n"
        "for k, (i, j) in enumerate(itertools.pairwise(s)): c[k] = sum(a[p[i:j]] * b[q[i:j]])\nreturn c",
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


def made(called, text):
    """An answer that returns what a text is, or does what it says."""
    text = text if "return" in text or "yield" in text else f"return {text}"
    for short, long in SHORT.items():
        text = text.replace(short, long)
    names = dict(globals())
    exec(f"def {called}: " + (textwrap.indent(f"\n{text}", "    ") if "\n" in text else text), names)
    return names[called.partition("(")[0]]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize("called, row", [(called, row) for called, rows in WRONG.items() for row in range(len(rows))])
def test_wrong_answers_are_told_why(called, row):
    text, message = WRONG[called][row]
    verdict = arrays.PUZZLES[called.partition("(")[0]].check(made(called, text))
    assert not verdict and message in verdict.message, verdict


@pytest.mark.parametrize("called, row", [(called, row) for called, rows in RIGHT.items() for row in range(len(rows))])
def test_there_are_other_ways_to_be_right(called, row):
    verdict = arrays.PUZZLES[called.partition("(")[0]].check(made(called, RIGHT[called][row]))
    assert verdict and verdict.message.startswith("Right."), verdict


@pytest.mark.parametrize(
    "called, text, took, best",
    [
        ("rnn_jacobian(W, h)", "W.T * (1 - h**2)", 30, 30), ("rnn_jacobian(W, h)", "W.T @ np.diag(1 - h**2)", 130, 30),
        ("rnn_jacobian(W, h)", "-W.T * -(1 - h**2)", 30, 30),
        ("sparse_product(s, p, q, a, b)", "np.add.reduceat(a[p] * b[q], s[:-1])", 45, 45),
        ("sparse_product(s, p, q, a, b)", "np.array([(a[p] * b[q])[i:j].sum() for i, j in zip(s, s[1:])])", 1485, 45),
    ],
)
def test_multiplications_are_counted(called, text, took, best):
    verdict = arrays.PUZZLES[called.partition("(")[0]].check(made(called, text))
    assert verdict.costs == [("multiplications", took, best)]
    more = f" It takes more than it must: {took} multiplications, where {best} are enough. Can you do it with fewer?"
    assert verdict.message == "Right." + more * (took > best)


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
