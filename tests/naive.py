"""Oracles: every computation once more, in loops over Python floats, importing nothing of the package."""

import math

import numpy as np


def rnn_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Equation 9, one number at a time: hidden states (T + 1, B, H)."""
    steps, batch, inputs = x.shape
    size = len(weight_hh)
    hidden = np.zeros((steps + 1, batch, size))
    for b in range(batch):
        for i in range(size):
            hidden[0, b, i] = h0[b, i]
        for t in range(steps):
            for i in range(size):
                total = float(bias_ih[i]) + float(bias_hh[i])
                for j in range(inputs):
                    total += float(weight_ih[i, j]) * float(x[t, b, j])
                for j in range(size):
                    total += float(weight_hh[i, j]) * hidden[t, b, j]
                hidden[t + 1, b, i] = math.tanh(total)
    return hidden


def rnn_loss(x, h0, params, labels):
    """Mean softmax cross-entropy of the classifier on the last state; also its gradient at the logits."""
    hidden = rnn_forward(x, h0, *(params[f"{name}_l0"] for name in _RECURRENT))
    weight, bias = params["fc.weight"], params["fc.bias"]
    classes, size = weight.shape
    loss, grad_logits = 0.0, np.zeros((len(labels), classes))
    for b, label in enumerate(labels):
        logits = []
        for c in range(classes):
            total = float(bias[c])
            for i in range(size):
                total += float(weight[c, i]) * hidden[-1, b, i]
            logits.append(total)
        top = max(logits)
        denominator = sum(math.exp(logit - top) for logit in logits)
        loss += (math.log(denominator) + top - logits[label]) / len(labels)
        for c in range(classes):
            probability = math.exp(logits[c] - top) / denominator
            grad_logits[b, c] = (probability - (c == label)) / len(labels)
    return loss, grad_logits


def rnn_gradients(x, h0, params, grad_logits):
    """Back-propagation through time, one number at a time: gradients of all parameters."""
    hidden = rnn_forward(x, h0, *(params[f"{name}_l0"] for name in _RECURRENT))
    steps, batch, inputs = x.shape
    classes, size = params["fc.weight"].shape
    grads = {name: np.zeros(value.shape) for name, value in params.items()}
    for b in range(batch):
        grad = [0.0] * size
        for c in range(classes):
            grads["fc.bias"][c] += grad_logits[b, c]
            for i in range(size):
                grads["fc.weight"][c, i] += grad_logits[b, c] * hidden[steps, b, i]
                grad[i] += float(grad_logits[b, c]) * float(params["fc.weight"][c, i])
        for t in reversed(range(steps)):
            before = [0.0] * size
            for i in range(size):
                grad_sum = grad[i] * (1 - hidden[t + 1, b, i] ** 2)
                grads["bias_ih_l0"][i] += grad_sum
                grads["bias_hh_l0"][i] += grad_sum
                for j in range(inputs):
                    grads["weight_ih_l0"][i, j] += grad_sum * x[t, b, j]
                for j in range(size):
                    grads["weight_hh_l0"][i, j] += grad_sum * hidden[t, b, j]
                    before[j] += grad_sum * float(params["weight_hh_l0"][i, j])
            grad = before
    return grads


def sgd(param, grads, lr, momentum):
    """Parameters (a flat list) after one step per gradient (flat lists), by PyTorch's rule."""
    param, velocity = list(param), [0.0] * len(param)
    for grad in grads:
        for i in range(len(param)):
            velocity[i] = momentum * velocity[i] + grad[i]
            param[i] -= lr * velocity[i]
    return param


def adam(param, grads, lr, betas, eps):
    """Parameters (a flat list) after one step per gradient (flat lists), by Algorithm 1 of the Adam paper."""
    param, m, v = list(param), [0.0] * len(param), [0.0] * len(param)
    for t, grad in enumerate(grads, start=1):
        for i in range(len(param)):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * grad[i]
            v[i] = betas[1] * v[i] + (1 - betas[1]) * grad[i] ** 2
            corrected = m[i] / (1 - betas[0] ** t)
            param[i] -= lr * corrected / (math.sqrt(v[i] / (1 - betas[1] ** t)) + eps)
    return param


_RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def backprop(jacobians_T, grad_output, local_grads=None):
    """Equation 3 in Python floats: gradients (T + 1, B, H) of a chain of (T, B, H, H) transposed Jacobians."""
    steps, batch, size = len(jacobians_T), *grad_output.shape
    out = np.zeros((steps + 1, batch, size))
    for b in range(batch):
        gradient = [float(value) for value in grad_output[b]]
        for t in range(steps, -1, -1):
            if t < steps:
                gradient = [sum(map(_times, row, gradient)) for row in jacobians_T[t, b].tolist()]
            if local_grads is not None:
                gradient = [value + float(term) for value, term in zip(gradient, local_grads[t, b], strict=True)]
            out[t, b] = gradient
    return out


def _times(a, b):
    return a * b


def pairs(n, d):
    """Algorithm 1, lines 4-5, as they are written: the pairs (l, r) of level d."""
    found, i = [], 0
    while i <= n - 2**d:
        found.append((i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)))
        i += 2 ** (d + 1)
    return found


def matmul(left, right):
    """Product of two matrices (lists of rows) of Python numbers."""
    return [
        [sum(left[i][k] * right[k][j] for k in range(len(right))) for j in range(len(right[0]))]
        for i in range(len(left))
    ]


def pattern_product(left, right):
    """Where the product of two 0/1 matrices (lists of rows) may be non-zero, and the multiply-adds it takes."""
    structure, multiply_adds = [[0] * len(right[0]) for _ in left], 0
    for i in range(len(left)):
        for j in range(len(right[0])):
            for k in range(len(right)):
                if left[i][k] and right[k][j]:
                    structure[i][j] = 1
                    multiply_adds += 1
    return structure, multiply_adds
