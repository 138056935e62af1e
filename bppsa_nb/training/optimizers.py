"""How gradients move parameters: SGD with momentum, and Adam, by PyTorch's update rules.

A rule takes a parameter, its gradient, and two running averages of gradients, and returns the parameter and the
averages after a step. It is written in Python's operators: NumPy gives it arrays, compiled code numbers.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import numpy as np

from bppsa_nb.machine.arguments import checked
from bppsa_nb.machine.checks import as_array, check_count, check_floats, repr_of, wrong_shape
from bppsa_nb.machine.parameters import Parameters
from bppsa_nb.machine.process import interrupts_held

Rate = Annotated[float, ">= 0"]
Share = Annotated[float, ">= 0, < 1"]
_OTHER = "params do not match the optimizer's state; use one optimizer per model"


def sgd(param, grad, velocity, _, numbers):
    """``p - lr g``; see `SGD.numbers`."""
    return param - numbers[0] * grad, velocity, _


def momentum(param, grad, velocity, _, numbers):
    """``v = momentum v + g``, ``p - lr v``."""
    velocity = velocity * numbers[1] + grad
    return param - numbers[0] * velocity, velocity, _


@cache
def adam_of(sqrt):
    """Make the rule of Adam, of arrays or numbers as `sqrt` is; see `Adam.numbers`."""

    def adam(param, grad, average, square, numbers):
        rate, eps, scale, keep, new = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        change = grad - average
        # From the end that weighs more: a large one that weighs little would swallow the other.
        average = change * new + average if new < keep else grad - change * keep
        square = square * numbers[5] + numbers[6] * grad * grad
        return param - average * rate / (sqrt(square) / scale + eps), average, square

    return adam


class _Optimizer:
    """What both optimizers share: the steps taken, and running averages of every parameter's gradient."""

    _settings = ()  # of one that is not made yet

    def __init__(self, averages, *settings):
        self._averages, self._settings = averages, settings
        self.count = np.zeros(1, np.int64)  # of steps, where compiled code counts them
        self.state = {}

    def __repr__(self):
        return repr_of(self, *self._settings)

    @property
    def steps(self) -> int:
        """int: how many steps were taken; Adam's averages weigh more in the first ones."""
        return self.count.item()

    @steps.setter
    def steps(self, steps: int) -> None:
        self.count[0] = check_count("steps", steps, most=2**63 - 2)

    def settings(self) -> dict[str, Any]:
        """Return kind and hyperparameters, as JSON can hold them."""
        return {"kind": type(self).__name__} | {name: getattr(self, name) for name in self._settings}

    def zeros(self, params: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the state before the first step: zeros like every parameter, for every average."""
        if isinstance(params, Parameters):
            return {average: params.zeros() for average in self._averages}
        arrays = {name: as_array(f"params[{name!r}]", param) for name, param in params.items()}
        return {average: {name: np.zeros_like(array) for name, array in arrays.items()} for average in self._averages}

    @checked
    def step(self, params: Mapping[str, np.ndarray], grads: Mapping[str, np.ndarray]) -> None:
        """Update the parameters in place, by their gradients under the same names.

        Raises
        ------
        FloatingPointError
            If a parameter or an average would leave the range of its dtype. Nothing is changed then.
        """
        if params.keys() != grads.keys():
            raise ValueError(f"grads must have the entries {sorted(params, key=str)}, got {sorted(grads, key=str)}")
        state = self.state or self.zeros(params)
        if not isinstance(state, dict) or not all(isinstance(state.get(name), Mapping) for name in self._averages):
            raise ValueError(f"state must be a dict with the entries {list(self._averages)}, each a dict of arrays")
        averages = [state[average] for average in self._averages]
        if any(average.keys() != params.keys() for average in averages):
            raise ValueError(_OTHER)
        rule, numbers, steps = self.rule_of(np.sqrt), self.numbers(), []
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            for name, param in params.items():
                grad, before = grads[name], [param, *(average[name] for average in averages)]
                _check(name, grad, before)
                found = rule(param, grad, *[*before[1:], None, None][:2], numbers)[: len(before)]
                # Products of finite numbers, or too large; all but the last average show themselves in the parameter.
                if not math.isfinite(np.vdot(found[0], found[-1])):
                    self._check_range(name, grad, found)
                steps += zip(before, found, strict=True)
        self.state = state
        self.take(steps)

    def take(self, replaced):
        """Replace numbers of parameters and averages; pairs of arrays, before and after a step. Ctrl-C waits."""
        with interrupts_held():
            for array, new in replaced:
                array[...] = new
            self.count += 1

    def flats(self, params):
        """Return the averages of `Parameters` as flat arrays like theirs; zeros before the first step."""
        state, found = self.state or self.zeros(params), []
        for average in self._averages:
            group = state.get(average)
            if getattr(group, "shapes", None) != params.shapes or group.flat.dtype != params.flat.dtype:
                own = params.zeros()  # for what somebody has put there
                try:
                    own.update(group)
                except (TypeError, ValueError) as error:
                    raise ValueError(_OTHER) from error
                if len(group) < len(own):
                    raise ValueError(_OTHER)
                state[average] = own
            found.append(state[average].flat)
        for array in params.flat, *found:
            if not array.flags.writeable:
                raise ValueError("params and their averages must be writable, got a read-only array")
        self.state = state  # before anything changes: Ctrl-C may come at any time
        return found

    def _check_range(self, name, grad, found):
        """Raise FloatingPointError unless a parameter and its averages, as a step found them, are finite."""
        whats = [name, *(f"{average} of {name}" for average in self._averages)]
        for what, array in reversed(list(zip(whats, found, strict=True))):  # averages first: they are what is to blame
            if not np.isfinite(array).all():
                most = f"{np.abs(grad).max():.2g}"
                where = f"the range of {array.dtype} in step {self.steps + 1}, by gradients up to {most}"
                advice = "a smaller learning rate, smaller weights or float64 may help"
                raise FloatingPointError(f"{what} leaves {where}; nothing was updated; {advice}")


def _check(name, grad, before):
    """Raise TypeError or ValueError unless a parameter, its gradient and its averages fit together."""
    check_floats(f"params[{name!r}]", before[0])
    check_floats(f"grads[{name!r}]", grad)
    if grad.shape != before[0].shape:
        raise wrong_shape(f"grads[{name!r}]", grad, before[0].shape)
    if any(getattr(each, "shape", None) != grad.shape or each.dtype != before[0].dtype for each in before[1:]):
        raise ValueError(_OTHER)
    if not all(array.flags.writeable for array in before):
        raise ValueError(f"params[{name!r}] and its averages must be writable, got a read-only array")


class SGD(_Optimizer):
    """Stochastic gradient descent with momentum: ``v = momentum v + g``, ``p = p - lr v`` (PyTorch's form).

    Parameters
    ----------
    lr
        Learning rate.
    momentum
        The share of the last step that the next one repeats.
    """

    @checked
    def __init__(self, lr: Rate, momentum: Share = 0.0):
        super().__init__(("momentum_buffer",) if momentum else (), "lr", "momentum")
        self.lr, self.momentum = lr, momentum

    def rule_of(self, sqrt):
        """Return `sgd`, or `momentum`, as the optimizer was made, whatever its momentum is now."""
        return momentum if self._averages else sgd

    def numbers(self):
        """Return what the rule of the next step reads: learning rate, momentum."""
        return [float(self.lr), float(self.momentum)]


class Adam(_Optimizer):
    """Adam (Kingma & Ba, 2015), with PyTorch's order of operations.

    Parameters
    ----------
    lr
        Learning rate; the BPPSA paper uses 1e-5 for the RNN and 3e-4 for the GRU.
    betas
        Decay rates of the running averages of the gradient and of its square.
    eps
        Added to the denominator. With 0, a parameter whose gradients were all 0 leaves the range (0 / 0).
    """

    @checked
    def __init__(self, lr: Rate = 1e-3, betas: tuple[Share, Share] = (0.9, 0.999), eps: Rate = 1e-8):
        super().__init__(("exp_avg", "exp_avg_sq"), "lr", "betas", "eps")
        self.lr, self.betas, self.eps = lr, list(betas), eps

    rule_of = staticmethod(adam_of)

    def numbers(self):
        """Return what the rule of the next step reads, worked out in double precision.

        Learning rate, epsilon and the root of the second average's share; what averages keep, and what they take.
        """
        (beta1, beta2), steps = map(float, self.betas), self.count.item() + 1
        scales = float(self.lr) / (1 - beta1**steps), float(self.eps), (1 - beta2**steps) ** 0.5
        return [*scales, beta1, 1 - beta1, beta2, 1 - beta2]


KINDS = SGD, Adam  # whose rules, of two averages and eight numbers at most, are compiled for steps that run whole


def step(optimizer, params, grads):
    """Take a step of `Parameters` by gradients [shape=(P,)]; return False if something would not be finite.

    Nothing has changed then, nor where averages do not fit, and `optimizer.step` says what is wrong.
    """
    state = optimizer.state
    try:
        averages = optimizer.flats(params)
    except ValueError:
        return False
    before, rule = [params.flat, *averages], optimizer.rule_of(np.sqrt)
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
        found = rule(params.flat, grads, *[*averages, None, None][:2], optimizer.numbers())[: len(before)]
    if not np.isfinite(found).all():
        optimizer.state = state
        return False
    optimizer.take(zip(before, found, strict=True))
    return True
