"""What `test_backprop.py` has every rank do: mpiexec -n RANKS python -m mpi4py ranks.py TASK [T] FILE."""

import itertools
import os
import signal
import sys
from functools import partial

import numpy as np
from mpi4py import MPI
from random_chains import KINDS, LISTS, TOLERANCE, Chain, orthogonal
from refusing import message_on_its_way, patched, rows, unlike, write
from scipy import sparse
from texts import beside

import bppsa_nb as bp
from bppsa_nb import distributed
from bppsa_nb.distributed import ranks, solver
from bppsa_nb.distributed.segments import DenseSegment, ListSegment
from bppsa_nb.machine import backends
from bppsa_nb.papers.ranks import measure

COMM = MPI.COMM_WORLD
RANK, LAST = COMM.rank, COMM.size - 1


def cuts(style, T, rng):
    """Return the runs of all ranks: of any length, empty at the start or at the end, or all in one place."""
    inner = np.sort(rng.integers(0, T + 1, LAST))
    if style == "first empty":
        inner[: (LAST + 1) // 2] = 0
    elif style == "last empty":
        inner[LAST // 2 :] = T
    elif style == "one has all":
        inner = np.where(np.arange(LAST) < rng.integers(0, LAST + 1), 0, T)
    bounds = [0, *map(int, inner), T]
    return [slice(*pair) for pair in itertools.pairwise(bounds)]


def gap(found, expected):
    """Largest difference of the gradients at a point, relative to the largest of them there; of all points."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape, (a.shape, b.shape)
        worst = max(worst, np.abs(a - b).max() / np.abs(b).max())
    return worst


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def compare(kind, dtype, given, style, rng):
    """Return what is wrong with the gradients of one random chain, in words."""
    T = 0 if style == "no links" else int(rng.integers(1, 25))
    chain, parts = Chain(kind, T, dtype, rng), cuts(style, T, rng)
    chosen = rng.choice(["numpy", "cpu", "auto", "each its own"]) if kind not in LISTS[:2] else "numpy"
    backend = ("numpy", "cpu")[RANK % 2] if chosen == "each its own" else str(chosen)
    run, last = parts[RANK], RANK == LAST
    with_terms = [given == "all" or given == "some" and rank % 2 == 0 for rank in range(COMM.size)]
    for rank, part in enumerate(parts):
        if not with_terms[rank]:
            for point in range(part.start, part.stop + (rank == LAST)):
                chain.local_grads[point][...] = 0
    local = chain.terms(slice(run.start, run.stop + last)) if with_terms[RANK] else None
    points = slice(run.start, run.stop + 1)
    oracle = chain.oracle()[points]
    everything = chain.terms(slice(0, T + 1)) if any(with_terms) else None
    how = {"local_grads": everything, "method": "linear", "backend": backend}
    alone = bp.backprop(chain.links, chain.grad_output, **how)[points]
    wrong, links, end = [], chain.part(run), chain.grad_output if last else None
    for method in "linear", "chunked", "auto":
        how = {"local_grads": local, "method": method, "backend": backend, "comm": COMM}
        found = distributed.solve(links, end, **how)
        if len(found.gradients) != run.stop - run.start + 1 or any(g.dtype != dtype for g in found.gradients):
            wrong.append(f"{method}: {len(found.gradients)} gradients")
        elif (error := gap(found.gradients, oracle)) > TOLERANCE[dtype]:
            wrong.append(f"{method}: {error} from the oracle")
        elif (error := gap(found.gradients, alone)) > TOLERANCE[dtype]:
            wrong.append(f"{method}: {error} from one process")
        if method == "linear" and chosen != "each its own" and not same(found.gradients, alone):
            wrong.append("linear: not the numbers of one process")
        if method == "auto":
            method = found.method if kind not in LISTS else "linear"
        if found.method != method or not found.finite or (found.combined > 0 and method == "linear"):
            wrong.append(f"{method}: {found.method} instead, finite={found.finite}, {found.combined} times ⋄")
        if found.combined > max(2 * LAST.bit_length() - 2, 0):
            wrong.append(f"{method}: {found.combined} times ⋄")
        if not same(bp.backprop(links, end, **how), found.gradients):
            wrong.append(f"{method}: another result the second time")
    return wrong


def random_chains():
    """Compare chains of every kind, dtype, placement of loss terms and of runs; return what is wrong."""
    wrong, styles = [], ["random", "random", "first empty", "last empty", "one has all", "no links"]
    cases = itertools.product(("all", "none", "some"), TOLERANCE, KINDS)
    # Ranks that wait for a core take long: where there are many of them, a third of the cases has to do, each another.
    share = slice({4: 1, 7: 2}.get(COMM.size, 0), None, 3 if COMM.size > 2 else 1)
    for number, (given, dtype, kind) in list(enumerate(cases))[share]:
        rng = np.random.default_rng([number, COMM.size])
        style = rng.choice(styles)
        for what in compare(kind, dtype, given, style, rng):
            wrong.append(f"{kind}, {np.dtype(dtype)}, loss terms {given}, {style}: {what}")
    return wrong


def compile_products():
    """Compile on a single rank what only ranks in the middle need; those at the ends would wait at full speed."""
    for dtype, kind in itertools.product(TOLERANCE, KINDS[:6]):
        chain = Chain(kind, 5, dtype, np.random.default_rng(0))
        links = chain.links[:, None] if kind == "shared" else chain.links
        DenseSegment(links, len(chain.grad_output), "cpu").reduce(None, None)
    for dtype in TOLERANCE:
        chain = Chain("batched", 5, dtype, np.random.default_rng(0))
        ListSegment(chain.links, len(chain.grad_output), np.dtype(dtype), "cpu", False).reduce(None, None)


def terms_at_the_end():
    """Compare where every rank knows of a loss term at its run's end, as layers of models do; return what is wrong."""
    wrong, T = [], 3 * COMM.size
    for kind, method in itertools.product(("dense", "rnn"), ("linear", "chunked")):
        chain, parts = Chain(kind, T, np.float64, np.random.default_rng(COMM.size)), distributed.partition(T, COMM.size)
        run, local = parts[RANK], chain.terms(slice(0, T + 1))
        end = chain.grad_output + local[T] if RANK == LAST else np.full_like(chain.grad_output, RANK + 1)
        links = DenseSegment(chain.part(run), len(end), "numpy")
        found = solver.go_back(ranks.group(COMM), links, end, local[run], method)
        for rank, part in enumerate(parts[:-1]):
            chain.local_grads[part.stop] += rank + 1
        expected = chain.oracle()[run.start : run.stop + 1]
        inside = slice(0 if RANK == 0 else 1, None)  # what is known at this run's start, the rank before adds
        if found.method != method or gap(found.gradients[inside], expected[inside]) > 1e-12:
            wrong.append(f"terms at the end of runs, {kind}, {method}")
    return wrong


def awkward(dtype, kind):
    """Yield chains of two states per step whose products, or gradients, leave the range of their dtype."""
    half = 600 if dtype == np.float64 else 80  # a power of two beyond half of the dtype's range
    whole = 1000 if dtype == np.float64 else 120
    steps = 3 * COMM.size
    tall = np.array([[1, 0], [np.ldexp(1.0, -half), 1]]), np.diag([1, np.ldexp(1.0, -half)])
    wide = np.array([[1, np.ldexp(1.0, -half)], [np.ldexp(1.0, -half), 1]])
    yield "a link", [wide] * steps, [1, 1], "linear" if COMM.size > 2 else None
    # Each rank's product is in range, those of two of them are not.
    mixes = [each for rank in range(COMM.size) for each in (tall[rank % 2], np.eye(2), np.eye(2))]
    yield "a product of two runs", mixes, [1, 1], "linear" if COMM.size > 3 else None
    yield "a gradient", [np.eye(2)] * steps, [1, np.ldexp(1.0, -whole)], "linear" if COMM.size > 2 else None
    yield "overflow", [np.diag([np.ldexp(1.0, half), 0.5])] * steps, [1, 1], "linear"
    yield "too large and small again", [np.eye(2) * np.ldexp(1.0, s * half) for s in (1, -1)] * steps, [0.5, 1], None


def compare_awkward():
    """Compare chains at the end of the range with one process; return what is wrong."""
    wrong = []
    for dtype, backend, kind in itertools.product(TOLERANCE, ("numpy", "cpu"), ("dense", "csr", "batched")):
        if backend == "cpu" and (kind == "csr" or COMM.size > 4):
            continue
        for name, matrices, end, expected in awkward(dtype, kind):
            matrices, end = [each.astype(dtype) for each in matrices], np.array(end, dtype)
            parts = distributed.partition(len(matrices), COMM.size)
            if kind == "csr":
                links = [sparse.csr_array(each) for each in matrices]
            elif kind == "batched":
                index = np.arange(2)
                links = [bp.BatchedCSR(m.reshape(1, 4), [*index, *index], [0, 2, 4], (2, 2)) for m in matrices]
            else:
                links = np.stack(matrices)
            end = end if kind == "csr" else end[None]
            alone = bp.backprop(links, end, method="linear", backend=backend)[parts[RANK].start : parts[RANK].stop + 1]
            given = {"method": "chunked", "backend": backend, "comm": COMM}
            found = distributed.solve(links[parts[RANK]], end if RANK == LAST else None, **given)
            what = f"{name}, {kind}, {np.dtype(dtype)}, {backend}"
            if not same(found.gradients, alone):
                wrong.append(f"{what}: {found.gradients} instead of {alone}")
            if kind == "dense" and expected is not None and found.method != expected:
                wrong.append(f"{what}: {found.method} instead of {expected}")
            if found.finite == (name == "overflow"):
                wrong.append(f"{what}: finite={found.finite}")
    return wrong


def simple(comm, steps=2, value=0.5):
    """Solve the smallest of chains over a communicator; return the gradients here over those expected."""
    end = np.ones((1, 2)) if comm.rank == comm.size - 1 else None
    gradients = bp.backprop(
        np.full((steps, 1, 1, 1), value) * np.eye(2), end, method="chunked", backend="numpy", comm=comm
    )
    above = steps * (comm.size - 1 - comm.rank)
    return (gradients / value ** np.arange(above + steps, above - 1, -1)[:, None, None]).tolist()


def communicators():
    """Solve over communicators of all sorts; return those that gave something else than ones."""
    ones, wrong = np.ones((3, 1, 2)).tolist(), []
    half, twin, ring = COMM.Split(RANK % 2, -RANK), COMM.Dup(), COMM.Create_cart([COMM.size], [True])
    named = [("half", half), ("twin", twin), ("self", MPI.COMM_SELF), ("ring", ring), ("all", COMM), ("again", twin)]
    wrong += [name for name, comm in named if simple(comm) != ones]
    for comm in half, twin, ring:
        comm.Free()
    # More of everything than MPI lets be at a time, on ranks that do not wait for a core.
    several = [MPI.Op.Create(lambda a, b, t: None) for _ in range(4)]
    for _ in range(2000 if COMM.size <= 2 else 20):
        if simple(COMM) != ones:
            wrong.append("many")
    for _ in range(1500 if COMM.size == 1 else 10):
        comm = COMM.Dup()
        if simple(comm) != ones:
            wrong.append("a new one")
        comm.Free()
    for operation in several:
        operation.Free()
    return wrong


def at_the_ends():
    """Solve where neither end of the ranks could multiply, and over states without entries; return what fails."""
    solved = patched(DenseSegment, "_product", partial(simple, COMM), here=RANK in (0, LAST))  # nobody needs these
    wrong = [] if solved == np.ones((3, 1, 2)).tolist() else ["products at the ends"]
    shapes = [(2, 3), (3, 0), (0, 2), (2, 2), (2, 0), (0, 2)]
    links, terms = [np.ones(shape) for shape in shapes], [np.ones(rows) for rows, _ in [*shapes, (2, 0)]]
    run, end = distributed.partition(len(links), COMM.size)[RANK], np.ones(2)
    points = slice(run.start, run.stop + 1)
    for method, local in itertools.product(("linear", "chunked"), (None, terms)):
        alone = bp.backprop(links, end, local_grads=local, method="linear")[points]
        how = {"local_grads": None if local is None else local[run.start : run.stop + (RANK == LAST)], "method": method}
        if not same(bp.backprop(links[run], end if RANK == LAST else None, **how, comm=COMM), alone):
            wrong.append(f"states without entries, {method}")
    return wrong


def with_nan(array):
    array = array.copy()
    array.flat[-1] = np.nan
    return array


def refusals():
    """Yield calls that must fail on all ranks; see `refusing.unlike`."""
    rng, first, last = np.random.default_rng(0), RANK == 0, RANK == LAST
    links, end = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((3, 4)) if last else None
    weights, slopes = rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 2, 3, 4))
    carry, terms = rng.standard_normal((2, 3, 4)), rng.standard_normal((2 + last, 3, 4))
    listed, end_of_list = [rng.standard_normal((4, 4)) for _ in range(2)], rng.standard_normal(4) if last else None

    structured, few = bp.StructuredChain(weights, slopes, carry), [link.astype("f4") for link in listed]
    local, memory = COMM.Split(RANK % 2), MemoryError("no room")
    both = local.Create_intercomm(0, COMM, 1 - RANK % 2, 9)

    def solving(links=links, grad_output=end, local_grads=terms, method="chunked", comm=COMM, **how):
        local_grads = None if isinstance(links, list) and local_grads is terms else local_grads
        how = {"local_grads": local_grads, "method": method, "backend": "numpy", "comm": comm} | how
        return lambda: bp.backprop(links, grad_output, **how)

    table, names = beside(__file__), globals() | locals() | {"in_list": partial(solving, listed, end_of_list)}
    yield from rows(COMM, table["between_ranks"] + table["on_one_of_them"], names)
    both.Free()
    local.Free()
    for method in "linear", "chunked":
        yield from rows(COMM, table["by_method"], names | {"method": method})
    yield from rows(COMM, table["words"] + (table["in_the_middle"] if LAST > 1 else []), names)


