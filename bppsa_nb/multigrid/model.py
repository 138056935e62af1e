"""A residual network that can be trained: opening layers, residual layers that multigrid solves, closing layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np

from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import checks
from bppsa_nb.machine.arguments import Backend, Comm, Count, Dtype, Rng, Size, checked
from bppsa_nb.machine.checks import with_repr
from bppsa_nb.machine.parameters import Parametrized
from bppsa_nb.machine.process import over_ranks
from bppsa_nb.multigrid.cycles import Options
from bppsa_nb.multigrid.grids import check_levels
from bppsa_nb.multigrid.solver import solve, solve_adjoint
from bppsa_nb.networks.layers import Operator
from bppsa_nb.networks.network import check_method, initial, param_shapes, run, run_back, shapes_along
from bppsa_nb.networks.residual import ResidualNetwork
from bppsa_nb.networks.residual_steps import Activation

_OPTIONS = [field.name for field in fields(Options)]  # what a model's `solver` may say


@with_repr("x", "opening", "states", "closing")
@dataclass(frozen=True, eq=False)
class ResidualActivations(checks.Made):
    """What a forward pass leaves for the backward pass: the input `x`, outputs of operators, and states.

    `opening` and `closing` are tuples of arrays [shape=(B, ...)], one of each operator; `states` [shape=(N + 1, B,
    ...)] those of the residual layers. With `comm`, `closing` is empty on all ranks but the last, and states are
    from the first of this rank's layers to the one after its last.
    """

    x: np.ndarray
    opening: tuple[np.ndarray, ...]
    states: np.ndarray
    closing: tuple[np.ndarray, ...]

    @property
    def logits(self) -> np.ndarray | Any:
        """The last output [shape=(B, classes)]; None where `closing` is empty."""
        return self.closing[-1] if self.closing else None


@with_repr("input_shape", "opening", "depth", "closing", "h", "activation", "solver", "dtype")
class ResidualModel(Parametrized):
    """Opening operators, N residual layers u^{n+1} = u^n + h σ(W^n u^n + b^n), closing operators.

    Parameters
    ----------
    input_shape
        Of one sample: (C, H, W) or (n,).
    opening
        From the input to the first state, which is a vector (q,) or an image (C, H, W); operators are those of
        `bppsa_nb.sparse`, such as ``sparse.Linear("opening", 64, 32)``. Empty if the input is the first state.
    depth
        Residual layers, N.
    closing
        From the last state to the logits.
    h
        Step size; 1 / depth if not given, so that T = N h = 1.
    kernel_size
        k of the residual convolutions, odd; not used where states are vectors.
    activation
        σ.
    solver
        How multigrid solves for the states and for their gradients: arguments of `solve`, from `cycles` to
        `skip_downcycle`, such as ``{"cycles": 2}``, the paper's, or ``{"error": 0.01}``: as many cycles as the network
        needs then. None propagates serially. It may be changed at any time. With neither of the two, a `tol` decides;
        in float32, the default dtype, rounding keeps residuals above the usual 1e-9: give a larger one.
    rng
        Where the initial parameters come from: uniform up to ``1 / sqrt(fan_in)``, PyTorch's default.
    dtype
        float32 or float64.

    Attributes
    ----------
    params : dict of str to np.ndarray
        ``name.weight`` and ``name.bias`` of each operator, in PyTorch's layout; between those of opening and closing
        ``residual.weight`` [shape=(N, q, q)] or [shape=(N, C, C, k, k)] and ``residual.bias`` [shape=(N, q)] or
        [shape=(N, C)].
    cycles : dict of str to int
        How many cycles the last ``"forward"`` and the last ``"backward"`` took; a serial pass counts as one.

    Examples
    --------
    >>> import numpy as np
    >>> from bppsa_nb import SGD, Trainer, multigrid, sparse
    >>> opening, closing = [sparse.Linear("opening", 4, 8)], [sparse.Linear("closing", 8, 3)]
    >>> model = multigrid.ResidualModel((4,), opening, 64, closing, solver={"cycles": 2})
    >>> trainer = Trainer(model, SGD(lr=0.1), backend="numpy")
    >>> losses = [trainer.step(np.eye(2, 4, dtype=np.float32), [0, 2]) for _ in range(10)]
    >>> losses[-1] < losses[0]
    True
    """

    @checked
    def __init__(
        self, input_shape: Sequence[Size], opening: Sequence[Operator], depth: Size, closing: Sequence[Operator], *,
        h: Annotated[float, "> 0"] | None = None, kernel_size: Size = 3, activation: Activation = "tanh",
        solver: Mapping[str, Any] | None = None, rng: Rng = 0, dtype: Dtype = np.float32,
    ):  # fmt: skip
        self.dtype, self.input_shape, self.opening, self.closing = np.dtype(dtype), input_shape, opening, closing
        names = ["residual", *(operator.name for operator in (*self.opening, *self.closing))]
        if len(set(names)) < len(names):
            raise ValueError(f"operators must have names of their own, and none be 'residual', got {names[1:]}")
        opened = shapes_along(self.opening, self.input_shape)
        self.state_shape = opened[-1]
        if len(self.state_shape) not in (1, 3):
            raise ValueError(f"opening must end in a vector or an image (C, H, W), got {self.state_shape}")
        closed = shapes_along(self.closing, self.state_shape)
        if not self.closing or len(closed[-1]) != 1:
            raise ValueError(f"closing must end in a vector of logits, got an output of shape {closed[-1]}")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        # What activations of one model that fit another have in common.
        self.kind = opened, closed, tuple(map(type, self.opening + self.closing)), depth, self.dtype
        self.num_classes, (width, *image) = closed[-1][0], self.state_shape
        kernel = (kernel_size,) * len(image)
        self.h, self.activation = 1 / depth if h is None else h, activation
        self._shapes = param_shapes(self.opening)
        self._shapes |= {"residual.weight": (depth, width, width, *kernel), "residual.bias": (depth, width)}
        self._shapes |= param_shapes(self.closing)
        self.params = initial(self._shapes, np.random.default_rng(rng), self.dtype, stacked="residual.")
        network_of(self)  # refuses what does not fit
        self.solver, self.cycles = solver, {}

    @property
    def depth(self) -> int:
        """N, how many residual layers there are."""
        return len(self.params["residual.weight"])

    @property
    def solver(self) -> dict[str, Any] | None:
        """How multigrid solves for states and gradients: a dict of options of `solve`, or None for serially."""
        return None if self._solver is None else dict(self._solver)

    @solver.setter
    @checked
    def solver(self, solver: Mapping[str, Any] | None):
        if solver is not None:
            if solver.keys() - set(_OPTIONS):
                raise ValueError(f"solver may have the options {', '.join(_OPTIONS)}, got {list(solver)}")
            options = Options(**solver)
            check_levels(self.depth, options.coarsening, options.levels)
            solver = dict(solver)
        self._solver = solver

    @checked
    def forward(
        self, x: Annotated[np.ndarray, "float[B, *input_shape]"], backend: Backend = "auto", comm: Comm = None
    ) -> ResidualActivations:
        """Compute every operator's output and all states: by multigrid if there is a `solver`.

        Parameters
        ----------
        x
            Samples, in the model's dtype.
        backend
            What computes residual layers; opening and closing are NumPy's matrix products with all of them.
        comm
            Ranks that share out the residual layers; each has the states of the layers that
            ``multigrid.partition(depth, comm.size, coarsening, levels)`` gives it. All of them give the same batch, and
            have the same parameters. Logits are found on the last one.

        Returns
        -------
        ResidualActivations

        Raises
        ------
        FloatingPointError, RuntimeError
            If an output leaves the range of the dtype, or cycles diverge; if they do not reach `error` or `tol`.
        """
        if comm is not None:
            return over_ranks("residual").forward(self, x, backend, comm)
        self.check_input(x)
        opening = run(self.opening, self.params, x)
        first = np.ascontiguousarray(opening[-1] if opening else x)
        solved = solve(network_of(self), first, **solver_options(self), backend=backend)
        self.cycles["forward"] = solved.cycles
        closing = run(self.closing, self.params, solved.states[-1])
        return ResidualActivations(x, opening, solved.states, closing).sign(made_by(self))

    @checked
    def backward(
        self, activations: ResidualActivations, grad_logits: Annotated[np.ndarray | None, "float[B, num_classes]"],
        method: Literal["auto", "multigrid", "ordinary", "linear", "blelloch", "truncated", "chunked"] = "auto",
        backend: Backend = "auto", levels: Count | None = None, comm: Comm = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Compute the gradients of all parameters.

        Parameters
        ----------
        activations
            What `forward` returned, with the parameters unchanged since.
        grad_logits
            Gradient of the loss at the logits.
        method
            How to find the gradients at the states. ``"multigrid"`` solves for them as the `solver` says;
            ``"ordinary"`` goes from layer to layer; ``"auto"`` takes the former if there is a solver. The others scan
            the transposed Jacobians of dense layers, as `bppsa_nb.backprop` does.
        backend
            As in `forward`.
        levels
            For ``"truncated"``; the levels of multigrid are an option of the `solver`.
        comm
            As in `forward`. `grad_logits` is given on the last rank, and None on the others. Gradients of all
            parameters are returned on all ranks. Scans are not available: they would need all Jacobians in one place.

        Returns
        -------
        dict of str to np.ndarray
            Gradients under the names and in the shapes of `params`.
        """
        if comm is not None:
            return over_ranks("residual").backward(self, activations, grad_logits, method, backend, levels, comm)
        check_activations(self, activations)
        checks.check_array("grad_logits", grad_logits, self.dtype, activations.logits.shape)
        checks.check_finite(grad_logits=grad_logits)
        self.check_method(method, backend, levels)
        states, net, grads = activations.states, network_of(self), {}
        grad = run_operators_back(self, self.closing, states[-1], activations.closing, grad_logits, grads)
        if method in ("auto", "ordinary", "multigrid"):
            how = {"levels": 1} if method == "ordinary" else solver_options(self)
            solved = solve_adjoint(net, states, grad, **how, backend=backend)
            self.cycles["backward"], gradients = solved.cycles, solved.states
        else:
            self.cycles["backward"] = 1
            gradients = chain.backprop(net.jacobians_T(states), grad, method=method, backend=backend, levels=levels)
        found = net.parameter_gradients(states, gradients, backend)
        grads |= zip(("residual.weight", "residual.bias"), found, strict=True)
        run_operators_back(self, self.opening, activations.x, activations.opening, gradients[0], grads)
        return {name: grads[name] for name in self.params if name in grads}  # a subclass adds those of its own

    def check_input(self, x):
        """Raise ValueError unless samples and parameters are finite."""
        self.params.seal()
        checks.check_finite(x=x)
        self.params.check_finite()

    def check_method(self, method, backend="auto", levels=None, comm=None):
        """Raise what `backward` would raise for these arguments."""
        if comm is not None:
            over_ranks("residual").check_method(self, method, comm)
        check_method(("auto", "multigrid", "ordinary"), method, backend, levels, self.dtype)
        if method == "multigrid" and self._solver is None:
            raise ValueError("method='multigrid' needs a model with a solver, such as {'cycles': 2}, got None")
        if method in chain.METHODS and len(self.state_shape) > 1:
            raise ValueError(f"method={method!r} scans Jacobians of dense layers, but states are images")


