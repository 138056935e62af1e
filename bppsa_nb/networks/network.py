"""A network as a chain of operators: ordinary backward, and backward through the scan over sparse Jacobians."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains import levels as listed
from bppsa_nb.machine import backends, checks
from bppsa_nb.machine.arguments import Backend, Count, Dtype, Rng, Size, checked
from bppsa_nb.machine.checks import short_repr, with_repr
from bppsa_nb.machine.parameters import Parametrized
from bppsa_nb.networks.jacobians import Jacobian
from bppsa_nb.networks.layers import Flatten, Operator
from bppsa_nb.operands.pattern import BatchedCSR, CSRPattern, Pattern
from bppsa_nb.scan import scan

_SMALL = 2**24  # multiply-adds of the largest product up to which one thread multiplies
_BYTES = 2**28  # of Jacobians and their products in memory at a time; more would not be faster


@with_repr("x", "outputs")
@dataclass(frozen=True, eq=False)
class Activations(checks.Made):
    """What a forward pass leaves for the backward pass: the input `x` [shape=(B, C, H, W)], and the `outputs`."""

    x: np.ndarray
    outputs: tuple[np.ndarray, ...]

    @property
    def logits(self) -> np.ndarray:
        """The last output [shape=(B, classes)]."""
        return self.outputs[-1]

    def read_by(self, i: int) -> np.ndarray:
        """Return what operator number i read."""
        return self.outputs[i - 1] if i else self.x


def shapes_along(operators, shape) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of one sample at the input, which is given, and after every operator."""
    shapes = [shape]
    for operator in operators:
        shapes.append(operator.output_shape(shapes[-1]))
    return tuple(shapes)


def param_shapes(operators):
    """Return the shapes of all parameters of operators, by their names."""
    return {f"{op.name}.{part}": shape for op in operators for part, shape in op.param_shapes.items()}


def params_of(operator, params):
    """Return an operator's weight and bias, of a network's parameters."""
    return [params[f"{operator.name}.{part}"] for part in operator.param_shapes]


def gradients_of(operator, grad, x):
    """Return the gradients of an operator's weight and bias by their names, from that at its output, and its input."""
    found = operator.parameter_gradients(grad, x)
    return {f"{operator.name}.{part}": grad for part, grad in zip(operator.param_shapes, found, strict=True)}


def run(operators, params, x):
    """Go forward through operators; return the outputs, a tuple, or raise FloatingPointError if one overflows."""
    outputs = []
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
        for operator in operators:
            x = operator.forward(x, *params_of(operator, params))
            # Found where it arises, in sums of linear operators, because ReLU hides what is negative.
            if operator.shared and not np.isfinite(x).all():
                params.check_finite()
                why = f"overflows {x.dtype}, though x and all parameters are finite"
                raise FloatingPointError(f"the output of {operator.name!r} {why}")
            outputs.append(x)
    return tuple(outputs)


def run_back(operators, params, x, outputs, grad, grads, to_input):
    """Go backward through operators from x, adding to `grads`; with `to_input`, return the gradient at x."""
    inputs = (x, *outputs)
    for i in reversed(range(len(operators))):
        operator, x = operators[i], inputs[i]
        grads |= gradients_of(operator, grad, x)
        if i or to_input:
            grad = operator.backward(grad, x, outputs[i], *params_of(operator, params))
    return grad


def initial(shapes, rng, dtype, init="uniform", stacked=""):
    """Draw parameters as `Network` does; where names begin with `stacked`, those of many layers, each by itself."""
    params, fan_in = {}, 1
    for name, shape in shapes.items():  # a weight comes before its bias
        one = shape[1:] if stacked and name.startswith(stacked) else shape
        if len(one) > 1:
            fan_in = math.prod(one[1:])
        if init == "uniform":
            param = rng.uniform(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), shape)
        else:
            param = rng.standard_normal(shape) * math.sqrt(2 / fan_in) if len(one) > 1 else np.zeros(shape)
        params[name] = param.astype(dtype)
    return params


