"""A chain spread over processes: ``mpiexec -n 4 python -m bppsa_nb.distributed --steps 30000``."""

import sys
from functools import partial
from typing import NamedTuple

import numpy as np

import bppsa_nb as bp
from bppsa_nb import cells
from bppsa_nb.distributed import measure, ranks
from bppsa_nb.distributed.runs import Run
from bppsa_nb.distributed.solver import solve
from bppsa_nb.machine import files
from bppsa_nb.machine.ranks import partition
from bppsa_nb.networks.residual import ResidualNetwork

METHODS, CELLS = ("chunked", "linear"), ("rnn", "gru", "residual")
_ABOUT = """Time the backward pass along a chain whose links are spread over the ranks that mpiexec starts.

A chain is an RNN's, a GRU's (weights shared by all steps, no Jacobian stored), or a residual network's, whose Jacobians
are stored. The methods: "linear", rank after rank, and "chunked", which reduces every run to one product, has MPI scan
the products, and replays. They take turns; a first round does not count. Each has a first call whose memory is looked
at: how much a rank has at most, above what it had before. Of recurrent cells, so is the forward pass: "linear", rank
after rank, and "chunked", all ranks at once, who repair what they are handed.

The program also times MPI's Exscan with ⋄; on one rank, what a rank does by itself; on several, messages."""


def main(argv=None):
    """Run the program on this rank; an error ends all ranks."""
    ranks.run_program(_parser(), _check, _run, argv)


def _parser():
    parser = measure.parser("bppsa_nb.distributed", _ABOUT)
    add = partial(measure.add_option, parser)
    add("cell", CELLS, "rnn", "whose chain it is")
    parser.add_argument("--steps", type=int, nargs="+", default=[1000], metavar="T", help="links of chains (1000)")
    add("batch", int, 16, "samples")
    add("width", int, 20, "of a state, H")
    add("dtype", ("float32", "float64"), "float32", "of everything")
    parser.add_argument("--scan-widths", type=int, nargs="+", metavar="H", help="of maps that are scanned (--width)")
    return parser


def _check(arguments, size):
    """Complete the arguments, or raise ValueError or RuntimeError."""
    if "mpi4py.MPI" not in sys.modules:
        raise RuntimeError("ranks need mpi4py: `pip install 'bppsa-nb[mpi]'` installs it, and mpiexec")
    arguments.scan_widths = arguments.scan_widths or [arguments.width]
    measure.check(arguments, "steps", "batch", "width", "scan_widths")
    if arguments.cell == "residual" and min(arguments.steps) < size:
        raise ValueError(f"--steps of a residual network must be at least the {size} ranks, got {min(arguments.steps)}")


class _Run(NamedTuple):
    """A run of links, the state at its end, and calls of what a rank does by itself to get there and back.

    The calls are the forward pass, and the backward pass with the gradients of all parameters; unless a chain is
    structured, also storing the Jacobians, and going back without them. `spread` is the forward pass of a recurrent
    cell over ranks, by a method.
    """

    links: object
    last: np.ndarray
    alone: dict
    spread: object = None


def _recurrent(arguments, steps, comm, state):
    """Run a recurrent cell over random bits, from the state that the run before ends with."""
    rank, ranks = comm.rank, comm.size
    dtype, batch = np.dtype(arguments.dtype), arguments.batch
    made = {"rnn": bp.RNN, "gru": bp.GRU}[arguments.cell]
    model = made(1, arguments.width, 10, rng=arguments.seed, dtype=dtype)
    x, _ = bp.Bitstream(steps, batch, rng=arguments.seed, dtype=dtype).batch(np.arange(batch), (rank, ranks))
    initial = None if state is None else state[None]
    forward = partial(model.forward, x, initial, arguments.backend, method="linear")
    spread = partial(model.forward, x, None, arguments.backend, comm)
    activations, grad = forward(), np.full((batch, 10), 1 / batch, dtype)
    saved = [activations.hidden[0]] if activations.gates is None else [activations.hidden[0], activations.gates[0]]
    links = getattr(cells, arguments.cell).chain(model.params["weight_hh_l0"], *saved)
    backward = partial(model.backward, activations, grad, "linear", arguments.backend)
    return _Run(links, activations.hidden[0, -1], {"forward": forward, "backward": backward}, spread)