def network_of(model, layers=slice(None)):
    """Return some of a model's residual layers as a network, or all of them."""
    weights, biases = (model.params[f"residual.{part}"][layers] for part in ("weight", "bias"))
    return ResidualNetwork(weights, biases, model.h, model.activation)


def solver_options(model):
    """Return the options of `solve` for a model: those of its solver, or of serial propagation."""
    return {"levels": 1} if model.solver is None else model.solver


def run_operators_back(model, operators, x, outputs, grad, grads):
    """Go backward through operators, adding to `grads`; return the gradient at x, unless x is the model's input."""
    with np.errstate(all="ignore"):
        grad = run_back(operators, model.params, x, outputs, grad, grads, to_input=operators is model.closing)
    for name, found in {**grads, "the residual layers' output": grad}.items():
        if not np.isfinite(found).all():
            raise FloatingPointError(f"the gradient of {name} overflows {model.dtype}")
    return np.ascontiguousarray(grad)


def made_by(model, layers=None):
    """Return what activations of a model are known by: its kind, and for which layers they are, as a rule all."""
    return model.kind, model.h, model.activation, (0, model.depth) if layers is None else (layers.start, layers.stop)


def check_activations(model, activations, layers=None):
    """Raise ValueError for what `forward` of another kind of model returned, or for other layers."""
    where = "" if layers is None else f" with comm, for layers {layers.start} to {layers.stop - 1} here,"
    activations.check(made_by(model, layers), f"{model}{where or ' without comm'}")
