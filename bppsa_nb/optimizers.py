"""How gradients move parameters: SGD with momentum, and Adam, by PyTorch's update rules."""

import numbers

import numpy as np

from bppsa_nb.shown import shown


class _Optimizer:
    """What both optimizers share: the steps taken, and running averages of every parameter's gradient."""

    _settings = ()

    def __init__(self, averages, **settings):
        for name, value in settings.items():
            setattr(self, name, value)
        self._settings = tuple(settings)
        self._averages = averages
        self.steps = 0
        self.state = {}

    def __repr__(self):
        return shown(self, *self._settings)

    def settings(self):
        """Return kind and hyperparameters, as JSON can hold them."""
        return {"kind": type(self).__name__} | {name: getattr(self, name) for name in self._settings}

    def zeros(self, params):
        """Return the state before the first step: zeros like every parameter, for every average."""
        return {average: {name: np.zeros_like(p) for name, p in params.items()} for average in self._averages}

    def step(self, params, grads):
        """Update the parameters in place.

        Parameters
        ----------
        params, grads : dict of str to np.ndarray
            Parameters and their gradients, under the same names.

        Raises
        ------
        ValueError
            If names or shapes differ.
        """
        if params.keys() != grads.keys():
            raise ValueError(f"grads must have the entries {sorted(params)}, got {sorted(grads)}")
        for name, param in params.items():
            if grads[name].shape != param.shape:
                raise ValueError(f"grads[{name!r}] must have shape {param.shape}, got {grads[name].shape}")
        if not self.state:
            self.state = self.zeros(params)
        for average in self._averages:
            shapes = {name: entry.shape for name, entry in self.state[average].items()}
            if shapes != {name: param.shape for name, param in params.items()}:
                raise ValueError("params must be those of the steps before: an optimizer belongs to one model")
        self.steps += 1
        for name, param in params.items():
            self._update(param, grads[name], *(self.state[average][name] for average in self._averages))


class SGD(_Optimizer):
    """Stochastic gradient descent with momentum: ``v = momentum v + g``, ``p = p - lr v`` (PyTorch's form).

    Parameters
    ----------
    lr : float
        Learning rate, not negative.
    momentum : float
        From 0 to below 1.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """

    def __init__(self, lr, momentum=0.0):
        _require_between("lr", lr, 0, np.inf)
        _require_between("momentum", momentum, 0, 1)
        super().__init__(("momentum_buffer",) if momentum else (), lr=float(lr), momentum=float(momentum))

    def _update(self, param, grad, velocity=None):
        if velocity is not None:
            velocity *= self.momentum
            velocity += grad
            grad = velocity
        param -= self.lr * grad


class Adam(_Optimizer):
    """Adam (Kingma & Ba, 2015), with PyTorch's order of operations.

    Parameters
    ----------
    lr : float
        Learning rate, not negative; the paper has 1e-5 for the RNN and 3e-4 for the GRU.
    betas : tuple of two floats
        Decay of the averages of the gradient and of its square, from 0 to below 1.
    eps : float
        Added to the denominator, not negative.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        _require_between("lr", lr, 0, np.inf)
        if np.shape(betas) != (2,):
            raise ValueError(f"betas must be two numbers, got {betas!r}")
        for i, beta in enumerate(betas):
            _require_between(f"betas[{i}]", beta, 0, 1)
        _require_between("eps", eps, 0, np.inf)
        betas = [float(beta) for beta in betas]
        super().__init__(("exp_avg", "exp_avg_sq"), lr=float(lr), betas=betas, eps=float(eps))

    def _update(self, param, grad, exp_avg, exp_avg_sq):
        beta1, beta2 = self.betas
        exp_avg += (1 - beta1) * (grad - exp_avg)
        exp_avg_sq *= beta2
        exp_avg_sq += (1 - beta2) * grad * grad
        denominator = np.sqrt(exp_avg_sq) / (1 - beta2**self.steps) ** 0.5 + self.eps
        param -= self.lr / (1 - beta1**self.steps) * exp_avg / denominator


def _require_between(name, value, low, high):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not low <= value < high:
        raise ValueError(f"{name} must be at least {low} and below {high}, got {value!r}")
