"""A chain whose transposed Jacobians share weights, and how to go back along it in NumPy.

Its Jacobians are never stored: a step reads a few numbers per hidden unit, where a stored Jacobian has H of them.
"""

import math

import numpy as np

from bppsa_nb.chains import stored
from bppsa_nb.machine.checks import Fixed, check_dtype, check_floats, is_number, on_gpu, on_host
from bppsa_nb.machine.memory import require
from bppsa_nb.operands import rows


class StructuredChain(Fixed):
    """T transposed Jacobians made of shared weights and diagonals of their own.

    ``(d x_{t+1} / d x_t)^T = sum_k weights[k].T @ diag(slopes[k, t, b]) + diag(carry[t, b])``: every recurrent cell has
    this form if its sums ``weights[k] @ h`` go through elementwise functions. `slopes` are the derivatives of the next
    state by each sum, `carry` its derivative by the state itself. Arrays of these shapes are neither copied nor
    replaced.

    Parameters
    ----------
    weights : np.ndarray [shape=(K, H, H)]
        The K matrices that multiply the state, in PyTorch's layout. K may be 0 if there is a carry. All arrays may be
        on a GPU instead, from any library.
    slopes : np.ndarray [shape=(K, T, B, S H)]
    carry : np.ndarray [shape=(T, B, H)] or float, or [shape=(S, T, B, S H)] where S > 1, optional
        An axis along which it is constant may have length one, or be left out. S is the number of states, 2 in an LSTM.

    Raises
    ------
    TypeError, ValueError
        For dtypes other than float32 and float64, a mixture of the two, or what is not an array; for shapes that do not
        fit together, an empty batch or state.

    Examples
    --------
    A leaky cell ``h' = 0.9 h + 0.1 tanh(W h)``:

    >>> import numpy as np
    >>> import bppsa_nb as bp
    >>> W, hidden = np.array([[0.5, -1.0], [1.0, 0.5]]), np.ones((4, 1, 2))
    >>> slopes = 0.1 * (1 - np.tanh(hidden[:-1] @ W.T) ** 2)
    >>> chain = bp.StructuredChain(W[None], slopes[None], carry=0.9)
    >>> bp.backprop(chain, np.ones((1, 2)), method="chunked", backend="numpy").shape
    (4, 1, 2)
    """

    _fixed = ("weights", "slopes", "carry")

    def __init__(self, weights, slopes, carry=None):
        parts = {"weights": weights, "slopes": slopes} | ({} if carry is None else {"carry": carry})
        if any(map(on_gpu, parts.values())):
            from bppsa_nb.machine.arrays_cuda import as_device_array

            parts = {name: as_device_array(name, array) for name, array in parts.items()}
        elif carry is not None:
            parts["carry"] = _spread(carry, weights, slopes)
        self._fix(**{"carry": None} | parts)
        self.check()

    @classmethod
    def made(cls, weights, slopes, carry=None):
        """Make a chain of arrays that are known to fit; they may be on a device."""
        chain = object.__new__(cls)
        chain._fix(weights=weights, slopes=slopes, carry=carry)
        return chain

    def check(self):
        """Raise TypeError or ValueError unless the arrays still fit together: their shapes can be set in place."""
        weights, slopes, carry = map(on_host, (self.weights, self.slopes, self.carry))
        _check("weights", weights, ("K", "H", "H"), weights)
        _check("slopes", slopes, ("K", "T", "B", "H"), weights)
        (count, steps, batch, size), H = slopes.shape, weights.shape[2]
        if batch == 0 or size == 0:
            raise ValueError(f"slopes must have at least one sample and one entry each, got shape {slopes.shape}")
        if weights.shape != (count, H, H) or not H or size % H:
            wanted = f"(K, H, H) = {(count, size, size)} to go with slopes {slopes.shape}"
            raise ValueError(f"weights must have shape {wanted}, got {weights.shape}")
        if carry is not None:
            axes, shape = ("T", "B", "H"), (steps, batch, size)
            if size > H:
                axes, shape = ("S", "T", "B", "S H"), (size // H, *shape)
            _check("carry", carry, axes, weights)
            if carry.shape != shape:
                expected = f"({', '.join(axes)}) = {shape} to go with slopes {slopes.shape}"
                raise ValueError(f"carry must have shape {expected}, got {carry.shape}")
        elif count == 0:
            raise ValueError(f"slopes must hold at least one diagonal per step without a carry, got {slopes.shape}")

    @property
    def shape(self):
        """Steps, samples and the size of a state: (T, B, H), or (T, B, S H)."""
        return self.slopes.shape[1:]

    @property
    def states(self):
        """S, the number of vectors that a state consists of."""
        return self.slopes.shape[3] // self.weights.shape[2]

    @property
    def num_weights(self):
        """How many weights of a whole state's size take as much work; at least one."""
        return max(1, round(len(self.weights) / self.states**2))

    @property
    def dtype(self):
        """The dtype of all arrays."""
        return self.slopes.dtype

    def __repr__(self):
        T, B, H = self.shape
        carry = "" if self.carry is None else ", with a carry"
        return f"StructuredChain(T={T}, B={B}, H={H}, weights={len(self.weights)}{carry})"


def _spread(carry, weights, slopes):
    """Write out a carry that stays the same along some axes; what does not fit is left to the checks."""
    if not isinstance(slopes, np.ndarray) or not isinstance(weights, np.ndarray):
        return carry
    if slopes.shape[3:] != weights.shape[2:]:  # states of several vectors, or what does not fit
        return carry
    shape = slopes.shape[1:]
    if is_number(carry):
        if not math.isfinite(carry):
            raise ValueError(f"carry must be finite, got {carry!r}")
        return np.full(shape, carry, slopes.dtype)
    if not isinstance(carry, np.ndarray) or carry.shape == shape:
        return carry
    try:
        return np.ascontiguousarray(np.broadcast_to(carry, shape))
    except ValueError:
        return carry


def _check(name, array, shape, like):
    check_floats(name, array, shape)
    check_dtype(name, array.dtype, like.dtype, "weights")


def jacobians_T(chain):
    """Write the transposed Jacobians out [shape=(T, B, H, H)]; raise MemoryError if they do not fit."""
    T, B, H = chain.shape
    require(T * B * H * H * chain.dtype.itemsize, f"storing {T} x {B} transposed Jacobians of {H} x {H}")
    assembled, size = np.zeros((T, B, H, H), chain.dtype), chain.weights.shape[2]
    # Blocks of H x H: rows of one of the S vectors of a state, columns of another.
    blocks = assembled.reshape(T, B, chain.states, size, chain.states, size)
    for weight, slopes in zip(chain.weights, chain.slopes, strict=True):
        blocks[:, :, 0] += weight.T[:, None] * slopes.reshape(T, B, 1, chain.states, size)
    for s, carry in enumerate(carry_of(chain)):
        np.einsum("tbisi->tbsi", blocks[:, :, s])[...] += carry.reshape(T, B, chain.states, size)
    return assembled


def carry_of(chain):
    """Return the carry as [shape=(S, T, B, S H)], or [shape=(0, T, B, S H)] where there is none."""
    if chain.carry is None:
        return np.empty((0, *chain.shape), chain.dtype)
    return chain.carry if chain.carry.ndim == 4 else chain.carry.reshape(1, *chain.shape)


def _back(weights, slopes, carry, grads):
    """Go one step back: transposed Jacobians times gradients [shape=(..., S H)].

    Weights are as in `StructuredChain`, slopes and carry as many as there are, [shape=(..., S H)] each.
    """
    below, size = np.zeros_like(grads), weights.shape[2]
    for s, through in enumerate(carry):
        below[..., s * size : (s + 1) * size] += _fold(through * grads, size)
    for weight, slope in zip(weights, slopes, strict=True):
        below[..., :size] += _fold(slope * grads, size) @ weight
    return below


def _fold(grads, size):
    """Add up what comes from each of the S vectors of a state [shape=(..., S H)]."""
    return grads if grads.shape[-1] == size else grads.reshape(*grads.shape[:-1], -1, size).sum(axis=-2)


def sweep(chain, grad_output, local_grads=None):
    """Go back one step after the other (Equation 3); return the gradients at x_0 ... x_T [shape=(T + 1, B, H)].

    `grad_output` [shape=(B, H)] is the gradient at x_T, the loss term there included; `local_grads`, loss terms that
    enter at every x_t, are [shape=(T + 1, B, H)] or [shape=(T, B, H)].
    """
    gradients, carry = room_for_gradients(chain, grad_output, local_grads), carry_of(chain)
    for t in reversed(range(len(gradients) - 1)):
        gradients[t] += _back(chain.weights, chain.slopes[:, t], carry[:, t], gradients[t + 1])
    return gradients


def room_for_gradients(chain, grad_output, local_grads):
    """Return gradients [shape=(T + 1, B, H)] before a sweep: loss terms or zeros, and the one at x_T."""
    T, B, H = chain.shape
    gradients = np.zeros((T + 1, B, H), chain.dtype)
    if local_grads is not None:
        gradients[:T] = local_grads[:T]
    gradients[T] = grad_output
    return gradients


def chunked(chain, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk, all chunks at once: reduce, then scan (Equation 6, with n / p steps per worker).

    Every chunk's Jacobians are multiplied into one matrix by going back along the chunk from all unit vectors; the
    gradient goes back over these products; then every chunk is replayed from the gradient at its end. A chunk has
    `length` steps, n / p; the one at the loss may be shorter, and neither it nor the one at x_0 needs a product. The
    rest is as for `sweep`. Raises DynamicRangeError if a product leaves the range, MemoryError if they do not fit.
    """
    T, B, H = chain.shape
    count = max(T - 1, 0) // length  # chunks below the one at the loss
    start = count * length  # of that one
    gradients = np.zeros((T + 1, B, H), chain.dtype) if local_grads is None else np.array(local_grads, order="C")
    last = steps_of(chain, start, T)
    gradients[start:] = sweep(last, grad_output, None if local_grads is None else local_grads[start:])
    in_chunks = (count, length, B, H)  # t = chunk * length + step
    slopes = chain.slopes[:, :start].reshape(len(chain.weights), *in_chunks)
    carry = carry_of(chain)[:, :start]
    carry = carry.reshape(len(carry), *in_chunks)
    local = None if local_grads is None else local_grads[:start].reshape(in_chunks)
    ends = gradients[length : start + 1 : length]  # what every chunk starts from
    if count > 1:  # below the chunk at x_0 there is nothing that needs its product
        products, exponents = _multiply(chain.weights, slopes[:, 1:], carry[:, 1:])
        if local is not None:  # the loss terms of a chunk, gone back to its start
            offsets = np.zeros((count, B, H), chain.dtype)
            for s in reversed(range(length)):
                offsets = _back(chain.weights, slopes[:, :, s], carry[:, :, s], offsets) + local[:, s]
        for c in reversed(range(1, count)):
            ends[c - 1] = rows.apply(products[c - 1], exponents[c - 1], ends[c][:, None])[:, 0]
            if local is not None:
                ends[c - 1] += offsets[c]
    grads, swept = ends.copy(), gradients[:start].reshape(in_chunks)
    for s in reversed(range(length if count else 0)):
        grads = _back(chain.weights, slopes[:, :, s], carry[:, :, s], grads)
        if local is not None:
            grads += local[:, s]
        swept[:, s] = grads
    return gradients


def steps_of(chain, start, stop):
    """Return the chain of steps start ... stop - 1 alone."""
    carry = chain.carry if chain.carry is None else chain.carry[..., start:stop, :, :]
    return StructuredChain.made(chain.weights, chain.slopes[:, start:stop], carry)


def levels(chain, grad_output, local_grads=None, levels=None):
    """Write the Jacobians out, and scan them level by level: Algorithm 1, or with so many levels only."""
    return stored.levels(jacobians_T(chain), grad_output, local_grads, levels)


def products(chain, length):
    """Multiply the Jacobians of each chunk of `length` steps, by going back along it from the unit vectors.

    T is a multiple of `length`, and not 0. Row j of a product [shape=(chunks, B, H, H)] is where unit vector j ends,
    times a power of two, which the exponents [shape=(chunks, B, H)] hold. Raises what `chunked` raises.
    """
    T, B, H = chain.shape
    in_chunks = (T // length, length, B, H)
    arrays = (array.reshape(len(array), *in_chunks) for array in (chain.slopes, carry_of(chain)))
    return _multiply(chain.weights, *arrays)


def _multiply(weights, slopes, carry):
    """Return `products` of slopes and carry, as many as there are [shape=(chunks, length, B, S H)]."""
    count, length, B, H = slopes.shape[1:]
    what = f"multiplying {count} chunks of {length} steps"
    require(3 * count * B * H * H * weights.dtype.itemsize, what)
    products = np.broadcast_to(np.eye(H, dtype=weights.dtype), (count, B, H, H))
    exponents, floor = np.zeros((count, B, H), np.int64), rows.smallest_kept(weights, slopes, carry)
    for s in reversed(range(length)):
        products = _back(weights, slopes[:, :, s, :, None], carry[:, :, s, :, None], products)
        products, exponents = rows.normalize(products, exponents, floor)
    return products, exponents
