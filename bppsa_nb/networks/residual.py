"""Residual networks, u^{n+1} = u^n + h F(u^n; θ^n) (Eq. 1): parameters, and ordinary propagation as reference."""

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import as_float, check_array, check_choice, check_finite, check_floats
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.networks.residual_steps import ACTIVATIONS


def compute(backend):
    """Return the module that computes for a ``backend`` argument; see `bppsa_nb.machine.backends.resolve`."""
    return implementation("bppsa_nb.networks.residual_steps", backends.resolve(backend))


@with_repr("weights", "biases", "h", "activation")
class ResidualNetwork:
    """N residual layers, u^{n+1} = u^n + h σ(W^n u^n + b^n).

    Parameters
    ----------
    weights : np.ndarray [shape=(N, q, q)] or [shape=(N, channels, channels, k, k)]
        Dense layers, or convolutions with odd kernels that slide over an image with zeros around it, so that it keeps
        its shape. float32 or float64. Kept, not copied.
    biases : np.ndarray [shape=(N, q)] or [shape=(N, channels)]
        In the same dtype.
    h : float
        Step size, positive. The network is forward Euler over a time of T = N h (Eq. 2).
    activation : {"tanh", "relu"}
        σ. The slope of ReLU at zero is zero.

    Raises
    ------
    TypeError, ValueError
        For another type or dtype, shapes that do not fit, no layers, even kernels, NaN or infinity, a step size that is
        no positive number, an unknown activation.

    Examples
    --------
    >>> import numpy as np
    >>> from bppsa_nb import multigrid
    >>> net = multigrid.ResidualNetwork(np.zeros((8, 2, 2)), np.ones((8, 2)), h=0.125)
    >>> net.forward(np.zeros((1, 2)))[-1].round(4).tolist()
    [[0.7616, 0.7616]]
    """

    def __init__(self, weights, biases, h, activation="tanh"):
        self.weights, self.biases, self.h, self.activation = weights, biases, h, activation
        self.check()

    def check(self):
        """Raise what the constructor would raise: parameters may change, as they do in training."""
        weights, h = self.weights, self.h
        check_floats("weights", weights)
        shape = weights.shape
        if len(shape) not in (3, 5) or 0 in shape or shape[1] != shape[2] or shape[3:4] != shape[4:]:
            raise ValueError(f"weights must have shape (N, q, q) or (N, C, C, k, k), none of them 0, got {shape}")
        if len(shape) == 5 and shape[4] % 2 == 0:
            raise ValueError(f"weights must have kernels of odd size, which preserve an image's shape, got {shape[3:]}")
        check_array("biases", self.biases, weights.dtype, shape[:2])
        check_finite(weights=weights, biases=self.biases)
        number = as_float("h", h)
        if not float(np.finfo(weights.dtype).tiny) <= number <= float(np.finfo(weights.dtype).max):
            raise ValueError(f"h must be positive and finite in {weights.dtype}, got {h}")
        self.h = number  # whatever kind of number was set
        check_choice("activation", self.activation, ACTIVATIONS)

    def __len__(self):
        return len(self.weights)

    @property
    def dtype(self):
        """numpy.dtype: of parameters and states."""
        return self.weights.dtype

    @property
    def kernel_size(self):
        """int: k of a convolution, 0 for dense layers."""
        return self.weights.shape[4] if self.weights.ndim == 5 else 0

    def check_state(self, name, u, points=()):
        """Raise TypeError or ValueError unless u ``[shape=(*points, batch, ...)]`` is a finite state of the net."""
        image = ("height", "width") if self.kernel_size else ()
        check_array(name, u, self.dtype, (*points, "B", self.weights.shape[1], *image))
        if 0 in u.shape:
            raise ValueError(f"{name} must hold at least one sample, and images at least one pixel, got {u.shape}")
        check_finite(**{name: u})

    def forward(self, u0, backend="auto"):
        """Propagate layer by layer.

        Parameters
        ----------
        u0 : np.ndarray [shape=(batch, q)] or [shape=(batch, channels, height, width)]
            The first state, in the network's dtype.
        backend : {"auto", "numpy", "cpu", "cuda"}

        Returns
        -------
        np.ndarray [shape=(N + 1, batch, ...)]
            All states, u0 first.

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            For a state that does not fit, or is not finite; if a state leaves the range of the dtype.
        """
        return self._propagate(u0, *self.forward_steps(u0, backend), np.arange(len(self)))

    def backward(self, states, grad_output, backend="auto"):
        """Propagate gradients back, layer by layer.

        Parameters
        ----------
        states : np.ndarray [shape=(N + 1, batch, ...)]
            What `forward` returned.
        grad_output : np.ndarray [shape=(batch, ...)]
            Gradient of the loss at the last state.
        backend : {"auto", "numpy", "cpu", "cuda"}

        Returns
        -------
        np.ndarray [shape=(N + 1, batch, ...)]
            Gradients at all states; that at the last one is grad_output.

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            For arrays that do not fit, or are not finite; if a gradient leaves the range of the dtype.
        """
        steps = self.adjoint_steps(states, grad_output, backend)
        gradients = self._propagate(grad_output, *steps, np.arange(len(self))[::-1])
        return np.ascontiguousarray(gradients[::-1])

    def forward_steps(self, u0, backend):
        """Check a first state; return the form of `residual_steps` that computes, and its sweep over these layers."""
        self.check()
        self.check_state("u0", u0)
        ops = compute(backend)
        weights, biases = ops.load(self.weights), ops.load(self.biases)
        return ops, lambda *blocks: ops.forward_sweep(*blocks, weights, biases, self.activation)

    def adjoint_steps(self, states, grad_output, backend):
        """Check states and the gradient at the last one; return as `forward_steps` does, for gradients."""
        self.check()
        self.check_state("states", states, (len(self) + 1,))
        self.check_state("grad_output", grad_output)
        check_array("grad_output", grad_output, self.dtype, states.shape[1:])
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

    def parameter_gradients(self, states, gradients, backend="auto"):
        """Compute the gradients of weights and biases; no layer waits for another.

        Parameters
        ----------
        states, gradients : np.ndarray [shape=(N + 1, batch, ...)]
            States, and gradients at them: of `forward` and `backward`, or of the multigrid solvers.
        backend : {"auto", "numpy", "cpu", "cuda"}

        Returns
        -------
        grad_weights, grad_biases : np.ndarray
            In the shapes of weights and biases, summed over the batch.

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            For arrays that do not fit, or are not finite; if a gradient leaves the range of the dtype.
        """
        self.check()
        self.check_state("states", states, (len(self) + 1,))
        check_array("gradients", gradients, self.dtype, states.shape)
        check_finite(gradients=gradients)
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            parts = self.weights, self.biases, self.h, self.activation
            found = compute(backend).parameter_gradients(states, gradients, *parts)
        if not all(np.isfinite(grad).all() for grad in found):
            raise FloatingPointError(f"the gradients of the parameters overflow {self.dtype}")
        return found

    def jacobians_T(self, states):
        """Compute every dense layer's transposed Jacobian, I + h W^T diag(σ'), for `bppsa_nb.backprop`.

        Parameters
        ----------
        states : np.ndarray [shape=(N + 1, batch, q)]

        Returns
        -------
        np.ndarray [shape=(N, batch, q, q)]

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            For states that do not fit, or are not finite; for convolutions; if a Jacobian leaves the dtype's range.
        """
        self.check()
        if self.kernel_size:
            raise ValueError(f"jacobians_T is for dense layers, got weights of shape {self.weights.shape}")
        self.check_state("states", states, (len(self) + 1,))
        states = np.ascontiguousarray(states)  # before NumPy 2.3, how tanh rounds depends on strides
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            slopes = compute("numpy").slopes(states, self.weights, self.biases, self.activation)
            found = self.dtype.type(self.h) * self.weights.swapaxes(1, 2)[:, None] * slopes[:, :, None, :]
        diagonal = np.arange(self.weights.shape[1])
        found[..., diagonal, diagonal] += 1
        if not np.isfinite(found).all():
            raise FloatingPointError(f"a transposed Jacobian overflows {self.dtype}")
        return found
