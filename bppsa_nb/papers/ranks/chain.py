"""Time the backward pass along a chain whose links are spread over the ranks that mpiexec starts.

A chain is an RNN's, a GRU's (weights shared by all steps, no Jacobian stored), or a residual network's, whose Jacobians
are stored. The methods: "linear", rank after rank, and "chunked", which reduces every segment to one product, scans the
products over ranks, and replays. They take turns; a first round does not count. Each has a first call whose memory is
looked at: how much a rank has at most, above what it had before. Of recurrent cells, so is the forward pass: "linear",
rank after rank, and "chunked", all ranks at once, who repair what they are handed.

The program also times the scan over ranks alone; on one rank, what a rank does by itself; on several, messages.
"""

import sys
from functools import partial

import numpy as np

from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.distributed import ranks
from bppsa_nb.distributed.segments import DenseSegment
from bppsa_nb.distributed.solver import solve
from bppsa_nb.machine.process import partition
from bppsa_nb.networks.residual import ResidualNetwork
from bppsa_nb.papers.ranks import measure as measured
from bppsa_nb.training.datasets import Bitstream

METHODS, CELLS = ("chunked", "linear"), ("rnn", "gru", "residual")
COUNTS = "steps", "batch", "width", "scan_widths"  # options that are at least 1


def add_options(parser, add):
    """Add the options of this program."""
    add(parser, "cell", CELLS, "rnn", "whose chain it is")
    add(parser, "steps", int, [1000], "links of chains", nargs="+", metavar="T")
    add(parser, "batch", int, 16, "samples")
    add(parser, "width", int, 20, "of a state, H")
    add(parser, "dtype", ("float32", "float64"), "float32", "of everything")
    add(parser, "scan-widths", int, None, "of maps that are scanned (--width)", nargs="+", metavar="H")


def check(arguments, size):
    """Complete the arguments, or raise ValueError or RuntimeError."""
    if "mpi4py.MPI" not in sys.modules:
        raise RuntimeError("ranks need mpi4py: `pip install 'bppsa-nb[mpi]'` installs it, and mpiexec")
    arguments.scan_widths = arguments.scan_widths or [arguments.width]
    if arguments.cell == "residual" and min(arguments.steps) < size:
        raise ValueError(f"--steps of a residual network must be at least the {size} ranks, got {min(arguments.steps)}")


def measure(arguments, comm):
    """Measure on this rank; return lists of rows by name."""
    found = {}
    for steps in arguments.steps:
        for name, rows in _measure(arguments, steps, comm).items():
            found.setdefault(name, []).extend({"steps": steps} | row for row in rows)
    how = arguments.batch, np.dtype(arguments.dtype), arguments.backend, 4 * arguments.repeat
    widths = arguments.scan_widths if comm.size == 1 else ()
    found["operator"] = [{"width": width} | measured.operator(width, *how) for width in widths]
    found["messages"] = measured.messages(comm, 20 * arguments.repeat) if comm.size > 1 else []
    scans = ({"rank": comm.rank, "width": w} | measured.scan(comm, w, *how) for w in arguments.scan_widths)
    return found | {"scans": list(scans)}


def _recurrent(arguments, steps, comm, state):
    """Run a recurrent cell over random bits, from the state that the segment before ends with."""
    dtype, batch = np.dtype(arguments.dtype), arguments.batch
    model = {"rnn": RNN, "gru": GRU}[arguments.cell](1, arguments.width, 10, rng=arguments.seed, dtype=dtype)
    data = Bitstream(steps, batch, rng=arguments.seed, dtype=dtype)
    x, _ = data.batch(np.arange(batch), (comm.rank, comm.size))
    initial = None if state is None else state[None]
    forward = partial(model.forward, x, initial, arguments.backend, method="linear")
    spread = partial(model.forward, x, None, arguments.backend, comm)
    activations, grad = forward(), np.full((batch, 10), 1 / batch, dtype)
    links = model.chain(activations, backend="numpy")
    backward = partial(model.backward, activations, grad, "linear", arguments.backend)
    return links, activations.hidden[0, -1], {"forward": forward, "backward": backward}, spread


