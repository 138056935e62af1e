"""Chains of transposed Jacobians, and how to go back along them in NumPy: of shared weights and diagonals, or stored.

Those of the first are never stored: a step reads a few numbers per hidden unit, where a stored Jacobian has H of them.
"""

import math
from typing import Annotated, Any

import numpy as np

from bppsa_nb.machine.arguments import Array, look_of
from bppsa_nb.machine.checks import Fixed, is_number, on_gpu
from bppsa_nb.machine.memory import contiguous
from bppsa_nb.operands import rows
from bppsa_nb.operands.range import ample, half

_WEIGHTS, _SLOPES = look_of(Annotated[Array, "float[K, H, H]"]), look_of(Annotated[Array, "float[K, T, B, N]"])
_CARRY = look_of(Annotated[Array, "float[T, B, N]"]), look_of(Annotated[Array, "float[S, T, B, N]"])


class StructuredChain(Fixed):
    """T transposed Jacobians made of shared weights and diagonals of their own.

    ``(d x_{t+1} / d x_t)^T = sum_k weights[k].T @ diag(slopes[k, t, b]) + diag(carry[t, b])``: every recurrent cell has
    this form if its sums ``weights[k] @ h`` go through elementwise functions. `slopes` are the derivatives of the next
    state by each sum, `carry` its derivative by the state itself. Arrays of these shapes are neither copied nor
    replaced.

    Parameters
    ----------
    weights
        The K matrices that multiply the state, in PyTorch's layout. K may be 0 if there is a carry. All arrays may be
        on a GPU instead, from any library.
    slopes
        Derivatives of the next state by each sum. S is the number of states, 2 in an LSTM.
    carry
        Derivatives of the next state by the state. An axis along which they are constant may have length one, or be
        left out.

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

    weights: np.ndarray | Any  # another library's, on a GPU
    slopes: np.ndarray | Any
    carry: np.ndarray | Any  # None without one
    _fixed = ("weights", "slopes", "carry")

    def __init__(
        self, weights: Annotated[Array, "float[K, H, H]"], slopes: Annotated[Array, "float[K, T, B, S H]"],
        carry: Annotated[Array | float | None, "float[T, B, H], or float[S, T, B, S H] where S > 1"] = None,
    ):  # fmt: skip
        parts = {"weights": weights, "slopes": slopes} | ({} if carry is None else {"carry": carry})
        if any(map(on_gpu, parts.values())):
            from bppsa_nb.machine.arrays_cuda import as_device_array

            parts = {name: as_device_array(name, array) for name, array in parts.items()}
        elif carry is not None:
            parts["carry"] = _spread(carry, weights, slopes)
        self._fix(**{"carry": None} | parts)
        self.check()

    @classmethod
    def made(cls, weights, slopes, carry=None) -> "StructuredChain":
        """Make a chain of arrays that are known to fit; they may be on a device."""
        chain = object.__new__(cls)
        chain._fix(weights=weights, slopes=slopes, carry=carry)
        return chain

    def check(self) -> None:
        """Raise TypeError or ValueError unless the arrays still fit together: their shapes can be set in place."""
        if "_seen" in vars(self) and self._seen == self._forms():
            return
        known = {}
        _WEIGHTS("weights", self.weights, known)
        _SLOPES("slopes", self.slopes, known)
        size, H = known["N"], known["H"]
        if size % H:
            raise ValueError(f"slopes must have shape (K, T, B, S H) with H = {H} of weights, got {self.slopes.shape}")
        if self.carry is not None:
            known["S"] = size // H
            _CARRY[size > H]("carry", self.carry, known)
        elif not known["K"]:
            got = self.slopes.shape
            raise ValueError(f"slopes must hold at least one diagonal per step without a carry, got {got}")
        self._seen = self._forms()

    def _forms(self):
        return [(part.shape, part.dtype) for part in (self.weights, self.slopes, self.carry) if part is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """Steps, samples and the size of a state: (T, B, H), or (T, B, S H)."""
        return self.slopes.shape[1:]

    @property
    def states(self) -> int:
        """S, the number of vectors that a state consists of."""
        return self.slopes.shape[3] // self.weights.shape[2]

    @property
    def num_weights(self) -> int:
        """How many weights of a whole state's size take as much work; at least one."""
        return max(1, round(len(self.weights) / self.states**2))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of all arrays."""
        return self.slopes.dtype

    @property
    def carries(self) -> np.ndarray:
        """The carry as [shape=(S, T, B, S H)], or [shape=(0, T, B, S H)] where there is none."""
        if self.carry is None:
            return np.empty((0, *self.shape), self.dtype)
        return self.carry if self.carry.ndim == 4 else self.carry.reshape(1, *self.shape)

    def part(self, start: int, stop: int) -> "StructuredChain":
        """Return the chain of steps start ... stop - 1 alone."""
        carry = self.carry if self.carry is None else self.carry[..., start:stop, :, :]
        return StructuredChain.made(self.weights, self.slopes[:, start:stop], carry)

    def cut(self, start, runs, length):
        """View slopes and carries from a step on, in runs of so many steps: a list, pairs [shape=(K, runs, B, S H)]."""
        whole, shape = slice(start, start + runs * length), (runs, length, *self.shape[1:])
        parts = (array[:, whole].reshape(len(array), *shape) for array in (self.slopes, self.carries))
        return list(zip(*(np.moveaxis(part, 2, 0) for part in parts), strict=True))

    def back(self, link, grads):
        """Go back one step of every run; gradients are [shape=(runs, B, S H)] or (runs, B, V, S H)."""
        slopes, carries = link
        if grads.ndim == 4:
            slopes, carries = slopes[..., None, :], carries[..., None, :]
        below, size = np.zeros(grads.shape, grads.dtype), self.weights.shape[2]
        for s, through in enumerate(carries):
            below[..., s * size : (s + 1) * size] += _fold(through * grads, size)
        for weight, slope in zip(self.weights, slopes, strict=True):
            by = slope * grads
            below[..., :size] += (by if by.shape[-1] == size else _fold(by, size)) @ weight
        return below

    def factors(self, start, runs, length):
        """Return what `cut` returns, the powers of two taken out, which are none, and `rows.smallest_kept`."""
        smallest = rows.smallest_kept(self.weights, self.slopes, self.carries)
        return self.cut(start, runs, length), np.zeros((length, runs, 1), int), smallest

    def arrays(self, batch):
        """Return weights, slopes, carry and stored Jacobians, of which there are none, as compiled code takes them."""
        return contiguous(self.weights, self.slopes, self.carries, np.empty((0, 0, 0, 0), self.dtype))

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


def _fold(grads, size):
    """Add up what comes from each of the S vectors of a state [shape=(..., S H)]."""
    return grads if grads.shape[-1] == size else grads.reshape(*grads.shape[:-1], -1, size).sum(axis=-2)


class StoredChain:
    """T transposed Jacobians that are stored [shape=(T, B, H, H)], or [shape=(T, 1, H, H)] for all samples."""

    num_weights = 0  # which stands for stored Jacobians

    def __init__(self, jacobians_T):
        self.jacobians_T, self.shape, self.dtype = jacobians_T, jacobians_T.shape[:3], jacobians_T.dtype

    def cut(self, start, runs, length):
        """View the Jacobians from one on, in runs of so many steps [shape=(length, runs, B, H, H)]."""
        whole = self.jacobians_T[start : start + runs * length]
        return whole.reshape(runs, length, *whole.shape[1:]).swapaxes(0, 1)

    def back(self, link, grads):
        """Go back one step of every run; gradients are [shape=(runs, B, H)] or (runs, B, V, H)."""
        if grads.ndim == 3:
            return (link @ grads[..., None])[..., 0]
        return grads @ link.swapaxes(-1, -2)

    def factors(self, start, runs, length):
        """Return what `cut` returns, scaled where products could leave the range; the powers of two taken out; and 0.

        The last is how small an entry of a product may be: as links are scaled before, any size.
        """
        links, info = self.cut(start, runs, length), np.finfo(self.dtype)
        size, powers = np.abs(links), np.zeros(links.shape[:-2], int)
        fits = (size >= np.ldexp(1.0, half(info.minexp))) & (size <= np.ldexp(1.0, ample(info.maxexp))) | (size == 0)
        if not (moderate := fits.all(axis=(-2, -1))).all():
            links = links.copy()
            scaled, powers[~moderate] = rows.normalize(links[~moderate].reshape(-1, size[0, 0, 0].size), 0)
            links[~moderate] = scaled.reshape(-1, *links.shape[-2:])
        return links, powers, 0.0

    def arrays(self, batch):
        """Return weights, slopes and carry, of which there are none, and the Jacobians, as compiled code takes them."""
        T, _, H = self.shape
        none, diagonals = np.empty((0, H, H), self.dtype), np.empty((0, T, batch, H), self.dtype)
        return none, diagonals, diagonals, *contiguous(self.jacobians_T)
