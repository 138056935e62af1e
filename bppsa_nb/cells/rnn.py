"""The vanilla recurrent network of Equation 9: its four computations in NumPy, and the model made of them."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb import backends, chain


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run ``h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)`` over time (Equation 9).

    Parameters
    ----------
    x : np.ndarray [shape=(T, B, I)]
        Inputs, time first.
    h0 : np.ndarray [shape=(B, H)]
        Initial hidden state.
    weight_ih : np.ndarray [shape=(H, I)]
    weight_hh : np.ndarray [shape=(H, H)]
    bias_ih, bias_hh : np.ndarray [shape=(H,)]

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
        Hidden states, the initial one first.
    """
    steps, batch, inputs = x.shape
    size = weight_hh.shape[0]
    hidden = np.empty((steps + 1, batch, size), x.dtype)
    hidden[0] = h0
    # No input product waits for another: all of them are one matrix product, before the time loop.
    products = x.reshape(steps * batch, inputs) @ weight_ih.T
    hidden[1:] = products.reshape(steps, batch, size) + (bias_ih + bias_hh)
    for t in range(steps):
        hidden[t + 1] = np.tanh(hidden[t + 1] + hidden[t] @ weight_hh.T)
    return hidden


def jacobians_T(weight_hh, hidden):
    """Assemble ``(d h_{t+1} / d h_t)^T = W_hh^T diag(1 - h_{t+1}²)`` for every step and sample.

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]

    Returns
    -------
    np.ndarray [shape=(T, B, H, H)]
        Ready for `bppsa_nb.backprop`.
    """
    return weight_hh.T * (1 - hidden[1:] ** 2)[:, :, None, :]


def sweep(weight_hh, hidden, grad_output):
    """Back-propagate through time, one step after the other, without storing a Jacobian (Equation 3).

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    grad_output : np.ndarray [shape=(B, H)]
        Gradient of the loss at the last hidden state.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
        Gradients at all hidden states, the initial one first.
    """
    grad_hidden = np.empty_like(hidden)
    grad_hidden[-1] = grad_output
    for t in reversed(range(len(hidden) - 1)):
        grad_hidden[t] = (grad_hidden[t + 1] * (1 - hidden[t + 1] ** 2)) @ weight_hh
    return grad_hidden


def parameter_gradients(x, hidden, grad_hidden):
    """Turn gradients at the hidden states into gradients of the parameters (Equation 2).

    Parameters
    ----------
    x : np.ndarray [shape=(T, B, I)]
    hidden, grad_hidden : np.ndarray [shape=(T + 1, B, H)]

    Returns
    -------
    dict of str to np.ndarray
        Gradients of ``weight_ih``, ``weight_hh``, ``bias_ih`` and ``bias_hh``, summed over time and batch.
    """
    steps, batch, inputs = x.shape
    size = hidden.shape[2]
    grad_sum = grad_hidden[1:] * (1 - hidden[1:] ** 2)
    # Every parameter multiplies something: the input, the state before, or one. Side by side, these make all
    # gradients at all steps a single matrix product, after the time loop.
    factors = np.empty((steps, batch, inputs + size + 1), x.dtype)
    factors[:, :, :inputs] = x
    factors[:, :, inputs:-1] = hidden[:-1]
    factors[:, :, -1] = 1
    grads = grad_sum.reshape(steps * batch, size).T @ factors.reshape(steps * batch, inputs + size + 1)
    weight_ih, weight_hh, bias = np.split(grads, [inputs, inputs + size], axis=1)
    bias = bias[:, 0]
    return {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias, "bias_hh": bias.copy()}


@dataclass(frozen=True, eq=False)
class Activations:
    """What a forward pass leaves for the backward pass.

    Attributes
    ----------
    x : np.ndarray [shape=(T, B, I)]
        The input.
    hidden : np.ndarray [shape=(1, T + 1, B, H)]
        Hidden states of the one layer; ``hidden[:, 0]`` is the initial state.
    logits : np.ndarray [shape=(B, C)]
        One score per class, from the last hidden state.
    """

    x: np.ndarray
    hidden: np.ndarray
    logits: np.ndarray