def _residual(arguments, steps, comm, state):
    """Run dense residual layers, from the state that the run before ends with."""
    rank, ranks = comm.rank, comm.size
    dtype, width, backend = np.dtype(arguments.dtype), arguments.width, arguments.backend
    layers = range(steps)[partition(steps, ranks)[rank]]
    draws = [np.random.default_rng((arguments.seed, 1 + n)).standard_normal((width, width)) for n in layers]
    if state is None:
        state = np.random.default_rng((arguments.seed, 0)).standard_normal((arguments.batch, width)).astype(dtype)
    weights = (np.stack(draws) / np.sqrt(width)).astype(dtype)
    net = ResidualNetwork(weights, np.zeros((len(weights), width), dtype), 1 / steps)
    states = net.forward(state, backend)
    jacobians, back = partial(net.jacobians_T, states), partial(net.backward, states, states[-1], backend)
    alone = {"forward": partial(net.forward, state, backend), "jacobians": jacobians, "back": back}
    alone["backward"] = lambda: net.parameter_gradients(states, back(), backend)
    return _Run(jacobians(), states[-1], alone)


def _make(arguments, steps, comm):
    """Make the links of this rank, rank after rank: a forward pass."""
    state = ranks.exchange(comm, None, source=comm.rank - 1) if comm.rank else None
    make = _residual if arguments.cell == "residual" else _recurrent
    made = make(arguments, steps, comm, state)
    if comm.rank < comm.size - 1:
        ranks.exchange(comm, made.last, to=comm.rank + 1)
    return made


def _run(arguments, comm):
    measured = {"rows": [], "memory": [], "differences": [], "forward": []}
    if comm.size == 1:
        measured["parts"] = []
    if comm.rank == 0:
        kind = f"{arguments.cell}, B = {arguments.batch}, H = {arguments.width}, {arguments.dtype}, {arguments.backend}"
        print(f"{kind}, {comm.size} ranks", flush=True)
    for steps in arguments.steps:
        found = _measure(arguments, steps, comm)
        if comm.rank == 0:
            _report(found)
        for name, rows in found.items():
            measured[name] += [{"steps": steps} | row for row in rows]
    how = arguments.batch, np.dtype(arguments.dtype), arguments.backend, 4 * arguments.repeat
    if comm.size == 1:
        measured["diamonds"] = [{"width": width} | measure.diamonds(width, *how) for width in arguments.scan_widths]
    else:
        measured["messages"] = measure.messages(comm, 20 * arguments.repeat)
    scans = [{"rank": comm.rank, "width": w} | measure.exscan(comm, w, *how) for w in arguments.scan_widths]
    measured["exscans"] = sum(comm.allgather(scans), [])
    if comm.rank == 0:
        _report_exchange(measured)
        if arguments.output:
            chosen = {name: value for name, value in vars(arguments).items() if name != "output"}
            files.write_json(arguments.output, {"arguments": chosen | {"ranks": comm.size}} | measured)


def _measure(arguments, steps, comm):
    """Measure a chain of so many steps; return lists of rows, the same on all ranks."""
    made, grad = _make(arguments, steps, comm), None
    if comm.rank == comm.size - 1:
        grad = np.random.default_rng(arguments.seed).standard_normal(made.last.shape).astype(arguments.dtype)
    how = {"backend": arguments.backend, "comm": comm}
    # What is compiled, or allocated once by MPI, is there before memory is looked at.
    for method in METHODS:
        solve(_few(made.links), grad, method=method, **how)
    calls = {method: partial(solve, made.links, grad, method=method, **how) for method in METHODS}
    memory, gradients, rows = [], {}, []
    for method, call in calls.items():
        comm.Barrier()
        solution, most = measure.peak(call)
        gradients[method] = solution.gradients
        memory.append({"rank": comm.rank, "links": made.links.shape[0], "method": method, "bytes": most})
    difference = {"rank": comm.rank, "difference": _difference(gradients)}
    del gradients, solution
    for number, method, solution, seconds in measure.turns(calls, arguments.repeat, comm):
        row = {"rank": comm.rank, "round": number, "method": method, "done_by": solution.method}
        row |= {"seconds": seconds, "communication": solution.communication, "combined": solution.combined}
        rows += [row] if number >= 0 else []
    found = {"rows": rows, "memory": memory, "differences": [difference], "forward": _forward(made, arguments, comm)}
    if comm.size == 1:
        found["parts"] = [_parts(made, grad, arguments)]
    every = comm.allgather(found)
    return {name: sum((rank[name] for rank in every), []) for name in found}


