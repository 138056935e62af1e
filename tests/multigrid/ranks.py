"""What `test_solver.py` has every rank do: mpiexec -n RANKS python -m mpi4py ranks.py FILE."""

import itertools
import sys

import numpy as np
from mpi4py import MPI
from refusing import message_on_its_way, rows, unlike, write
from texts import beside

from bppsa_nb import multigrid

COMM = MPI.COMM_WORLD
DEPTH = 37


def network(kernel=0, activation="tanh", dtype=np.float64):
    rng = np.random.default_rng(0)
    shape = (2, 2, kernel, kernel) if kernel else (5, 5)
    weights = rng.standard_normal((DEPTH, *shape)).astype(dtype)
    return weights, rng.standard_normal((DEPTH, shape[0])).astype(dtype), 1 / DEPTH, activation


def start(weights, seed):
    image = (4, 3) if weights.ndim == 5 else ()
    return np.random.default_rng(seed).standard_normal((2, weights.shape[1], *image)).astype(weights.dtype)


def cases():
    """Yield arguments of `network`, the options of the solvers, and whether to start from a guess."""
    yield {}, {"levels": 1, "coarsening": 3}, False
    for relaxation, cycle, levels in itertools.product(("F", "FC", "FCF"), "VF", (2, 3)):
        yield {}, {"relaxation": relaxation, "cycle": cycle, "levels": levels, "coarsening": 3, "cycles": 2}, False
    for begin in "nested_iteration", "skip_downcycle":
        yield {"activation": "relu"}, {begin: True, "coarsening": 2, "levels": 3, "tol": 1e-12}, False
        yield {}, {begin: True, "coarsening": 3, "levels": 3, "error": 1e-3}, True
    yield {}, {"coarsening": 3, "levels": 2, "error": 1e-6}, False
    yield {}, {"coarsening": 2, "levels": 4, "cycles": 3}, True
    yield {"kernel": 3}, {"coarsening": 2, "levels": 3, "cycle": "F", "cycles": 2}, True
    for backend in "numpy", "cpu":
        for kernel in 0, 3:
            yield {"kernel": kernel, "dtype": np.float32}, {"coarsening": 4, "levels": 2, "backend": backend}, False


def found_here(weights, biases, h, activation, u0, grad, how, guess, part, comm):
    """Solve for the layers of one part; return everything found."""
    net = multigrid.ResidualNetwork(weights[part], biases[part], h, activation)
    guess = guess if guess is None else guess[part.start : part.stop + 1]
    forward = multigrid.solve(net, u0, **how, initial=guess, comm=comm)
    adjoint = multigrid.solve_adjoint(net, forward.states, grad, **how, initial=guess, comm=comm)
    gradients = net.parameter_gradients(forward.states, adjoint.states, how["backend"])
    return forward.residuals, adjoint.residuals, forward.states, adjoint.states, *gradients


def compare(arguments, how, guessed):
    """Return what differs in a single bit from the solution of all layers at once."""
    how = {"backend": "numpy"} | how
    if arguments.get("dtype") is np.float32:
        how = {"tol": 1e-4} | how
    network_here = network(**arguments)
    weights = network_here[0]
    u0, grad = start(weights, 1), start(weights, 2)
    guess = np.random.default_rng(3).standard_normal((DEPTH + 1, *u0.shape)) if guessed else None
    part = multigrid.partition(DEPTH, COMM.size, how["coarsening"], how["levels"])[COMM.rank]
    here = found_here(*network_here, u0, grad, how, guess, part, COMM)
    whole = found_here(*network_here, u0, grad, how, guess, slice(0, DEPTH), None)
    points = slice(part.start, part.stop + 1)
    names = "residuals", "adjoint residuals", "states", "gradients", "weights", "biases"
    places = slice(None), slice(None), points, points, part, part
    pairs = zip(names, here, whole, places, strict=True)
    return [name for name, a, b, place in pairs if a.shape != b[place].shape or a.tobytes() != b[place].tobytes()]


def refusals():
    """Yield calls that must fail on all ranks; see `refusing.unlike`."""
    odd = COMM.rank == COMM.size - 1
    weights, biases, h, activation = network()
    u0, c = start(weights, 1), {"coarsening": 3, "levels": 2, "backend": "numpy"}
    part = multigrid.partition(DEPTH, COMM.size, 3, 2)[COMM.rank]
    net = multigrid.ResidualNetwork(weights[part], biases[part], h, activation)
    states = multigrid.solve(net, u0, **c, comm=COMM).states
    other = multigrid.ResidualNetwork(weights[part], biases[part], 2 * h if odd else h, activation)
    first = multigrid.ResidualNetwork(weights[:1], biases[:1], h, activation)
    large = multigrid.ResidualNetwork(weights[part] * (1e300 if odd else 1), biases[part], h, "relu")
    nan = np.where(odd, np.nan, u0)

    def solving(net=net, u0=u0, **options):
        return lambda: multigrid.solve(net, u0, **c | {"comm": COMM} | options)

    def adjoint(states=states, grad=u0, **options):
        return lambda: multigrid.solve_adjoint(net, states, grad, **c | {"comm": COMM} | options)

    return rows(COMM, beside(__file__)["refused"], globals() | locals())


def main(path):
    with message_on_its_way(COMM) as differing:
        differing += [[str(case), differences] for case in cases() if (differences := compare(*case))]
    differing += unlike(COMM, refusals()) if COMM.size > 1 else []
    write(COMM, differing, path)


if __name__ == "__main__":
    main(sys.argv[1])