@with_repr("shapes", "operators", "dtype")
class Network(Parametrized):
    """A chain of operators, and its parameters. See `LeNet5` and `VGG11`.

    Parameters
    ----------
    input_shape
        One sample's shape: (C, H, W).
    operators
        From the image to the logits; the last one's output is a vector.
    scan_until
        The name of the last operator whose gradients the scan computes. Ordinary backward computes the gradients of the
        operators after it. By default, the scan computes all.
    init
        ``"uniform"``: weights and biases uniform up to ``1 / sqrt(fan_in)``, PyTorch's default. ``"he"``: weights
        normal with variance ``2 / fan_in`` (He et al., 2015), biases zero.
    rng, dtype
        Where the initial parameters come from, and what they are: float32 or float64.

    Attributes
    ----------
    params : dict of str to np.ndarray
        Parameters, under PyTorch's names and in its layout.
    operators : tuple of Operator
    shapes : tuple of tuple of int
        One sample's shape at the input and after every operator.

    Notes
    -----
    The chain that is scanned begins at the first operator's output. Nobody needs the gradient at the image, and the
    product for it is the most expensive of all.
    """

    @checked
    def __init__(
        self, input_shape: Sequence[Size], operators: Sequence[Operator], *, scan_until: str | None = None,
        init: Literal["uniform", "he"] = "uniform", rng: Rng = 0, dtype: Dtype = np.float32,
    ):  # fmt: skip
        self.dtype, self.operators = np.dtype(dtype), tuple(operators)
        names = [operator.name for operator in self.operators]
        for name, given in ("input_shape", input_shape), ("operators", names):
            if not given:
                raise ValueError(f"{name} must be one or more, got none")
        if len(set(names)) < len(names):
            raise ValueError(f"operators must have names of their own, got {names}")
        if scan_until is not None:
            checks.check_choice("scan_until", scan_until, names)
        self.input_shape, self.shapes = input_shape, (shapes := shapes_along(self.operators, input_shape))
        if len(shapes[-1]) != 1:
            got = f"{names[-1]!r} has an output of shape {shapes[-1]}"
            raise ValueError(f"operators must end in a vector of logits, as after a Flatten, but {got}")
        self.num_classes = shapes[-1][0]
        weights = [math.prod(operator.param_shapes.get("weight", ())) for operator in self.operators]
        places = [math.prod(shape[1:]) for shape in shapes[1:]]  # of a convolution's filters; one for other operators
        self._largest = max(w * p for w, p in zip(weights, places, strict=True))  # multiply-adds of a product
        self._scanned = len(names) if scan_until is None else names.index(scan_until) + 1
        self._param_shapes = param_shapes(self.operators)
        self.params = initial(self._param_shapes, np.random.default_rng(rng), self.dtype, init)
        self._masks: dict[str, np.ndarray] | None = None
        self._jacobians, self._pieces = {}, {}

    @property
    def kind(self) -> tuple:
        """What activations of one network that fit another have in common: shapes, kinds of operators, dtype."""
        return self.shapes, tuple(map(type, self.operators)), self.dtype

    @checked
    def forward(self, x: Annotated[np.ndarray, "float[B, *input_shape]"], backend: Backend = "auto") -> Activations:
        """Compute every operator's output.

        Parameters
        ----------
        x
            Images, in the network's dtype.
        backend
            Must be available, but makes no difference: all of them use NumPy's matrix products going forward.

        Returns
        -------
        Activations

        Raises
        ------
        FloatingPointError
            If finite inputs and parameters give an output that is not.
        """
        backends.resolve(backend)
        self.params.seal()
        checks.check_finite(x=x)
        _check_pruned(self.params, self._masks)
        with self._blas(len(x)):
            return Activations(x, run(self.operators, self.params, x)).sign(self.kind)

    @checked
    def backward(
        self, activations: Activations, grad_logits: Annotated[np.ndarray, "float[B, num_classes]"],
        method: Literal["auto", "ordinary", "linear", "blelloch", "truncated", "chunked"] = "auto",
        backend: Backend = "auto", levels: Count | None = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Compute the gradients of all parameters.

        Parameters
        ----------
        activations
            What `forward` returned, with the parameters unchanged since.
        grad_logits
            Gradient of the loss at the logits.
        method
            ``"ordinary"`` goes from operator to operator without a stored Jacobian; it does the least work, so
            ``"auto"`` takes it. The others make sparse transposed Jacobians and scan them; see `links`.
        backend
            Where the scan runs; see `bppsa_nb.backprop`.
        levels
            For ``"truncated"``; see `bppsa_nb.backprop`.

        Returns
        -------
        dict of str to np.ndarray
            Gradients under the names and in the shapes of `params`, zero where `masks` prune. A gradient too large for
            the dtype is infinite or NaN.
        """
        activations.check(self.kind, self)
        checks.check_array("grad_logits", grad_logits, self.dtype, activations.logits.shape)
        checks.check_finite(grad_logits=grad_logits)
        self.check_method(method, backend, levels)
        grads: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"), self._blas(len(grad_logits)):
            stop = 0 if method in ("auto", "ordinary") or not self.linked() else self._scanned
            grad = self._ordinary(activations, grad_logits, stop, grads)
            if stop and np.isfinite(grad).all():
                self._scan(activations, grad, {"method": method, "backend": backend, "levels": levels}, grads)
            elif stop:  # what overflowed on the way here is passed on; a scan would refuse it
                self._ordinary(activations, grad_logits, 0, grads)
        for name, mask in (self._masks or {}).items():
            np.copyto(grads[name], 0, where=~mask)
        if not all(np.isfinite(grad).all() for grad in grads.values()):
            outputs = {f"activations.outputs[{i}]": output for i, output in enumerate(activations.outputs)}
            checks.check_finite(**{"activations.x": activations.x}, **outputs)
            self.params.check_finite()
        return {name: grads[name] for name in self.params if name in grads}  # a subclass adds those of its own

    def _blas(self, batch):
        """Keep BLAS to one thread where its products are small: as in recurrent cells, more of them wait, not work."""
        if batch * self._largest > _SMALL:
            return nullcontext()
        from bppsa_nb.machine.workers import one_blas_thread

        return one_blas_thread()

    def check_method(self, method, backend="auto", levels=None):
        """Raise what `backward` would raise for these arguments."""
        check_method(("auto", "ordinary"), method, backend, levels, self.dtype)

    def _ordinary(self, activations, grad, stop, grads):
        """Go backward down to the output of operator number `stop - 1`; return the gradient there."""
        there = activations.read_by(stop), activations.outputs[stop:], grad
        return run_back(self.operators[stop:], self.params, *there, grads, to_input=stop > 0)

    def _scan(self, activations, grad_output, how, grads):
        """Find the gradients at the outputs of the scanned operators, a few samples at a time."""
        grad_output = np.ascontiguousarray(grad_output.reshape(len(grad_output), -1))
        numbers = self._link_numbers()
        wanted = [i for i in range(self._scanned) if self.operators[i].param_shapes]
        places = np.searchsorted(numbers, wanted, "right")  # of their outputs among the chain's points
        pieces, size = [], self._piece(how["method"], how["levels"])
        for start in range(0, len(grad_output), size):
            piece = slice(start, start + size)
            gradients = chain.backprop(self._links(activations, numbers, piece), grad_output[piece], **how)
            pieces.append([gradients[place] for place in places])
        for i, parts in zip(wanted, zip(*pieces, strict=True), strict=True):
            grad = np.concatenate(parts).reshape(-1, *self.shapes[i + 1])
            grads |= gradients_of(self.operators[i], grad, activations.read_by(i))

    def _piece(self, method, levels):
        """Return for how many samples Jacobians and products fit into `_BYTES`; at least one."""
        if (method, levels) not in self._pieces:
            costs = []
            # Products are planned here, which the scan would do otherwise: plans are kept with the patterns.
            links = [Pattern(each, costs) for each in reversed(self.patterns())]
            scan([Pattern(None, costs), *links], method, levels, listed.chunk_length(method, len(links)))
            entries = sum(cost.entries for cost in costs if cost.kind == "mm")
            entries += sum(self.jacobian(op.name).pattern.nnz for op in self.linked() if not op.shared)
            self._pieces[method, levels] = max(1, _BYTES // (self.dtype.itemsize * max(1, entries)))
        return self._pieces[method, levels]

    @checked
    def linked(self, from_input: bool = False) -> list[Operator]:
        """Return the operators whose transposed Jacobians are `links`; `from_input` as there."""
        return [self.operators[i] for i in self._link_numbers(from_input)]

    @checked
    def links(self, activations: Activations, from_input: bool = False) -> list[BatchedCSR]:
        """Make the transposed Jacobians that the scan multiplies, for `bppsa_nb.backprop`: a list of BatchedCSR.

        There is one for each operator of `linked`, in this order: all samples' values [shape=(B, nnz)], new arrays, or
        [shape=(1, nnz)] where they do not depend on the sample. The patterns are the network's. `activations` are what
        `forward` returned. With `from_input`, the first operator has a link, too; training does without.
        """
        activations.check(self.kind, self)
        return self._links(activations, self._link_numbers(from_input), slice(None))

    @checked
    def patterns(self, from_input: bool = False) -> list[CSRPattern]:
        """Return the patterns of `links`, which need no activations; `from_input` as there."""
        return [self.jacobian(operator.name).pattern for operator in self.linked(from_input)]

    def jacobian(self, name: str) -> Jacobian:
        """Return the Jacobian of an operator, by name, whose pattern is found once and kept until masks change."""
        names = [operator.name for operator in self.operators]
        checks.check_choice("name", name, names)
        if name not in self._jacobians:
            i = names.index(name)
            mask = (self._masks or {}).get(f"{name}.weight")
            self._jacobians[name] = self.operators[i].jacobian(self.shapes[i], mask)
        return self._jacobians[name]

    def _link_numbers(self, from_input=False):
        scanned = range(not from_input, self._scanned)
        return [i for i in scanned if type(self.operators[i]) is not Flatten]  # which is no link

    def _links(self, activations, numbers, piece):
        """Fill the values of some samples."""
        links = []
        for i in numbers:
            operator = self.operators[i]
            jacobian = self.jacobian(operator.name)
            x, y = activations.read_by(i)[piece], activations.outputs[i][piece]
            source = operator.source(x, y, *params_of(operator, self.params))
            links.append(BatchedCSR.of(jacobian.pattern, np.atleast_2d(jacobian.fill(source))))
        return links

    @property
    def masks(self) -> dict[str, np.ndarray] | None:
        """Which weights are kept: arrays of bool by name, as `bppsa_nb.sparse.prune` returns them, or None.

        Setting them keeps the gradients of pruned weights at zero, and leaves those weights out of the Jacobians'
        patterns. Pruned weights must be zero already, and an optimizer must be a new one: one that remembers steps
        from before would move them, which the next `forward` refuses. None keeps all weights.
        """
        return None if self._masks is None else dict(self._masks)

    @masks.setter
    def masks(self, masks: dict[str, np.ndarray] | None) -> None:
        self.check_masks(masks, self.params)
        kept = {name: mask.copy() for name, mask in (masks or {}).items()}
        for mask in kept.values():
            mask.flags.writeable = False
        self._masks = kept or None
        self._jacobians, self._pieces = {}, {}

    def check_masks(self, masks, params):
        """Raise what setting `masks` would raise if these were the parameters."""
        if masks is None:
            return
        shapes = {name: shape for name, shape in self._param_shapes.items() if len(shape) > 1}
        if not isinstance(masks, dict) or masks.keys() != shapes.keys():
            got = sorted(masks, key=str) if isinstance(masks, dict) else short_repr(masks)
            raise ValueError(f"masks must be a dict with the entries {sorted(shapes)}, got {got}")
        for name, mask in masks.items():
            if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != shapes[name]:
                expected = f"an array of bool of shape {shapes[name]}"
                raise ValueError(f"masks[{name!r}] must be {expected}, got {short_repr(mask)}")
        _check_pruned(params, masks)


def check_method(own, method, backend, levels, dtype):
    """Raise what `backward` of a model would raise: it has methods of its `own`, and scans as `backprop` does."""
    checks.check_choice("method", method, (*own, *chain.METHODS))
    if method not in own:
        chain.choose(method, backend, levels, None, dtype)
        return
    backends.resolve(backend)
    if levels is not None:
        raise ValueError(f"levels is for method='truncated' only, got levels={levels!r} with method={method!r}")


def _check_pruned(params, masks):
    for name, mask in (masks or {}).items():
        moved = (params[name] != 0) & ~mask
        if moved.any():
            index = tuple(map(int, np.argwhere(moved)[0]))
            got = f"{params[name][index]} at {list(index)}; an optimizer that remembers steps from before pruning moves"
            advice = "pruned weights: prune, set masks, and retrain with a new one"
            raise ValueError(f"params[{name!r}] must be zero where masks prune it, got {got} {advice}")
