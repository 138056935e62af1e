"""A residual network that can be trained: opening layers, residual layers that multigrid solves, closing layers."""

from dataclasses import dataclass, fields

import numpy as np

from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import checks
from bppsa_nb.machine.parameters import Parametrized
from bppsa_nb.machine.ranks import over_ranks
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.multigrid.cycles import Options
from bppsa_nb.multigrid.grids import check_levels
from bppsa_nb.multigrid.solver import solve, solve_adjoint
from bppsa_nb.networks.geometry import sizes
from bppsa_nb.networks.layers import check_operators, check_outputs, initial, param_shapes, run, run_back, shapes_along
from bppsa_nb.networks.network import check_method
from bppsa_nb.networks.residual import ResidualNetwork

_OPTIONS = [field.name for field in fields(Options)]  # what a model's `solver` may say


@with_repr("x", "opening", "states", "closing")
@dataclass(frozen=True, eq=False)
class ResidualActivations:
    """What a forward pass leaves for the backward pass: the input `x`, outputs of operators, and states.

    `opening` and `closing` are tuples of arrays [shape=(B, ...)], one of each operator; `states` [shape=(N + 1, B,
    ...)] those of the residual layers. With `comm`, `closing` is empty on all ranks but the last, and states are
    from the first of this rank's layers to the one after its last.
    """

    x: np.ndarray
    opening: tuple
    states: np.ndarray
    closing: tuple

    @property
    def logits(self):
        """np.ndarray [shape=(B, classes)]: the last output; None where `closing` is empty."""
        return self.closing[-1] if self.closing else None


