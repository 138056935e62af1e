"""Residual networks, u^{n+1} = u^n + h F(u^n; θ^n) (Eq. 1): parameters, and ordinary propagation as reference."""

from typing import Annotated

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.arguments import Backend, checked
from bppsa_nb.machine.checks import Fixed, check_finite, with_repr
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.networks.residual_steps import Activation

State = Annotated[np.ndarray, "float[B, *axes]"]
States = Annotated[np.ndarray, "float[depth + 1, B, *axes]"]


def compute(backend):
    """Return the module that computes for a ``backend`` argument; see `bppsa_nb.machine.backends.resolve`."""
    return implementation("bppsa_nb.networks.residual_steps", backends.resolve(backend))


@with_repr("weights", "biases", "h", "activation")
class ResidualNetwork(Fixed):
    """N residual layers, u^{n+1} = u^n + h σ(W^n u^n + b^n).

    A state, a gradient or a Jacobian that leaves the range of the dtype raises FloatingPointError.

    Parameters
    ----------
    weights
        Dense layers of C units, or convolutions with odd kernels that slide over an image with zeros around it, so that
        it keeps its shape. float32 or float64. Not copied: training changes them in place.
    biases
        In the same dtype; not copied, either.
    h
        Step size. The network is forward Euler over a time of T = N h (Eq. 2).
    activation
        σ. The slope of ReLU at zero is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from bppsa_nb import multigrid
    >>> net = multigrid.ResidualNetwork(np.zeros((8, 2, 2)), np.ones((8, 2)), h=0.125)
    >>> net.forward(np.zeros((1, 2)))[-1].round(4).tolist()
    [[0.7616, 0.7616]]
    """

    _fixed = "weights", "biases", "h", "activation"

    @checked
    def __init__(
        self, weights: Annotated[np.ndarray, "float[N, C, C] or float[N, C, C, k, k]"],
        biases: Annotated[np.ndarray, "float[N, C]"], h: Annotated[float, "> 0"], activation: Activation = "tanh",
    ):  # fmt: skip
        limits, kernel = np.finfo(weights.dtype), weights.shape[3:]
        if kernel and kernel[0] % 2 == 0:
            raise ValueError(f"weights must have kernels of odd size, which preserve an image's shape, got {kernel}")
        if not float(limits.tiny) <= h <= float(limits.max):
            raise ValueError(f"h must be positive and finite in {weights.dtype}, got {h}")
        check_finite(weights=weights, biases=biases)
        self.weights, self.biases, self.h, self.activation = weights, biases, h, activation

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def depth(self) -> int:
        """N, how many layers there are."""
        return len(self)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of parameters and states."""
        return self.weights.dtype

    @property
    def kernel_size(self) -> int:
        """Rows and columns of a convolution's kernel, 0 for dense layers."""
        return self.weights.shape[4] if self.weights.ndim == 5 else 0

    @property
    def axes(self) -> tuple[int | str, ...]:
        """The axes of one sample's state: (q,), or of an image (C, "H", "W"), of any height and width."""
        return (self.weights.shape[1], *("HW" if self.kernel_size else ""))

    @checked
    def forward(self, u0: State, backend: Backend = "auto") -> np.ndarray:
        """Propagate layer by layer.

        Parameters
        ----------
        u0
            The first state, in the network's dtype: vectors (B, q), or images (B, C, H, W).
        backend
            What computes. ``"auto"`` is a GPU if there is one, and otherwise compiled CPU code.

        Returns
        -------
        np.ndarray [shape=(N + 1, B, ...)]
            All states, u0 first.
        """
        return self._propagate(u0, *self.forward_steps(u0, backend), np.arange(len(self)))

    @checked
    def backward(self, states: States, grad_output: State, backend: Backend = "auto") -> np.ndarray:
        """Propagate gradients back, layer by layer.

        Parameters
        ----------
        states
            What `forward` returned.
        grad_output
            Gradient of the loss at the last state.
        backend
            What computes, as in `forward`.

        Returns
        -------
        np.ndarray [shape=(N + 1, B, ...)]
            Gradients at all states, grad_output last.
        """
        steps = self.adjoint_steps(states, grad_output, backend)
        gradients = self._propagate(grad_output, *steps, np.arange(len(self))[::-1])
        return np.ascontiguousarray(gradients[::-1])

    def forward_steps(self, u0, backend):
        """Return the form of `residual_steps` that computes, and its sweep over these layers, for a finite state."""
        check_finite(weights=self.weights, biases=self.biases, u0=u0)  # σ and its slope may hide what is not
        ops = compute(backend)
        weights, biases = ops.load(self.weights), ops.load(self.biases)
        return ops, lambda *blocks: ops.forward_sweep(*blocks, weights, biases, self.activation)

    def adjoint_steps(self, states, grad_output, backend):
        """Return as `forward_steps` does, for gradients, of finite states and a finite gradient at the last one."""
        check_finite(weights=self.weights, biases=self.biases, states=states, grad_output=grad_output)
        ops = compute(backend)
        weights = ops.load(self.weights)
        with np.errstate(all="ignore"):  # a slope is finite, whatever leaves the range on the way
            slopes = ops.slopes(ops.load(states), weights, ops.load(self.biases), self.activation)
        return ops, lambda *blocks: ops.adjoint_sweep(*blocks, weights, slopes)

    def _propagate(self, first, ops, sweep, layers):
        """Go through the layers as one block; return the values at all points."""
        points = np.empty((len(self) + 1, *first.shape), self.dtype)
        points[0] = first
        points, sizes = ops.load(points), ops.load(np.full(len(self), self.h, self.dtype))
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            last = sweep(points, None, ops.load(np.array([0, len(self)])), ops.load(layers), sizes)
        points = ops.host(points)
        points[-1] = ops.host(last)[0]
        if not np.isfinite(points[-1]).all():
            raise FloatingPointError(f"cycle 1 leaves the range of {self.dtype}: the network itself does")
        return points

    @checked
    def parameter_gradients(
        self, states: States, gradients: States, backend: Backend = "auto"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the gradients of weights and biases; no layer waits for another.

        Parameters
        ----------
        states, gradients
            States, and gradients at them: of `forward` and `backward`, or of the multigrid solvers.
        backend
            What computes, as in `forward`.

        Returns
        -------
        grad_weights, grad_biases : np.ndarray
            In the shapes of weights and biases, summed over the batch.
        """
        check_finite(weights=self.weights, biases=self.biases, states=states, gradients=gradients)
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            parts = self.weights, self.biases, self.h, self.activation
            found = compute(backend).parameter_gradients(states, gradients, *parts)
        if not all(np.isfinite(grad).all() for grad in found):
            raise FloatingPointError(f"the gradients of the parameters overflow {self.dtype}")
        return found

    @checked
    def jacobians_T(self, states: States) -> np.ndarray:
        """Compute every dense layer's transposed Jacobian, I + h W^T diag(σ'), for `bppsa_nb.backprop`.

        Parameters
        ----------
        states
            What `forward` returned, for vectors.

        Returns
        -------
        np.ndarray [shape=(N, B, q, q)]
        """
        if self.kernel_size:
            raise ValueError(f"jacobians_T is for dense layers, got weights of shape {self.weights.shape}")
        check_finite(weights=self.weights, biases=self.biases, states=states)
        states = np.ascontiguousarray(states)  # before NumPy 2.3, how tanh rounds depends on strides
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            slopes = compute("numpy").slopes(states, self.weights, self.biases, self.activation)
            found = self.dtype.type(self.h) * self.weights.swapaxes(1, 2)[:, None] * slopes[:, :, None, :]
        diagonal = np.arange(self.weights.shape[1])
        found[..., diagonal, diagonal] += 1
        if not np.isfinite(found).all():
            raise FloatingPointError(f"a transposed Jacobian overflows {self.dtype}")
        return found
