"""Time inference and training of a residual network by multigrid, and by serial propagation.

Consecutive layers are spread over the ranks that mpiexec starts. Each rank makes the parameters of its own layers;
they, and all results, are the same on any number of ranks. Training is one step: states, loss, gradients at all states,
gradients of all parameters; inference is the states alone. Serial propagation goes from rank to rank: the paper's model
partitioning. The two methods take turns, and the first round does not count.
"""

import time
from dataclasses import fields
from functools import partial

import numpy as np

from bppsa_nb.multigrid.cycles import CYCLES, RELAXATIONS, Options
from bppsa_nb.multigrid.grids import check_levels, partition
from bppsa_nb.multigrid.solver import solve, solve_adjoint
from bppsa_nb.networks.residual import ResidualNetwork
from bppsa_nb.networks.residual_steps import ACTIVATIONS
from bppsa_nb.papers.ranks.measure import turns

COUNTS = "width", "channels", "kernel", "image", "batch"  # options that are at least 1


def add_options(parser, add):
    """Add the options of this program."""
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


def check(arguments, size):
    """Complete the arguments, or raise ValueError."""
    if arguments.channels is None and (arguments.kernel or arguments.image):
        raise ValueError("--kernel and --image are of convolutions: give their --channels too")
    if arguments.tol is None:
        arguments.tol = 1e-9 if arguments.dtype == "float64" else 1e-4
    arguments.parts = partition(arguments.depth, size, arguments.coarsening, arguments.levels)
    arguments.levels = check_levels(arguments.depth, arguments.coarsening, arguments.levels)[1]
    Options(**_options(arguments))
    _network(arguments, slice(0, 1))


def measure(arguments, comm):
    """Measure on this rank; return lists of rows by name."""
    rank = 0 if comm is None else comm.rank
    part = arguments.parts[rank]
    network = _network(arguments, part)
    hows = {"multigrid": _options(arguments), "serial": {"levels": 1}}
    calls = {method: partial(_train, *network, how, arguments.backend, comm) for method, how in hows.items()}
    rows, found = [], {}
    for number, method, (forward, adjoint, gradients, took), _ in turns(calls, arguments.repeat, comm):
        found[method] = forward.states, *gradients
        if method == "multigrid":
            residuals = {"states": forward.residuals, "gradients": adjoint.residuals}
        rows += [{"rank": rank, "round": number, "method": method} | each for each in took]
    states, *gradients = (float(np.abs(a - b).max()) for a, b in zip(*found.values(), strict=True))
    measured = {"layers": [{"rank": rank, "layers": part.stop - part.start}], "residuals": [], "rows": rows}
    for name, norms in residuals.items() if rank == 0 else ():
        every = enumerate(norms.tolist(), 1)
        measured["residuals"] += [{"of": name, "cycle": cycle, "residual": norm} for cycle, norm in every]
    return measured | {"differences": [{"rank": rank, "states": states, "gradients": max(gradients)}]}


def _train(net, u0, target, how, backend, comm):
    """Do one step of training; return both solutions, gradients of parameters, and a row of seconds for each task."""
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
    training, waited = time.perf_counter() - start, forward.communication
    took = [{"task": "inference", "seconds": inference, "communication": waited}]
    took += [{"task": "training", "seconds": training, "communication": waited + sent + adjoint.communication}]
    return forward, adjoint, gradients, took


def _options(arguments):
    return {field.name: getattr(arguments, field.name) for field in fields(Options)}


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

    def layer(n):
        if arguments.weights == "independent":
            return drawn(np.random.default_rng((arguments.seed, 1 + n)))
        angle = 2 * np.pi * n / arguments.depth
        mix = 1, np.sin(angle), np.cos(angle)
        return [sum(m * wave[i] for m, wave in zip(mix, waves, strict=True)) for i in range(2)]

    waves, dtype = [drawn(draws) for _ in range(3)], np.dtype(arguments.dtype)
    layers = zip(*map(layer, range(part.start, part.stop)), strict=True)
    weights, biases = (np.stack(each).astype(dtype) for each in layers)
    net = ResidualNetwork(weights, biases, arguments.time / arguments.depth, arguments.activation)
    return net, u0.astype(dtype), target.astype(dtype)