@with_repr("input_shape", "opening", "depth", "closing", "h", "activation", "solver", "dtype")
class ResidualModel(Parametrized):
    """Opening operators, N residual layers u^{n+1} = u^n + h σ(W^n u^n + b^n), closing operators.

    Parameters
    ----------
    input_shape : tuple of int
        Of one sample: (C, H, W) or (n,).
    opening : list of Operator
        From the input to the first state, which is a vector (q,) or an image (C, H, W); operators are those of
        `bppsa_nb.sparse`, such as ``sparse.Linear("opening", 64, 32)``. Empty if the input is the first state.
    depth : int
        Residual layers, N.
    closing : list of Operator
        From the last state to the logits.
    h : float, optional
        Step size; 1 / depth if not given, so that T = N h = 1.
    kernel_size : int
        k of the residual convolutions, odd; not used where states are vectors.
    activation : {"tanh", "relu"}
        σ.
    solver : dict, optional
        How multigrid solves for the states and for their gradients: arguments of `solve`, from `cycles` to
        `skip_downcycle`, such as ``{"cycles": 2}``, the paper's, or ``{"error": 0.01}``: as many cycles as the network
        needs then. None propagates serially. It may be changed at any time. With neither of the two, a `tol` decides;
        in float32, the default dtype, rounding keeps residuals above the usual 1e-9: give a larger one.
    rng : int or np.random.Generator
        Where the initial parameters come from: uniform up to ``1 / sqrt(fan_in)``, PyTorch's default.
    dtype : {np.float32, np.float64}

    Attributes
    ----------
    params : dict of str to np.ndarray
        ``name.weight`` and ``name.bias`` of each operator, in PyTorch's layout; between those of opening and closing
        ``residual.weight`` [shape=(N, q, q)] or [shape=(N, C, C, k, k)] and ``residual.bias`` [shape=(N, q)] or
        [shape=(N, C)].
    cycles : dict of str to int
        How many cycles the last ``"forward"`` and the last ``"backward"`` took; a serial pass counts as one.

    Raises
    ------
    TypeError, ValueError
        For an unknown dtype, operators that are none, whose shapes do not chain or whose names occur twice, a last
        output that is no vector, an even kernel, unknown or contradicting options.

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

    def __init__(
        self,
        input_shape,
        opening,
        depth,
        closing,
        *,
        h=None,
        kernel_size=3,
        activation="tanh",
        solver=None,
        rng=0,
        dtype=np.float32,
    ):
        self.dtype = checks.float_dtype(dtype)
        self.opening, self.closing = check_operators("opening", opening), check_operators("closing", closing)
        names = ["residual", *(operator.name for operator in (*self.opening, *self.closing))]
        if len(set(names)) < len(names):
            raise ValueError(f"operators must have names of their own, and none be 'residual', got {names[1:]}")
        self.input_shape = sizes("input_shape", input_shape)
        self.state_shape = shapes_along(self.opening, self.input_shape)[-1]
        if len(self.state_shape) not in (1, 3):
            raise ValueError(f"opening must end in a vector or an image (C, H, W), got {self.state_shape}")
        output = shapes_along(self.closing, self.state_shape)[-1]
        if not self.closing or len(output) != 1:
            raise ValueError(f"closing must end in a vector of logits, got an output of shape {output}")
        self.num_classes = output[0]
        depth, width = checks.check_count("depth", depth, 1), self.state_shape[0]
        if checks.check_count("kernel_size", kernel_size, 1) % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        kernel = (kernel_size,) * (len(self.state_shape) - 1)
        self.h, self.activation = 1 / depth if h is None else h, activation
        self._shapes = param_shapes(self.opening)
        self._shapes |= {"residual.weight": (depth, width, width, *kernel), "residual.bias": (depth, width)}
        self._shapes |= param_shapes(self.closing)
        self.params = initial(self._shapes, checks.generator(rng), self.dtype, stacked="residual.")
        network_of(self)  # refuses what does not fit
        self.solver, self.cycles = solver, {}

    @property
    def depth(self):
        """int: N, how many residual layers there are."""
        return len(self.params["residual.weight"])

    @property
    def solver(self):
        """How multigrid solves for states and gradients: a dict of options of `solve`, or None for serially."""
        return None if self._solver is None else dict(self._solver)

    @solver.setter
    def solver(self, solver):
        if solver is not None:
            checks.check_kind("solver", solver, dict, "a dict of options, such as {'cycles': 2}, or None", repr)
            if solver.keys() - set(_OPTIONS):
                raise ValueError(f"solver may have the options {', '.join(_OPTIONS)}, got {list(solver)}")
            options = Options(**solver)
            check_levels(len(self.params["residual.weight"]), options.coarsening, options.levels)
            solver = dict(solver)
        self._solver = solver

    def forward(self, x, backend="auto", comm=None):
        """Compute every operator's output and all states: by multigrid if there is a `solver`.

        Parameters
        ----------
        x : np.ndarray [shape=(B, ...)]
            Samples of the model's input shape, in its dtype.
        backend : {"auto", "numpy", "cpu", "cuda"}
            Where residual layers are computed; opening and closing are NumPy's matrix products on all of them.
        comm : mpi4py.MPI.Intracomm, optional
            Ranks that share out the residual layers; each has the states of the layers that
            ``multigrid.partition(depth, comm.size, coarsening, levels)`` gives it. All of them give the same batch, and
            have the same parameters. Logits are found on the last one. An error on one rank is a ValueError on the
            others, which names it.

        Returns
        -------
        ResidualActivations

        Raises
        ------
        TypeError, ValueError
            For another dtype than the model's, shapes that do not fit, an empty batch, NaN or infinity.
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
        return ResidualActivations(x, opening, solved.states, run(self.closing, self.params, solved.states[-1]))

    def backward(self, activations, grad_logits, method="auto", backend="auto", levels=None, comm=None):
        """Compute the gradients of all parameters.

        Parameters
        ----------
        activations : ResidualActivations
            What `forward` returned, with the parameters unchanged since.
        grad_logits : np.ndarray [shape=(B, classes)]
            Gradient of the loss at the logits.
        method : {"auto", "multigrid", "ordinary", "linear", "blelloch", "truncated", "chunked"}
            How to find the gradients at the states. ``"multigrid"`` solves for them as the `solver` says;
            ``"ordinary"`` goes from layer to layer; ``"auto"`` takes the former if there is a solver. The others scan
            the transposed Jacobians of dense layers, as `bppsa_nb.backprop` does.
        backend : {"auto", "numpy", "cpu", "cuda"}
            As in `forward`.
        levels : int, optional
            For ``"truncated"``; those of multigrid are an option of the `solver`.
        comm : mpi4py.MPI.Intracomm, optional
            As in `forward`. `grad_logits` is that of the last rank, and None on all others; gradients of all parameters
            are returned on all ranks. Scans are not available: they would need all Jacobians in one place.

        Returns
        -------
        dict of str to np.ndarray
            Gradients under the names and in the shapes of `params`.

        Raises
        ------
        TypeError, ValueError, FloatingPointError, RuntimeError
            As from `forward`; for activations of another kind, and an unknown method or backend.
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
        return {name: grads[name] for name in self.params}

    def check_input(self, x):
        """Raise TypeError or ValueError for what cannot be propagated, parameters included."""
        checks.check_samples(x, self.dtype, ("B", *self.input_shape))
        self.params.seal()
        checks.check_finite(x=x, **checks.named_params(self.params))

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


def check_activations(model, activations, layers=None, closed=True):
    """Raise TypeError or ValueError for what `forward` did not return, for some layers, or for all of them."""
    if not isinstance(activations, ResidualActivations):
        raise TypeError(f"activations must come from ResidualModel.forward, got {type(activations).__name__}")
    checks.check_array("activations.x", activations.x, model.dtype, ("B", *model.input_shape))
    depth, shape = model.depth if layers is None else layers.stop - layers.start, activations.x.shape
    state = shape[0], *model.state_shape
    checks.check_array("activations.states", activations.states, model.dtype, (depth + 1, *state))
    check_outputs("activations.opening", activations.opening, model.opening, model.dtype, shape)
    check_outputs("activations.closing", activations.closing, model.closing if closed else (), model.dtype, state)
