"""How gradients move parameters: SGD with momentum, and Adam, by PyTorch's update rules."""

import math

import numpy as np

from bppsa_nb.machine import checks
from bppsa_nb.machine.checks import as_array, check_between, check_count, check_floats, check_kind, wrong_shape
from bppsa_nb.machine.reprs import repr_of


class _Optimizer:
    """What both optimizers share: the steps taken, and running averages of every parameter's gradient."""

    _settings = ()

    def __init__(self, averages, **settings):
        for name, value in settings.items():
            setattr(self, name, value)
        self._settings = tuple(settings)
        self._averages = averages
        self.count = np.zeros(1, np.int64)  # of steps, where compiled code counts them
        self.state = {}

    def __repr__(self):
        return repr_of(self, *self._settings)

    @property
    def steps(self):
        """int: how many steps were taken; Adam's averages weigh more in the first ones."""
        return self.count.item()

    @steps.setter
    def steps(self, steps):
        fits = checks.is_integer(steps) and 0 <= steps < 2**62
        if not fits or self.count.dtype == object:
            self.count = np.zeros(1, np.int64 if fits else object)  # of what is no count, the next step says so
        self.count[0] = steps

    def settings(self):
        """Return kind and hyperparameters, as JSON can hold them."""
        return {"kind": type(self).__name__} | {name: getattr(self, name) for name in self._settings}

    def zeros(self, params):
        """Return the state before the first step: zeros like every parameter, for every average."""
        arrays = {name: as_array(f"params[{name!r}]", param) for name, param in params.items()}
        return {average: {name: np.zeros_like(array) for name, array in arrays.items()} for average in self._averages}

    def step(self, params, grads):
        """Update the parameters in place, a dict of arrays, by their gradients under the same names.

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            If names or shapes differ, or the averages of earlier steps were replaced; if a parameter or an average
            would leave the range of its dtype. Nothing is changed then.
        """
        for what, group in ("params", params), ("grads", grads):
            check_kind(what, group, dict, "a dict of numpy.ndarray")
        if params.keys() != grads.keys():
            raise ValueError(f"grads must have the entries {sorted(params, key=str)}, got {sorted(grads, key=str)}")
        steps_taken = check_count("steps", self.steps, most=math.inf)  # before anything changes
        state = self.state or self.zeros(params)
        if not isinstance(state, dict) or not all(isinstance(state.get(name), dict) for name in self._averages):
            raise ValueError(f"state must be a dict with the entries {list(self._averages)}, each a dict of arrays")
        averages = [state[average] for average in self._averages]
        if any(average.keys() != params.keys() for average in averages):
            raise ValueError(_OTHER)
        steps = []
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            for name, param in params.items():
                grad, before = grads[name], [param, *[average[name] for average in averages]]
                _check_shapes(name, grad, before)
                found = [np.empty_like(param) for _ in before]  # beside what it replaces: all change, or none
                self._update(grad, before, found)
                # Products of finite numbers, or too large; all but the last average show themselves in the parameter.
                if not math.isfinite(np.vdot(found[0], found[-1])):
                    self.check_range(name, grad, found)
                steps += zip(before, found, strict=True)
        for array, replacing in steps:
            array[...] = replacing
        self.state = state
        self.steps = steps_taken + 1

    def check_range(self, name, grad, found):
        """Raise FloatingPointError unless a parameter and its averages, as a step found them, are finite."""
        whats = [name, *(f"{average} of {name}" for average in self._averages)]
        for what, array in reversed(list(zip(whats, found, strict=True))):  # averages first: they are what is to blame
            if not np.isfinite(array).all():
                most = f"{np.abs(grad).max():.2g}"
                where = f"the range of {array.dtype} in step {self.steps + 1}, by gradients up to {most}"
                advice = "a smaller learning rate, smaller weights or float64 may help"
                raise FloatingPointError(f"{what} leaves {where}; nothing was updated; {advice}")


_OTHER = "params do not match the optimizer's state; use one optimizer per model"


def _check_shapes(name, grad, before):
    param, *averages = before
    check_floats(f"params[{name!r}]", param)
    check_floats(f"grads[{name!r}]", grad)
    if not param.flags.writeable:
        raise ValueError(f"params[{name!r}] must be writable, got a read-only array")
    if grad.shape != param.shape:
        raise wrong_shape(f"grads[{name!r}]", grad, param.shape)
    if any(getattr(average, "shape", None) != param.shape for average in averages):
        raise ValueError(_OTHER)
    if not all(average.flags.writeable for average in averages):
        raise ValueError(f"state must hold writable arrays, got a read-only one for {name!r}")


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
    TypeError, ValueError
        If one of them is no number or out of range.
    """

    def __init__(self, lr, momentum=0.0):
        check_between("lr", lr, 0, np.inf)
        check_between("momentum", momentum, 0, 1)
        super().__init__(("momentum_buffer",) if momentum else (), lr=float(lr), momentum=float(momentum))

    def _update(self, grad, before, found):
        if self._averages:
            grad = np.add(before[1] * self.momentum, grad, out=found[1])
        np.subtract(before[0], self.lr * grad, out=found[0])


class Adam(_Optimizer):
    """Adam (Kingma & Ba, 2015), with PyTorch's order of operations.

    Parameters
    ----------
    lr : float
        Learning rate, not negative; the paper has 1e-5 for the RNN and 3e-4 for the GRU.
    betas : tuple of two floats
        Decay of the averages of the gradient and of its square, from 0 to below 1.
    eps : float
        Added to the denominator, not negative. With 0, a gradient of 0 is divided by 0.

    Raises
    ------
    TypeError, ValueError
        If one of them is no number or out of range.
    """

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        check_between("lr", lr, 0, np.inf)
        if as_array("betas", betas).shape != (2,):
            raise ValueError(f"betas must be two numbers, got {betas!r}")
        for i, beta in enumerate(betas):
            check_between(f"betas[{i}]", beta, 0, 1)
        check_between("eps", eps, 0, np.inf)
        betas = [float(beta) for beta in betas]
        super().__init__(("exp_avg", "exp_avg_sq"), lr=float(lr), betas=betas, eps=float(eps))

    def _update(self, grad, before, found):
        (param, exp_avg, exp_avg_sq), (new_param, new_avg, new_avg_sq) = before, found
        (beta1, beta2), steps = self.betas, self.steps + 1
        np.subtract(grad, exp_avg, out=new_avg)
        if 1 - beta1 < 0.5:  # from the end that weighs more: a large one that weighs little would swallow the other
            new_avg *= 1 - beta1
            new_avg += exp_avg
        else:
            new_avg *= beta1
            np.subtract(grad, new_avg, out=new_avg)
        np.multiply(exp_avg_sq, beta2, out=new_avg_sq)
        squared = (1 - beta2) * grad
        squared *= grad
        new_avg_sq += squared
        denominator = np.sqrt(new_avg_sq)
        denominator /= (1 - beta2**steps) ** 0.5
        denominator += self.eps
        np.multiply(new_avg, self.lr / (1 - beta1**steps), out=new_param)
        new_param /= denominator
        np.subtract(param, new_param, out=new_param)