class RNN:
    """The paper's classifier: a vanilla recurrent layer and a linear layer on its last state (Section 4.1).

    Parameters
    ----------
    input_size, hidden_size, num_classes : int
        I, H and C, at least one each.
    rng : int or np.random.Generator
        Where the initial parameters come from: uniform between -1 / sqrt(H) and 1 / sqrt(H), as in PyTorch.
    dtype : np.dtype
        float32 or float64, for parameters, inputs and gradients alike.

    Attributes
    ----------
    params : dict of str to np.ndarray
        With PyTorch's names and layout: ``weight_ih_l0`` [shape=(H, I)], ``weight_hh_l0``
        [shape=(H, H)], ``bias_ih_l0`` and ``bias_hh_l0`` [shape=(H,)], ``fc.weight`` [shape=(C, H)],
        ``fc.bias`` [shape=(C,)].

    Examples
    --------
    >>> import numpy as np
    >>> model = RNN(input_size=1, hidden_size=20, num_classes=10)
    >>> activations = model.forward(np.ones((7, 2, 1), np.float32), backend="numpy")
    >>> activations.logits.shape, activations.hidden.shape
    ((2, 10), (1, 8, 2, 20))
    """

    def __init__(self, input_size, hidden_size, num_classes, rng=0, dtype=np.float32):
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_classes": num_classes}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {size!r}")
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"dtype must be float32 or float64, got {self.dtype}")
        self.input_size, self.hidden_size, self.num_classes = map(int, sizes.values())
        rng = np.random.default_rng(rng)
        bound = 1 / np.sqrt(self.hidden_size)
        self.params = {
            name: rng.uniform(-bound, bound, shape).astype(self.dtype) for name, shape in self._shapes().items()
        }

    def _shapes(self):
        I, H, C = self.input_size, self.hidden_size, self.num_classes
        return {
            "weight_ih_l0": (H, I),
            "weight_hh_l0": (H, H),
            "bias_ih_l0": (H,),
            "bias_hh_l0": (H,),
            "fc.weight": (C, H),
            "fc.bias": (C,),
        }

    def forward(self, x, h0=None, backend="auto"):
        """Compute hidden states and logits.

        Parameters
        ----------
        x : np.ndarray [shape=(T, B, I)]
            Inputs, time first, in the model's dtype. T may be 0.
        h0 : np.ndarray [shape=(B, H)], optional
            Initial hidden state, zeros if not given.
        backend : {"auto", "numpy", "cpu", "cuda"}

        Returns
        -------
        Activations

        Raises
        ------
        TypeError
            For an array of another dtype than the model's.
        ValueError
            For shapes that do not fit, an empty batch, NaN or infinity, an unknown backend.
        FloatingPointError
            If finite inputs and parameters give logits that are not.
        """
        backend = backends.resolve(backend)
        _check_array("x", x, self.dtype, (None, None, self.input_size))
        batch = x.shape[1]
        if batch == 0:
            raise ValueError(f"x must hold at least one sample, got shape {x.shape}")
        if h0 is None:
            h0 = np.zeros((batch, self.hidden_size), self.dtype)
        _check_array("h0", h0, self.dtype, (batch, self.hidden_size))
        self._check_params()
        # Looked at here and not only in the output, because tanh hides infinity; that costs one part in H.
        _check_finite(x=x, h0=h0, **{f"params[{name!r}]": param for name, param in self.params.items()})
        weights = [self.params[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            hidden = _functions(backend)["forward"](*map(_plain, (x, h0, *weights)))
            logits = hidden[-1] @ self.params["fc.weight"].T + self.params["fc.bias"]
        if not np.isfinite(logits).all():
            raise FloatingPointError(f"logits overflow {self.dtype}, though x and all parameters are finite")
        return Activations(x, hidden[None], logits)

    def backward(self, activations, grad_logits, method="auto", backend="auto", levels=None):
        """Compute the gradients of all parameters.

        Parameters
        ----------
        activations : Activations
            What `forward` returned, with the parameters unchanged since.
        grad_logits : np.ndarray [shape=(B, C)]
            Gradient of the loss at the logits.
        method : {"auto", "linear", "blelloch", "truncated"}
            How the gradients at the hidden states are found. ``"linear"`` is ordinary back-propagation
            through time, without a stored Jacobian; the others assemble transposed Jacobians and scan them.
        backend : {"auto", "numpy", "cpu", "cuda"}
        levels : int, optional
            For ``"truncated"``; see `bppsa_nb.backprop`.

        Returns
        -------
        dict of str to np.ndarray
            Gradients under the names and in the shapes of `params`. A gradient too large for the dtype is
            infinite or NaN, as in back-propagation through time.

        Raises
        ------
        TypeError
            For an array of another dtype than the model's, or activations of another kind.
        ValueError
            For shapes that do not fit, NaN or infinity, an unknown method or backend.
        """
        if not isinstance(activations, Activations):
            raise TypeError(f"activations must come from RNN.forward, got {type(activations).__name__}")
        x, hidden = activations.x, activations.hidden[0]
        _check_array("activations.x", x, self.dtype, (None, None, self.input_size))
        _check_array("activations.hidden[0]", hidden, self.dtype, (len(x) + 1, x.shape[1], self.hidden_size))
        _check_array("grad_logits", grad_logits, self.dtype, (x.shape[1], self.num_classes))
        _check_finite(grad_logits=grad_logits)
        self._check_params()
        shape = (len(x), x.shape[1], self.hidden_size)
        method, backend, levels = chain.choose(method, backend, levels, shape, self.dtype)
        with np.errstate(all="ignore"):
            grad_output = grad_logits @ self.params["fc.weight"]
            grad_hidden = self._backpropagate(hidden, grad_output, method, backend, levels)
            grads = _functions(backend)["parameter_gradients"](*map(_plain, (x, hidden, grad_hidden)))
            grads = {f"{name}_l0": grad for name, grad in grads.items()}
            grads["fc.weight"] = grad_logits.T @ hidden[-1]
            grads["fc.bias"] = grad_logits.sum(axis=0)
        return grads

    def _backpropagate(self, hidden, grad_output, method, backend, levels):
        """Find the gradients at all hidden states [shape=(T + 1, B, H)]."""
        functions = _functions(backend)
        arrays = [_plain(array) for array in (self.params["weight_hh_l0"], hidden, grad_output)]

        def run(method, levels):
            if method == "linear":
                return functions["sweep"](*arrays)
            if backend == "cuda":
                return functions["scan"](*arrays, levels)
            jacobians = functions["jacobians_T"](*arrays[:2])
            return chain.backprop(jacobians, grad_output, method=method, backend=backend, levels=levels)

        return chain.in_range(run, method, levels)

    def _check_params(self):
        for name, shape in self._shapes().items():
            if name not in self.params:
                raise ValueError(f"params must have an entry {name!r}, got {sorted(self.params)}")
            _check_array(f"params[{name!r}]", self.params[name], self.dtype, shape)


def _functions(backend):
    """Look up the twins of a backend."""
    if backend == "numpy":
        return {
            "forward": forward,
            "jacobians_T": jacobians_T,
            "sweep": sweep,
            "parameter_gradients": parameter_gradients,
        }
    from bppsa_nb.cells import cpu

    functions = {
        "forward": cpu.rnn_forward,
        "jacobians_T": cpu.rnn_jacobians_T,
        "sweep": cpu.rnn_sweep,
        "parameter_gradients": cpu.rnn_parameter_gradients,
    }
    if backend == "cuda":
        from bppsa_nb.cells import cuda

        # On the device, the scan assembles its Jacobians itself.
        functions |= {"scan": cuda.rnn_scan, "sweep": cuda.rnn_sweep}
    return functions


def _plain(array):
    # Compiled code exists once per memory layout; contiguous and writable is the only one used.
    return np.require(array, requirements=("C", "W"))


def _check_array(name, array, dtype, shape):
    """Raise unless `array` has the dtype and the shape, where None fits any size."""
    if type(array) not in (np.ndarray, np.memmap):
        raise TypeError(f"{name} must be a numpy.ndarray, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have the model's dtype {dtype}, got {array.dtype}")
    if array.ndim != len(shape) or any(b not in (None, a) for a, b in zip(array.shape, shape, strict=True)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {array.shape}")


def _check_finite(**arrays):
    """Raise at the first NaN or infinity, naming the array and the place."""
    for name, array in arrays.items():
        finite = np.isfinite(array)
        if not finite.all():
            index = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(f"{name} must be finite, got {array[index]} at {list(index)}")
