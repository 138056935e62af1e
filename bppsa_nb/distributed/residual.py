"""Residual layers spread over MPI ranks: each has the states of its own only; and multigrid on them.

`Neighbors` is how multigrid reaches the ranks that hold the layers before and after its own (Section III-D).
"""

import numpy as np

from bppsa_nb.distributed import ranks
from bppsa_nb.distributed.training import add_up
from bppsa_nb.multigrid import model as models
from bppsa_nb.multigrid import solver
from bppsa_nb.multigrid.cycles import Alone, Options
from bppsa_nb.multigrid.grids import check_levels, partition
from bppsa_nb.networks.network import run


def layers_of(model, comm):
    """Return which layers each rank holds, as slices; raise ValueError for more ranks than can have some."""
    options = Options(**models.solver_options(model))
    return partition(model.depth, ranks.group(comm).size, options.coarsening, options.levels)


def forward(model, x, backend, comm):
    """Compute the states of this rank's layers; parameters, result and errors are those of `ResidualModel.forward`."""
    group = ranks.group(comm)
    with group.collective_check() as gather:
        model.check_input(x)
        opening = run(model.opening, model.params, x)  # on all ranks: each knows x, and it is quick
        layers = layers_of(model, comm)[group.rank]
        net, given = models.network_of(model, layers), _given(model, x)
        gather(alike=given)
    first = np.ascontiguousarray(opening[-1] if opening else x)
    solved = solver.solve(net, first, **models.solver_options(model), backend=backend, comm=comm)
    states, model.cycles["forward"], closing = solved.states, solved.cycles, ()
    with group.collective_check():
        if group.is_last:
            closing = run(model.closing, model.params, states[-1])
    return models.ResidualActivations(x, opening, states, closing).sign(models.made_by(model, layers))


def backward(model, activations, grad_logits, method, backend, levels, comm):
    """Compute the gradients of all parameters, on all ranks; see `ResidualModel.backward`."""
    group = ranks.group(comm)
    with group.collective_check() as gather:
        model.check_method(method, backend, levels, comm)
        layers = layers_of(model, comm)[group.rank]
        models.check_activations(model, activations, layers)
        group.check_grad_logits(grad_logits, model, len(activations.x), "layer")
        net, given = models.network_of(model, layers), _given(model, activations.x) | {"method": method}
        gather(alike=given)
    states, grads = activations.states, {name: np.zeros_like(param) for name, param in model.params.items()}
    grad = np.zeros_like(states[-1])
    with group.collective_check():
        if group.is_last:
            grad = models.run_operators_back(model, model.closing, states[-1], activations.closing, grad_logits, grads)
    group.timed(group.comm.Bcast, grad, group.size - 1)
    how = {"levels": 1} if method == "ordinary" else models.solver_options(model)
    solved = solver.solve_adjoint(net, states, grad, **how, backend=backend, comm=comm)
    gradients, model.cycles["backward"] = solved.states, solved.cycles
    for name, own in zip(("weight", "bias"), net.parameter_gradients(states, gradients, backend), strict=True):
        grads[f"residual.{name}"][layers] = own
    with group.collective_check():
        if group.rank == 0:
            models.run_operators_back(model, model.opening, activations.x, activations.opening, gradients[0], grads)
    return add_up(group, grads)  # of what is not this rank's, zeros


def check_method(model, method, comm):
    """Raise ValueError for methods that scan Jacobians, of which no rank has all, and for too many ranks."""
    if method not in ("auto", "multigrid", "ordinary"):
        raise ValueError(f"method must be one of 'auto', 'multigrid', 'ordinary' with comm, got {method!r}")
    layers_of(model, comm)


def _given(model, x):
    """Say what all ranks must be given alike; `solve` does the same for what it gets."""
    return {
        "x": f"an array {x.shape} {ranks.checksum(x)}",
        "model.params": f"those {ranks.checksum(model.params.flat)}",
        "model.solver": repr(model.solver),
    }


class Neighbors(Alone):
    """Every rank of a communicator holds a part of the layers, in order; see `bppsa_nb.multigrid.partition`."""

    def __init__(self, comm, backward=False):
        self.backward, self._group, self._counts = backward, ranks.group(comm), None
        self._before, self._after = (self._group.neighbor(step) for step in ((1, -1) if backward else (-1, 1)))
        self.is_first = self._group.rank == (self._group.size - 1 if backward else 0)

    @property
    def seconds(self):
        """Spent in communication so far, waiting for other ranks included."""
        return self._group.seconds

    def __enter__(self):
        self._check = self._group.collective_check()
        self._gather = self._check.__enter__()
        return self

    def __exit__(self, kind, error, traceback):
        return self._check.__exit__(kind, error, traceback)

    def agree(self, net, first, initial, options):
        """As `Alone.agree`; the only place where an error on one rank can abort all of them."""
        given = {
            "the solver": "solve_adjoint" if self.backward else "solve",
            "net": f"layers of shape {net.weights.shape[1:]}, {net.dtype}, h={net.h!r}, {net.activation}",
            "u0 or grad_output": f"of shape {first.shape}, {ranks.checksum(first)}",
            "whether initial is given": str(initial is not None),
        }
        layers = self._gather(len(net), given | {name: repr(value) for name, value in vars(options).items()})
        coarsening, levels = check_levels(sum(layers), options.coarsening, options.levels)
        unit = coarsening ** (levels - 1)
        if any(count % unit for count in layers[:-1]):
            why = f"all but the last, for coarsening={coarsening} and {levels} levels, as of multigrid.partition"
            raise ValueError(f"ranks must hold multiples of {unit} layers, {why}; got {layers}")
        return coarsening, levels

    def norm(self, norms):
        """Return the norm of the whole residual, as `Alone.norm`."""
        if self._counts is None:
            self._counts = self._group.share(len(norms))
        every = np.empty(sum(self._counts))
        self._group.timed(self._group.comm.Allgatherv, np.ascontiguousarray(norms), [every, self._counts])
        return super().norm(every)

    def shift(self, level):
        """Hand the last value on, and take that of the layers before as the first."""
        first, last = np.array(level.first, order="C"), np.ascontiguousarray(level.last)
        self._group.timed(self._group.comm.Sendrecv, last, self._after, recvbuf=first, source=self._before)
        if not self.is_first:
            level.first = first

    def receive(self, level):
        """Wait for the first value."""
        if not self.is_first:
            first = np.array(level.first, order="C")
            self._group.timed(self._group.comm.Recv, first, self._before)
            level.first = first

    def send(self, level):
        """Hand the last value on."""
        self._group.timed(self._group.comm.Send, np.ascontiguousarray(level.last), self._after)