def _forward(made, arguments, comm):
    """Time a recurrent cell's forward pass over ranks; return a row per method and round."""
    if made.spread is None:
        return []
    calls, rows = {method: partial(made.spread, method=method) for method in METHODS}, []
    for number, method, activations, seconds in measure.turns(calls, arguments.repeat, comm):
        passes = 1 if activations.solved is None else activations.solved[0].passes
        row = {"rank": comm.rank, "round": number, "method": method, "seconds": seconds, "passes": passes}
        rows += [row] if number >= 0 else []
    return rows


def _few(links):
    """Return the first links of a run."""
    if isinstance(links, np.ndarray):
        return links[:2]
    carry = None if links.carry is None else links.carry[:2]
    return bp.StructuredChain(links.weights, np.ascontiguousarray(links.slopes[:, :2]), carry)


def _difference(found):
    """Return how far the methods' gradients are apart, over the largest."""
    chunked, linear = (found[method] for method in METHODS)
    scale = np.abs(linear).max()
    return float(np.abs(chunked - linear).max() / scale) if scale else 0.0


def _parts(made, grad, arguments):
    """Time what one rank does by itself with all links: median seconds."""
    run = Run(made.links, arguments.batch, arguments.backend)
    calls = made.alone | {"sweep": partial(run.sweep, grad, None), "product": partial(run.map, None, None)}
    with np.errstate(all="ignore"):
        return measure.medians(calls, arguments.repeat)


def _report(found):
    links = [row["links"] for row in found["memory"] if row["method"] == METHODS[0]]
    print(f"\nlinks on each rank: {', '.join(map(str, links))}")
    difference = max(row["difference"] for row in found["differences"])
    print(f"largest difference between the methods: {difference:.1e} of a rank's largest gradient")
    print("rank  method    milliseconds  of these, communication     ⋄   MiB above")
    for memory in found["memory"]:
        rank, method = memory["rank"], memory["method"]
        mine = [row for row in found["rows"] if (row["rank"], row["method"]) == (rank, method)]
        seconds, waited = (1e3 * np.median([row[name] for row in mine]) for name in ("seconds", "communication"))
        above = "unknown" if memory["bytes"] is None else f"{memory['bytes'] / 2**20:.1f}"
        print(f"{rank:<6}{method:<10}{seconds:12.2f}{waited:25.2f}{mine[0]['combined']:6}{above:>12}")
        if mine[0]["done_by"] != method:
            print(f"      products left the range of the dtype: {mine[0]['done_by']} computed the gradients")
    for method in METHODS if found["forward"] else ():
        rows = [row for row in found["forward"] if row["method"] == method]
        slowest = [max(row["seconds"] for row in rows if row["round"] == n) for n in {row["round"] for row in rows}]
        print(f"forward, {method}: {1e3 * np.median(slowest):.2f} milliseconds, {rows[0]['passes']} passes")
    for parts in found.get("parts", []):
        told = (f"{name} {1e3 * seconds:.2f}" for name, seconds in parts.items())
        print(f"milliseconds of all links, by themselves: {', '.join(told)}")


def _report_exchange(measured):
    print()
    for row in measured.get("diamonds", []):
        told = (f"{1e6 * row[name]:.0f}" for name in ("merge", "apply", "keep"))
        of = "two products, a product and a gradient, a product and the identity"
        print(f"⋄ of maps of {row['bytes']:,} bytes, H = {row['width']}; of {of}: {', '.join(told)} µs")
    for row in measured.get("messages", []):
        print(f"a message of {row['bytes']:,} bytes: {1e6 * row['seconds']:.1f} µs")
    for row in measured.get("exscans", []):
        if row["rank"] == 0:
            print(f"Exscan of maps of {row['bytes']:,} bytes, H = {row['width']}: {1e6 * row['seconds']:.0f} µs")


if __name__ == "__main__":
    main()
