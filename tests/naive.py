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


def _gru_sums(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    """The four sums of Appendix E at one step of one sample: lists R, Z, M, and N without its r M."""
    size = len(h)

    def product(weight, vector, row):
        return sum(float(weight[row, j]) * float(vector[j]) for j in range(len(vector)))

    R, Z, M, N = [], [], [], []
    for i in range(size):
        r, z, n = i, size + i, 2 * size + i
        R.append(product(weight_ih, x, r) + float(bias_ih[r]) + product(weight_hh, h, r) + float(bias_hh[r]))
        Z.append(product(weight_ih, x, z) + float(bias_ih[z]) + product(weight_hh, h, z) + float(bias_hh[z]))
        M.append(product(weight_hh, h, n) + float(bias_hh[n]))
        N.append(product(weight_ih, x, n) + float(bias_ih[n]))
    return R, Z, M, N


def _gru_gates(x, h, *params):
    R, Z, M, N = _gru_sums(x, h, *params)
    r = [1 / (1 + math.exp(-value)) for value in R]
    z = [1 / (1 + math.exp(-value)) for value in Z]
    return r, z, [math.tanh(N[i] + r[i] * M[i]) for i in range(len(h))], M


def gru_forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Equation 10, one number at a time: hidden states (T + 1, B, H) and gates r, z, n, M (4, T, B, H)."""
    steps, batch, _ = x.shape
    size = weight_hh.shape[1]
    hidden, gates = np.zeros((steps + 1, batch, size)), np.zeros((4, steps, batch, size))
    hidden[0] = h0
    for t in range(steps):
        for b in range(batch):
            gates[:, t, b] = _gru_gates(x[t, b], hidden[t, b], weight_ih, weight_hh, bias_ih, bias_hh)
            for i in range(size):
                r, z, n, _ = gates[:, t, b, i]
                hidden[t + 1, b, i] = (1 - z) * n + z * hidden[t, b, i]
    return hidden, gates


def _lstm_gates(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    """Gates i, f, g, o of one step of one sample, and tanh of the next c: five lists."""
    size, sums = len(h), []
    for k in range(4 * size):
        total = float(bias_ih[k]) + float(bias_hh[k])
        for j in range(len(x)):
            total += float(weight_ih[k, j]) * float(x[j])
        for j in range(size):
            total += float(weight_hh[k, j]) * float(h[j])
        sums.append(total)
    i, f, o = ([1 / (1 + math.exp(-total)) for total in sums[k * size : (k + 1) * size]] for k in (0, 1, 3))
    g = [math.tanh(total) for total in sums[2 * size : 3 * size]]
    return i, f, g, o, [math.tanh(f[k] * float(c[k]) + i[k] * g[k]) for k in range(size)]


def lstm_forward(x, start, *params):
    """Long short-term memory, one number at a time: states h and c (2, T + 1, B, H), and i, f, g, o, tanh c."""
    (steps, batch, _), size = x.shape, params[1].shape[1]
    states, gates = np.zeros((2, steps + 1, batch, size)), np.zeros((5, steps, batch, size))
    states[:, 0] = start
    for t in range(steps):
        for b in range(batch):
            gates[:, t, b] = _lstm_gates(x[t, b], states[0, t, b], states[1, t, b], *params)
            for k in range(size):
                i, f, g, o, tanh_c = gates[:, t, b, k]
                states[1, t + 1, b, k] = f * states[1, t, b, k] + i * g
                states[0, t + 1, b, k] = o * tanh_c
    return states, gates


def forward(cell, x, start, *params):
    """States (S, T + 1, B, H) of a layer that begins with (S, B, H), and what else its cell keeps of the steps."""
    if cell == "lstm":
        return lstm_forward(x, start, *params)
    if cell == "gru":
        hidden, gates = gru_forward(x, start[0], *params)
        return hidden[None], gates
    hidden = rnn_forward(x, start[0], *params)[None]
    return hidden, np.zeros((0, *hidden[0, 1:].shape))


def _layers(params):
    return range(sum(name.startswith("weight_ih") for name in params))


def all_states(cell, x, h0, params):
    """States (S, T + 1, B, H) of every layer, the lowest first; each layer reads the one below.

    `h0` are hidden states (L, B, H), of an LSTM a pair of h and c.
    """
    found = []
    for layer in _layers(params):
        arrays = [params[f"{name}_l{layer}"] for name in _RECURRENT]
        start = np.array([state[layer] for state in (h0 if cell == "lstm" else (h0,))])
        found.append(forward(cell, x, start, *arrays)[0])
        x = found[-1][0, 1:]
    return found


def hidden_states(cell, x, h0, params):
    """Hidden states (T + 1, B, H) of every layer, the lowest first."""
    return [states[0] for states in all_states(cell, x, h0, params)]


def loss(cell, x, h0, params, labels):
    """Mean softmax cross-entropy of the classifier on the last state; also its gradient at the logits."""
    last = hidden_states(cell, x, h0, params)[-1][-1]
    weight, bias = params["fc.weight"], params["fc.bias"]
    classes, size = weight.shape
    loss, grad_logits = 0.0, np.zeros((len(labels), classes))
    for b, label in enumerate(labels):
        logits = []
        for c in range(classes):
            total = float(bias[c])
            for i in range(size):
                total += float(weight[c, i]) * last[b, i]
            logits.append(total)
        top = max(logits)
        denominator = sum(math.exp(logit - top) for logit in logits)
        loss += (math.log(denominator) + top - logits[label]) / len(labels)
        for c in range(classes):
            probability = math.exp(logits[c] - top) / denominator
            grad_logits[b, c] = (probability - (c == label)) / len(labels)
    return loss, grad_logits


def gradients(cell, x, h0, params, grad_logits):
    """Back-propagation through time and layers, one number at a time: gradients of all parameters."""
    found = all_states(cell, x, h0, params)
    hidden = [states[0] for states in found]
    steps, batch, _ = x.shape
    classes, size = params["fc.weight"].shape
    grads = {name: np.zeros(value.shape) for name, value in params.items()}
    entering = np.zeros((steps + 1, batch, size))  # from outside the layer, at every hidden state
    for b in range(batch):
        for c in range(classes):
            grads["fc.bias"][c] += grad_logits[b, c]
            for i in range(size):
                grads["fc.weight"][c, i] += grad_logits[b, c] * hidden[-1][steps, b, i]
                entering[steps, b, i] += float(grad_logits[b, c]) * float(params["fc.weight"][c, i])
    for layer in reversed(_layers(params)):
        below = hidden[layer - 1][1:] if layer else x
        arrays = [params[f"{name}_l{layer}"] for name in _RECURRENT]
        into = [grads[f"{name}_l{layer}"] for name in _RECURRENT]
        entering = _layer_gradients(cell, below, found[layer], arrays, entering, into)
    return grads


def _layer_gradients(cell, x, states, arrays, entering, into):
    """Add a layer's gradients to the arrays of `into`; return those at its input, a zero row before them."""
    (steps, batch, inputs), hidden = x.shape, states[0]
    size = hidden.shape[2]
    weight_ih, weight_hh = arrays[:2]
    at_input = np.zeros((steps + 1, batch, inputs))
    for b in range(batch):
        grad, grad_c = [float(value) for value in entering[steps, b]], [0.0] * size
        for t in reversed(range(steps)):
            h = hidden[t, b]
            before = [float(value) for value in entering[t, b]]
            if cell == "rnn":
                sums = [grad[i] * (1 - hidden[t + 1, b, i] ** 2) for i in range(size)]
                from_x = from_h = sums
            elif cell == "lstm":
                c = states[1, t, b]
                i, f, g, o, tanh_c = _lstm_gates(x[t, b], h, c, *arrays)
                at_i, at_f, at_g, at_o = [], [], [], []
                for k in range(size):
                    at_c = grad_c[k] + grad[k] * o[k] * (1 - tanh_c[k] ** 2)
                    at_i.append(at_c * g[k] * i[k] * (1 - i[k]))
                    at_f.append(at_c * float(c[k]) * f[k] * (1 - f[k]))
                    at_g.append(at_c * i[k] * (1 - g[k] ** 2))
                    at_o.append(grad[k] * tanh_c[k] * o[k] * (1 - o[k]))
                    grad_c[k] = at_c * f[k]
                from_x = from_h = at_i + at_f + at_g + at_o
            else:
                r, z, n, M = _gru_gates(x[t, b], h, *arrays)
                at_n = [grad[i] * (1 - z[i]) * (1 - n[i] ** 2) for i in range(size)]
                at_r = [at_n[i] * M[i] * r[i] * (1 - r[i]) for i in range(size)]
                at_z = [grad[i] * (h[i] - n[i]) * z[i] * (1 - z[i]) for i in range(size)]
                from_x = at_r + at_z + at_n
                from_h = at_r + at_z + [at_n[i] * r[i] for i in range(size)]
                for i in range(size):
                    before[i] += grad[i] * z[i]
            for k in range(len(from_x)):
                into[2][k] += from_x[k]
                into[3][k] += from_h[k]
                for j in range(inputs):
                    into[0][k, j] += from_x[k] * x[t, b, j]
                    at_input[t + 1, b, j] += from_x[k] * float(weight_ih[k, j])
                for j in range(size):
                    into[1][k, j] += from_h[k] * h[j]
                    before[j] += from_h[k] * float(weight_hh[k, j])
            grad = before
    return at_input


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
    inner, columns = range(len(right)), range(len(right[0]))
    return [[sum(row[k] * right[k][j] for k in inner) for j in columns] for row in left]


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


def structured_backprop(weights, slopes, carry, grad_output, local_grads=None):
    """Gradients at all points of a structured chain, along its transposed Jacobians."""
    return backprop(structured_jacobians_T(weights, slopes, carry), grad_output, local_grads)


def structured_jacobians_T(weights, slopes, carry=None):
    """Transposed Jacobians (T, B, N, N) of a structured chain, one entry at a time.

    Number j of x_{t+1} moves with number i of x_t through every sum, which multiply the first H of them: by
    weights[k][j][i], and by how far it moves with that sum; and by a carry, its own, or that of one of N / H vectors.
    """
    (count, steps, batch, size), width = slopes.shape, weights.shape[2]
    if carry is not None and carry.ndim == 3:
        carry = carry[None]
    found = np.zeros((steps, batch, size, size))
    for t in range(steps):
        for b in range(batch):
            for i in range(size):
                for j in range(size):
                    total = 0.0
                    for k in range(count if i < width else 0):
                        total += float(weights[k, j % width, i]) * float(slopes[k, t, b, j])
                    if carry is not None and i % width == j % width:
                        total += float(carry[i // width, t, b, j])
                    found[t, b, i, j] = total
    return found
