"""Layers spread over processes: ``mpiexec -n 4 python -m bppsa_nb.multigrid --depth 1024``."""

import time
import zlib
from dataclasses import fields
from functools import partial
from types import SimpleNamespace

import numpy as np

from bppsa_nb.distributed import measure, ranks
from bppsa_nb.machine import files
from bppsa_nb.multigrid.cycles import CYCLES, RELAXATIONS, Options
from bppsa_nb.multigrid.grids import check_levels, partition
from bppsa_nb.multigrid.solver import solve, solve_adjoint
from bppsa_nb.networks.residual import ResidualNetwork
from bppsa_nb.networks.residual_steps import ACTIVATIONS

METHODS, TASKS = ("multigrid", "serial"), ("inference", "training")
_ABOUT = """Time inference and training of a residual network by multigrid, and by serial propagation.

Consecutive layers are spread over the ranks that mpiexec starts. Each rank makes the parameters of its own layers;
they, and all results, are the same on any number of ranks. Training is one step: states, loss, gradients at all states,
gradients of all parameters; inference is the states alone. Serial propagation goes from rank to rank: the paper's model
partitioning. The two methods take turns, and the first round does not count."""


def main(argv=None):
    """Run the program on this rank; an error ends all ranks."""
    ranks.run_program(_parser(), _check, _run, argv)


def _parser():
    parser, add = measure.parser("bppsa_nb.multigrid", _ABOUT), measure.add_option
    network = parser.add_argument_group("the network")
    add(network, "depth", int, 256, "residual layers")
    sizes = network.add_mutually_exclusive_group()
    add(sizes, "width", int, None, "of dense layers (32)")
    add(sizes, "channels", int, None, "of convolutions, instead of dense layers")
    add(network, "kernel", int, None, "size of the convolutions' kernels, odd (3)")
    add(network, "image", int, None, "height and width of their images (28)")
    add(network, "batch", int, 1, "samples")
    add(network, "time", float, 1.0, "T = N h")
    add(network, "activation", ACTIVATIONS, "tanh", "of every layer")
    add(network, "weights", ("smooth", "independent"), "smooth", "over layers, or drawn for every layer")
    add(network, "dtype", ("float32", "float64"), "float64", "of everything")
    cycles = parser.add_argument_group("multigrid")
    add(cycles, "coarsening", int, 4, "layers in a block")
    add(cycles, "levels", int, None, "as many as leave at most c steps on the coarsest, if not given")
    until = cycles.add_mutually_exclusive_group()
    add(until, "tol", float, None, "cycle until the residual's norm is at most this (1e-9; 1e-4 in float32)")
    add(until, "error", float, None, "cycle until the estimated relative error is at most this")
    add(until, "cycles", int, None, "as many, whatever the residual; the paper trains with 2")
    add(cycles, "relaxation", RELAXATIONS, "FCF", "of every level but the coarsest")
    add(cycles, "cycle", CYCLES, "V", "the kind of cycle")
    for name in "skip-downcycle", "nested-iteration":
        cycles.add_argument(f"--{name}", action="store_true", help="how to start; see bppsa_nb.multigrid.solve")
    return parser


def _check(arguments, size):
    """Complete the arguments, or raise ValueError or RuntimeError."""
    if arguments.channels is None and (arguments.kernel or arguments.image):
        raise ValueError("--kernel and --image are of convolutions: give their --channels too")
    measure.check(arguments, "width", "channels", "kernel", "image", "batch")
    if arguments.tol is None:
        arguments.tol = 1e-9 if arguments.dtype == "float64" else 1e-4
    arguments.options = {field.name: getattr(arguments, field.name) for field in fields(Options)}
    Options(**arguments.options)
    arguments.parts = partition(arguments.depth, size, arguments.coarsening, arguments.levels)
    _network(arguments, slice(0, 1))


def _network(arguments, part):
    """Make the layers of one rank, and what is the same on all: the first state, and the output to learn."""
    channels, image = arguments.channels, arguments.image or 28
    kernel = () if channels is None else (arguments.kernel or 3,) * 2
    width = channels or arguments.width or 32
    shape, scale = (width, width, *kernel), (width * max(1, np.prod(kernel))) ** -0.5
    draws = np.random.default_rng((arguments.seed, 0))
    u0, target = draws.standard_normal((2, arguments.batch, width, *([image] * len(kernel))))

    def drawn(rng):
        return scale * rng.standard_normal(shape), 0.1 * rng.standard_normal(width)

    waves = [drawn(draws) for _ in range(3)]
    weights, biases = np.empty((part.stop - part.start, *shape)), np.empty((part.stop - part.start, width))
    for n in range(part.start, part.stop):
        if arguments.weights == "independent":
            layer = drawn(np.random.default_rng((arguments.seed, 1 + n)))
        else:
            angle = 2 * np.pi * n / arguments.depth
            mix = 1, np.sin(angle), np.cos(angle)
            layer = [sum(m * wave[i] for m, wave in zip(mix, waves, strict=True)) for i in range(2)]
        weights[n - part.start], biases[n - part.start] = layer
    dtype = np.dtype(arguments.dtype)
    net = ResidualNetwork(
        weights.astype(dtype), biases.astype(dtype), arguments.time / arguments.depth, arguments.activation
    )
    return net, u0.astype(dtype), target.astype(dtype)


