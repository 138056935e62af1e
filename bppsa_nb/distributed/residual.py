"""Residual layers spread over MPI ranks, and training on them: each rank has the states of its own layers only."""

import numpy as np

from bppsa_nb.distributed import arguments, ranks
from bppsa_nb.distributed.training import ReplicaStrategy, add_up
from bppsa_nb.multigrid import model as models
from bppsa_nb.multigrid import solver
from bppsa_nb.multigrid.cycles import Options
from bppsa_nb.multigrid.grids import partition
from bppsa_nb.networks.network import run
from bppsa_nb.training.loss import check_labels, check_order
from bppsa_nb.training.step import whole_samples


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
        if group.rank == group.size - 1:
            closing = run(model.closing, model.params, states[-1])
    return models.ResidualActivations(x, opening, states, closing).sign(models.made_by(model, layers))


def backward(model, activations, grad_logits, method, backend, levels, comm):
    """Compute the gradients of all parameters, on all ranks; see `ResidualModel.backward`."""
    group = ranks.group(comm)
    first, last = group.rank == 0, group.rank == group.size - 1
    with group.collective_check() as gather:
        model.check_method(method, backend, levels, comm)
        layers = layers_of(model, comm)[group.rank]
        models.check_activations(model, activations, layers)
        arguments.check_grad_logits(group, grad_logits, model, len(activations.x), "layer")
        net, given = models.network_of(model, layers), _given(model, activations.x) | {"method": method}
        gather(alike=given)
    states, grads = activations.states, {name: np.zeros_like(param) for name, param in model.params.items()}
    grad = np.zeros_like(states[-1])
    with group.collective_check():
        if last:
            grad = models.run_operators_back(model, model.closing, states[-1], activations.closing, grad_logits, grads)
    group.timed(group.comm.Bcast, grad, group.size - 1)
    how = {"levels": 1} if method == "ordinary" else models.solver_options(model)
    solved = solver.solve_adjoint(net, states, grad, **how, backend=backend, comm=comm)
    gradients, model.cycles["backward"] = solved.states, solved.cycles
    for name, own in zip(("weight", "bias"), net.parameter_gradients(states, gradients, backend), strict=True):
        grads[f"residual.{name}"][layers] = own
    with group.collective_check():
        if first:
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


class LayerStrategy(ReplicaStrategy):
    """Steps of a trainer whose ranks share out residual layers: of one replica, all of whose ranks have whole batches.

    All ranks have all parameters, whose gradients they add up, and the same batch. TypeError or ValueError if `comm` is
    no communicator, or ranks are to share steps.
    """

    def __init__(self, comm, sequence_ranks):
        super().__init__(comm, None)
        if sequence_ranks is not None:
            raise ValueError(f"sequence_ranks is for an RNN or a GRU, which have steps, got {sequence_ranks!r}")
        self.places = 1  # that steps are cut into

    def _forward(self, trainer, x):
        return trainer.model.forward(x, trainer.backend, self.comm)

    def _batch(self, model, make):
        with self.group.collective_check() as gather:
            x, y = whole_samples(*make())
            check_order(x, y)
            y = check_labels(y, len(x), model.num_classes)
            gather(alike={"y": f"labels {ranks.checksum(y.astype(np.int64))}"})
        return x, y, len(y)
