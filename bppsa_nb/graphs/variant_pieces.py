"""What the four variants of the GRU have in common: products, elementwise steps and their gradients, memory.

All arrays are (B, H), a step's, unless a docstring says otherwise; `xp` computes, and `out` arguments receive.
"""

import numpy as np


def input_products(x, W, bias, sums, gates, xp):
    """Compute W x + b, a product for every entry of `gates`; all arguments may hold all steps at once."""
    for gate in gates:
        xp.matmul(x, W[gate].T, out=sums[:, gate])
        xp.add(sums[:, gate], bias[gate], out=sums[:, gate])


def input_gradients(W, x, errors, gates, xp):
    """Gradients of W and x: a product each for every entry of `gates`, of all steps at once."""
    grad_W, grad_x = np.empty_like(W), np.empty(x.shape, x.dtype)
    work = np.empty_like(rows(grad_x))
    for gate in gates:
        xp.matmul(rows(errors)[:, gate].T, rows(x), out=grad_W[gate])
    xp.matmul(rows(errors)[:, gates[0]], W[gates[0]], out=rows(grad_x))
    for gate in gates[1:]:
        add_product(rows(errors)[:, gate], W[gate], rows(grad_x), work, xp)
    return grad_W, grad_x


def add_product(a, b, total, work, xp):
    """Add a product to what is there: one call of BLAS's fused GEMM, two in NumPy, which does not offer it."""
    xp.matmul(a, b, out=work)
    xp.add(total, work, out=total)


def sigmoid(a, xp):
    """Compute (1 + tanh(a / 2)) / 2 in place, in which nothing overflows."""
    xp.multiply(a, 0.5, out=a)
    xp.tanh(a, out=a)
    xp.multiply(a, 0.5, out=a)
    xp.add(a, 0.5, out=a)


def moved_candidate(r, m, inputs, work, c, xp):
    """Compute c = tanh(inputs + r * m)."""
    xp.multiply(r, m, out=work)
    xp.add(inputs, work, out=c)
    xp.tanh(c, out=c)


def update(h, z, c, h_next, xp):
    """Compute h' = (1 - z) * h + z * c = h + z * (c - h)."""
    xp.subtract(c, h, out=h_next)
    xp.multiply(z, h_next, out=h_next)
    xp.add(h, h_next, out=h_next)


def through_update(grads, h, z, c, error_z, error_c, work, xp):
    """Pass the gradient at h', grads[1], on to the sums of z and c, and add to that at h, grads[0], what reaches it."""
    grad, grad_next = grads
    xp.multiply(grad_next, z, out=error_c)
    xp.subtract(grad_next, error_c, out=work)  # grad_next * (1 - z)
    xp.add(grad, work, out=grad)
    xp.subtract(c, h, out=error_z)
    xp.multiply(error_z, z, out=error_z)
    xp.multiply(error_z, work, out=error_z)  # grad_next * (c - h) * z * (1 - z)
    xp.multiply(c, c, out=work)
    xp.subtract(1, work, out=work)
    xp.multiply(error_c, work, out=error_c)  # grad_next * z * (1 - c²)


def through_reset(error, factor, r, error_r, xp):
    """Pass the gradient on to the sum of r, which multiplied `factor`; r has already been multiplied to `error`."""
    xp.subtract(1, r, out=error_r)
    xp.multiply(error_r, factor, out=error_r)
    xp.multiply(error_r, error, out=error_r)  # that is, with the derivative r * (1 - r)


def blocks(params):
    """Find the rows of r, of z, of c, of both gates, and of all three."""
    H = params["weight_hh"].shape[1]
    return slice(0, H), slice(H, 2 * H), slice(2 * H, 3 * H), slice(0, 2 * H), slice(0, 3 * H)


def rows(array):
    """View (T, B, n) as (T * B, n): all steps at once."""
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])


def allocate(x, h0):
    """Room for hidden states, the initial one in place, and for r, z and c side by side."""
    T, (B, H) = len(x), h0.shape
    hidden, gates = np.empty((T + 1, B, H), x.dtype), np.empty((T, B, 3 * H), x.dtype)
    hidden[0] = h0
    return hidden, gates


def allocate_gradients(activations, grad_hidden):
    """Room for the gradients at hidden states, where those from above are already in place, and at sums."""
    grads = np.empty_like(activations.hidden)
    grads[0], grads[1:] = 0, grad_hidden
    return grads, np.empty_like(activations.gates)