def _train(net, u0, target, how, backend, comm):
    """Do one step of training; return what it found, and the seconds of inference and training [shape=(2, 2)].

    A row has all seconds, then those of communication.
    """
    start = time.perf_counter()
    forward = solve(net, u0, **how, backend=backend, comm=comm)
    inference = time.perf_counter() - start
    # The loss is half the squared distance to the target; the last rank knows its gradient.
    grad_output, sent = forward.states[-1] - target, time.perf_counter()
    if comm is not None:
        comm.Bcast(grad_output, comm.size - 1)
    sent = time.perf_counter() - sent
    adjoint = solve_adjoint(net, forward.states, grad_output, **how, backend=backend, comm=comm)
    gradients = net.parameter_gradients(forward.states, adjoint.states, backend)
    training = time.perf_counter() - start
    communication = forward.communication, forward.communication + sent + adjoint.communication
    found = SimpleNamespace(forward=forward, adjoint=adjoint, gradients=gradients)
    return found, np.stack([(inference, training), communication], 1)


def _run(arguments, comm):
    rank = 0 if comm is None else comm.rank
    net, u0, target = _network(arguments, arguments.parts[rank])
    if rank == 0:
        layers = ", ".join(str(part.stop - part.start) for part in arguments.parts)
        print(f"{arguments.depth} layers {net.weights.shape[1:]}, states {u0.shape}, {net.dtype}, {arguments.backend}")
        print(f"layers on each rank: {layers}", flush=True)
        levels = check_levels(arguments.depth, arguments.coarsening, arguments.levels)[1]
        print(f"levels: {levels}" + (", so multigrid is serial propagation" if levels == 1 else ""), flush=True)
    hows = {"multigrid": arguments.options, "serial": {"levels": 1}}
    calls = {name: partial(_train, net, u0, target, how, arguments.backend, comm) for name, how in hows.items()}
    seconds, found = [], {}
    for _, method, (solutions, took), _ in measure.turns(calls, arguments.repeat, comm):
        found[method] = solutions
        seconds.append(took)
    seconds = np.reshape(seconds[len(METHODS) :], (arguments.repeat, len(METHODS), len(TASKS), 2))
    here = seconds, _differences(found), _digest(found["multigrid"], arguments.parts[rank].start)
    every, differences, digests = zip(*([here] if comm is None else comm.allgather(here)), strict=True)
    if rank == 0:
        every, digest = np.stack(every), sum(digests) % 2**32
        residuals = {"states": found["multigrid"].forward, "gradients": found["multigrid"].adjoint}
        residuals = {name: solution.residuals.tolist() for name, solution in residuals.items()}
        _report(residuals, np.max(differences, axis=0), digest, every)
        if arguments.output:
            _write(arguments, residuals, digest, every)


def _differences(found):
    """Compare multigrid's states and gradients of parameters with the serial ones: the largest differences."""
    pairs = [(found[method].forward.states, *found[method].gradients) for method in METHODS]
    states, *gradients = (np.abs(a - b).max() for a, b in zip(*pairs, strict=True))
    return float(states), float(max(gradients))


def _digest(found, start):
    """Return a sum over layers, so that any number of ranks has the same one if all bits are."""
    arrays = found.forward.states[1:], found.adjoint.states[:-1], *found.gradients
    return sum(zlib.crc32(np.ascontiguousarray(a), start + n) for each in arrays for n, a in enumerate(each))


def _report(residuals, differences, digest, seconds):
    for name, history in residuals.items():
        print(f"residuals of the {name}: {' '.join(f'{norm:.2e}' for norm in history)}")
    print("multigrid less serial propagation: {:.1e} in states, {:.1e} in gradients of parameters".format(*differences))
    print(f"results {digest:08x}, the same on any number of ranks")
    print("\nmedian milliseconds  " + "".join(f"{method + ', ' + task:>24}" for method in METHODS for task in TASKS))
    print("rank                 " + "  compute communication".rjust(24) * 4)
    for rank, median in enumerate(np.median(seconds, axis=1).reshape(len(seconds), -1, 2)):
        cells = (
            f"{1e3 * (total - waited):.2f}".rjust(10) + f"{1e3 * waited:.2f}".rjust(14) for total, waited in median
        )
        print(f"{rank:<21}" + "".join(cells))


def _write(arguments, residuals, digest, seconds):
    places = np.ndindex(seconds.shape[:4])
    rows = [
        {"rank": rank, "round": i, "method": METHODS[m], "task": TASKS[t], "seconds": total, "communication": waited}
        for (rank, i, m, t), (total, waited) in zip(places, seconds.reshape(-1, 2).tolist(), strict=True)
    ]
    chosen = {name: value for name, value in vars(arguments).items() if name not in ("parts", "options", "output")}
    layers = [part.stop - part.start for part in arguments.parts]
    found = {"residuals": residuals, "results": f"{digest:08x}", "rows": rows}
    files.write_json(arguments.output, {"arguments": chosen, "layers": layers} | found)


if __name__ == "__main__":
    main()