def _residual(arguments, steps, comm, state):
    """Run dense residual layers, from the state that the segment before ends with."""
    dtype, width, backend = np.dtype(arguments.dtype), arguments.width, arguments.backend
    layers = range(steps)[partition(steps, comm.size)[comm.rank]]
    draws = [np.random.default_rng((arguments.seed, 1 + n)).standard_normal((width, width)) for n in layers]
    if state is None:
        state = np.random.default_rng((arguments.seed, 0)).standard_normal((arguments.batch, width)).astype(dtype)
    weights = (np.stack(draws) / np.sqrt(width)).astype(dtype)
    net = ResidualNetwork(weights, np.zeros((len(weights), width), dtype), 1 / steps)
    states = net.forward(state, backend)
    jacobians, back = partial(net.jacobians_T, states), partial(net.backward, states, states[-1], backend)
    alone = {"forward": partial(net.forward, state, backend), "jacobians": jacobians, "back": back}
    alone["backward"] = lambda: net.parameter_gradients(states, back(), backend)
    return jacobians(), states[-1], alone, None


def _make(arguments, steps, comm):
    """Make the links of this rank, rank after rank: a forward pass.

    Returned are the links; the state at their end; calls of what a rank does by itself, which are the forward pass, the
    backward pass with the gradients of all parameters and, unless a chain is structured, storing the Jacobians and
    going back without them; and the forward pass of a recurrent cell over ranks, by a method.
    """
    state = ranks.exchange(comm, None, source=comm.rank - 1) if comm.rank else None
    made = (_residual if arguments.cell == "residual" else _recurrent)(arguments, steps, comm, state)
    if comm.rank < comm.size - 1:
        ranks.exchange(comm, made[1], to=comm.rank + 1)
    return made


def _measure(arguments, steps, comm):
    """Measure a chain of so many steps; return lists of rows."""
    (links, last, alone, spread), grad = _make(arguments, steps, comm), None
    if comm.rank == comm.size - 1:
        grad = np.random.default_rng(arguments.seed).standard_normal(last.shape).astype(arguments.dtype)
    segment, same = DenseSegment(links, arguments.batch, arguments.backend), {"rank": comm.rank}
    how = {"backend": arguments.backend, "comm": comm}
    # What is compiled, or allocated once by MPI, is there before memory is looked at.
    for method in METHODS:
        solve(segment.part(0, 2), grad, method=method, **how)
    calls = {method: partial(solve, links, grad, method=method, **how) for method in METHODS}
    memory, gradients, rows = [], [], []
    for method, call in calls.items():
        comm.Barrier()
        solution, most = measured.peak(call)
        gradients.append(solution.gradients)
        memory.append(same | {"links": links.shape[0], "method": method, "bytes": most})
    (chunked, linear), scale = gradients, float(np.abs(gradients[1]).max())
    difference = float(np.abs(chunked - linear).max()) / scale if scale else 0.0
    del gradients, chunked, linear, solution
    for number, method, solution, seconds in measured.turns(calls, arguments.repeat, comm):
        row = same | {"round": number, "method": method, "done_by": solution.method, "seconds": seconds}
        rows.append(row | {name: getattr(solution, name) for name in ("communication", "combined")})
    found = {"rows": rows, "memory": memory, "differences": [same | {"difference": difference}], "forward": []}
    calls = {method: partial(spread, method=method) for method in METHODS} if spread else {}
    for number, method, activations, seconds in measured.turns(calls, arguments.repeat, comm):
        passes = 1 if activations.solved is None else activations.solved[0].passes
        found["forward"].append(same | {"round": number, "method": method, "seconds": seconds, "passes": passes})
    alone |= {"sweep": partial(segment.sweep, grad, None), "product": partial(segment.reduce, None, None)}
    with np.errstate(all="ignore"):  # what one rank does by itself with all links
        found["parts"] = [measured.medians(alone, arguments.repeat)] if comm.size == 1 else []
    return found