def check():
    """Do everything that is fast."""
    backends.cuda_available = lambda: False  # whatever this machine has
    if COMM.size == 1:
        compile_products()
    with message_on_its_way(COMM) as wrong:
        wrong += random_chains() + terms_at_the_end() + compare_awkward() + at_the_ends() + communicators()
        if COMM.size > 1:
            wrong += unlike(COMM, refusals())
        wrong += [] if simple(COMM) == np.ones((3, 1, 2)).tolist() else ["after all refusals"]
    return wrong


def killed():
    """Have a rank disappear while the others wait for it."""
    if RANK == 1:
        DenseSegment.sweep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    simple(COMM)


def memory(T):
    """Measure how far each call's memory rises above what this rank had before, in bytes, by method and kind."""
    (B, H), rng = (16, 20), np.random.default_rng(RANK)
    run = distributed.partition(T, COMM.size)[RANK]
    steps, found = run.stop - run.start, {}
    weights = orthogonal(rng, 1, H, H).astype(np.float32)
    end = rng.standard_normal((B, H), np.float32) if RANK == LAST else None
    slopes = np.ones((1, steps, B, H), np.float32)
    terms = np.ones((steps + (RANK == LAST), B, H), np.float32) / 1024
    how = {"backend": "cpu", "comm": COMM}
    for method in "linear", "chunked":  # what is compiled and loaded once is not of this call
        few = bp.StructuredChain(weights, slopes[:, :3])
        bp.backprop(few, end, local_grads=terms[: 3 + (RANK == LAST)], method=method, **how)
    for method, local in itertools.product(("linear", "chunked"), (None, terms)):
        chain = bp.StructuredChain(weights, slopes)
        result, most = measure.peak(partial(distributed.solve, chain, end, local_grads=local, method=method, **how))
        assert result.method == method and result.finite
        found[method + (", loss terms" if local is not None else "")] = most
        del result
    return found


if __name__ == "__main__":
    task, *sizes, path = sys.argv[1:]
    write(COMM, {"check": check, "killed": killed, "memory": memory}[task](*map(int, sizes)), path)
