"""What `test_backprop.py` has every rank do: mpiexec -n RANKS python -m mpi4py ranks.py TASK FILE [T]."""

import ctypes
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import naive
import numpy as np
from mpi4py import MPI
from scipy import sparse

import bppsa_nb as bp
from bppsa_nb import distributed
from bppsa_nb.distributed import lists, maps, messages, ranks, runs, solver
from bppsa_nb.machine import backends

COMM = MPI.COMM_WORLD
RANK, LAST = COMM.rank, COMM.size - 1
KINDS = ("dense", "shared", "rnn", "gru", "no carry", "carry only", "csr", "mixed", "batched", "batched, shared")
LISTS = KINDS[6:]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


def orthogonal(rng, *shape):
    """Make matrices whose columns, or rows if there are fewer, are orthonormal: a gradient about keeps its size."""
    found = np.linalg.qr(rng.standard_normal((*shape[:-2], max(shape[-2:]), min(shape[-2:]))))[0]
    return found if shape[-2] >= shape[-1] else found.swapaxes(-1, -2)


class Chain:
    """A whole chain, its gradient and loss terms, in numbers that float32 holds exactly.

    `dense` holds the same links as matrices of one size, for the loops of the oracle: states of other sizes end in
    zeros.
    """

    def __init__(self, kind, T, dtype, rng):
        B, H = (int(rng.integers(1, 4)), int(rng.integers(2, 6)))
        self.kind, self.T, self.dtype = kind, T, dtype
        self.sizes = rng.integers(2, 6, T + 1) if kind in LISTS else np.full(T + 1, H)
        self.lead = () if kind in ("csr", "mixed") else (B,)
        self.links = getattr(self, "_" + kind.split(",")[0].replace(" ", "_"))(rng, B, H)
        self.grad_output = self._numbers(rng.standard_normal((*self.lead, self.sizes[T])))
        self.local_grads = [self._numbers(rng.standard_normal((*self.lead, size))) for size in self.sizes]

    def _numbers(self, array):
        return np.ascontiguousarray(array.astype(np.float32).astype(self.dtype))

    def _dense(self, rng, B, H):
        self.dense = self._numbers(orthogonal(rng, self.T, B, H, H))
        return self.dense

    def _shared(self, rng, B, H):
        links = self._numbers(orthogonal(rng, self.T, H, H))
        self.dense = np.broadcast_to(links[:, None], (self.T, B, H, H))
        return links

    def _structured(self, rng, B, H, K, carry):
        share = np.array([1, 0.3, 0.1])[:K, None, None]
        weights = self._numbers(orthogonal(rng, K, H, H) * share)
        slopes = self._numbers(rng.choice([-1.0, 1.0], (K, self.T, B, H)) * rng.uniform(0.9, 1.1, (K, self.T, B, H)))
        diagonal = self._numbers(rng.uniform(0.8, 1.2, (self.T, B, H)) * (0.1 if K else 1)) if carry else None
        self.dense = naive.structured_jacobians_T(weights, slopes, diagonal)
        return bp.StructuredChain(weights, slopes, diagonal)

    def _rnn(self, rng, B, H):
        return self._structured(rng, B, H, 1, False)

    def _gru(self, rng, B, H):
        return self._structured(rng, B, H, 3, True)

    def _no_carry(self, rng, B, H):
        return self._structured(rng, B, H, 3, False)

    def _carry_only(self, rng, B, H):
        return self._structured(rng, B, H, 0, True)

    def _list(self, rng, samples, make):
        self.dense = np.zeros((self.T, max(samples, 1), self.sizes.max(), self.sizes.max()))
        links = []
        for t, (rows, columns) in enumerate(itertools.pairwise(map(int, self.sizes))):
            matrices = self._numbers(orthogonal(rng, max(samples, 1), rows, columns))
            matrices[:, rng.random((rows, columns)) < 0.1] = 0
            self.dense[t, :, :rows, :columns] = matrices
            links.append(make(t, matrices))
        return links

    def _csr(self, rng, B, H):
        return self._list(rng, 0, lambda t, matrices: sparse.csr_array(matrices[0]))

    def _mixed(self, rng, B, H):
        kinds = sparse.csr_array, np.array, sparse.coo_array
        return self._list(rng, 0, lambda t, matrices: kinds[t % 3](matrices[0]))

    def _batched(self, rng, B, H):
        def make(t, matrices):
            pattern = sparse.csr_array(np.ones(matrices.shape[1:]) if t % 2 else abs(matrices).sum(0))
            rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
            values = np.ascontiguousarray(matrices[:, rows, pattern.indices])
            return bp.BatchedCSR(values, pattern.indices, pattern.indptr, pattern.shape)

        links = self._list(rng, 1 if self.kind == "batched, shared" else B, make)
        self.dense = np.broadcast_to(self.dense, (self.T, B, *self.dense.shape[2:]))
        return links

    def part(self, run):
        """Return the links of a run."""
        if isinstance(self.links, bp.StructuredChain):
            carry = self.links.carry
            return bp.StructuredChain(
                self.links.weights, self.links.slopes[:, run], None if carry is None else carry[run]
            )
        return self.links[run]

    def terms(self, points):
        """Return loss terms, stacked unless they are of different sizes."""
        if self.kind in LISTS:
            return self.local_grads[points]
        found = self.local_grads[points]
        return np.stack(found) if found else np.empty((0, *self.grad_output.shape), self.dtype)

    def oracle(self):
        """Go back in loops over Python floats; return the gradients at all points."""
        width = self.dense.shape[2] if self.T else self.sizes[0]
        wide = [
            np.pad(each.reshape(-1, each.shape[-1]), ((0, 0), (0, width - each.shape[-1]))) for each in self.local_grads
        ]
        end = np.pad(self.grad_output.reshape(len(wide[-1]), -1), ((0, 0), (0, width - self.grad_output.shape[-1])))
        dense = self.dense if self.T else np.empty((0, len(end), width, width))
        found = naive.backprop(dense, end, np.stack(wide))
        return [each[:, :size].reshape(*self.lead, size) for each, size in zip(found, self.sizes, strict=True)]


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
    alone = bp.backprop(chain.links, chain.grad_output, local_grads=everything, method="linear", backend=backend)[
        points
    ]
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
        least = max(COMM.size - 2, 0) if found.method == "chunked" else 0  # on all ranks together
        if found.combined > 2 * LAST.bit_length() or COMM.allreduce(found.combined) < least:
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
        runs.Run(links, len(chain.grad_output), "cpu").map(None, None)
    for dtype in TOLERANCE:
        chain = Chain("batched", 5, dtype, np.random.default_rng(0))
        lists.ListRun(chain.links, len(chain.grad_output), np.dtype(dtype), "cpu", False).map(None, None)


def terms_at_the_end():
    """Compare where every rank knows of a loss term at its run's end, as layers of models do; return what is wrong."""
    wrong, T = [], 3 * COMM.size
    for kind, method in itertools.product(("dense", "rnn"), ("linear", "chunked")):
        chain, parts = Chain(kind, T, np.float64, np.random.default_rng(COMM.size)), distributed.partition(T, COMM.size)
        run, local = parts[RANK], chain.terms(slice(0, T + 1))
        end = chain.grad_output + local[T] if RANK == LAST else np.full_like(chain.grad_output, RANK + 1)
        links = runs.Run(chain.part(run), len(end), "numpy")
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
    for name, comm in {
        "half": half,
        "twin": twin,
        "self": MPI.COMM_SELF,
        "ring": ring,
        "all": COMM,
        "again": twin,
    }.items():
        if simple(comm) != ones:
            wrong.append(name)
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
    wrong, product = [], runs.Run._product
    if RANK in (0, LAST):
        runs.Run._product = failing(MemoryError("nobody needs this product"))
    if simple(COMM) != np.ones((3, 1, 2)).tolist():
        wrong.append("products at the ends")
    runs.Run._product = product
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


def patched(owner, name, replacement):
    """Return a call of something while an attribute is another."""

    def through(call):
        before = getattr(owner, name)
        setattr(owner, name, replacement)
        try:
            return call()
        finally:
            setattr(owner, name, before)

    return through


def refusals():
    """Yield a name and a call that must fail on all ranks; the first rank is at fault, or the last where it says so."""
    first, last = RANK == 0, RANK == LAST
    rng = np.random.default_rng(5)
    links = rng.standard_normal((2, 3, 4, 4))
    end, terms = rng.standard_normal((3, 4)) if last else None, rng.standard_normal((2 + last, 3, 4))
    weights, slopes, carry = (rng.standard_normal(shape) for shape in ((1, 4, 4), (1, 2, 3, 4), (2, 3, 4)))
    listed, end_of_list = [sparse.csr_array(link[0]) for link in links], end[0] if last else None
    batched = [bp.BatchedCSR(rng.standard_normal((3, 4)), np.arange(4), np.arange(5), (4, 4)) for _ in range(2)]

    def solving(jacobians_T=links, grad_output=end, method="chunked", backend="numpy", comm=COMM, **options):
        how = {"method": method, "backend": backend, "comm": comm} | options
        return lambda: bp.backprop(jacobians_T, grad_output, **how)

    def structured(weights=weights, slopes=slopes, carry=carry, **options):
        return solving(bp.StructuredChain(weights, slopes, carry), **options)

    yield "sizes", solving(rng.standard_normal((2, 3, 5, 5)) if first else links)
    yield "sizes of a list", solving([sparse.csr_array((4, 7))] if first else listed, end_of_list)
    for method in "linear", "chunked":
        yield f"nan link, {method}", solving(with_nan(links) if first else links, method=method)
        yield f"nan gradient, last, {method}", solving(grad_output=with_nan(end) if last else None, method=method)
        yield f"nan term, {method}", solving(local_grads=with_nan(terms) if first else terms, method=method)
        for name, array in {"weights": weights, "slopes": slopes, "carry": carry}.items():
            yield f"nan {name}, {method}", structured(**{name: with_nan(array) if first else array}, method=method)
        broken = [listed[0], sparse.csr_array(with_nan(links[0, 0]))] if first else listed
        yield f"nan in a list, {method}", solving(broken, end_of_list, method=method)
        other = [bp.BatchedCSR.of(each.pattern, with_nan(each.values)) for each in batched] if first else batched
        yield f"nan in batched, {method}", solving(other, method=method)
        fails = patched(runs.Run, "sweep", failing(MemoryError("no room")) if first else runs.Run.sweep)
        yield f"memory, {method}", lambda fails=fails, method=method: fails(solving(method=method))
    fails = patched(runs.Run, "sweep", failing(MemoryError("no \udcff")) if first else runs.Run.sweep)
    yield "words that are no text", lambda: fails(solving())
    yield "dtype", solving(links.astype(np.float32) if first else links)
    yield "dtype of a list", solving([link.astype(np.float32) for link in listed] if first else listed, end_of_list)
    yield "kind", structured() if first else solving()
    yield "shared", solving(links[:, 0] if first else links)
    yield "list", solving(batched if first else links)
    yield "list of single matrices", solving(listed if first else batched)
    yield "method", solving(method="linear" if first else "chunked")
    yield "batch", solving(links[:, :2] if first else links)
    yield "gradient missing, last", solving(grad_output=None)
    yield "gradient elsewhere", solving(grad_output=np.ones((3, 4)))
    yield "gradient's size, last", solving(grad_output=end[:, :3] if last else None)
    yield "one term more", solving(local_grads=rng.standard_normal((3, 3, 4)))
    yield "one term less, last", solving(local_grads=terms[:2])
    yield "one term more in a list", solving(listed, end_of_list, local_grads=[np.ones(4)] * 3)
    yield "terms of another dtype", solving(local_grads=terms.astype(np.float32) if first else terms)
    yield "no terms", solving(local_grads="none" if first else terms)
    yield "no array", solving(links.tolist() if first else links)
    yield "square", solving(links[..., :3] if first else links)
    yield "chain changed in place", solving(bp.StructuredChain.made(weights, slopes, carry[: 1 if first else 2]))
    yield "backend", solving(backend="tpu" if first else "numpy")
    yield "cuda", solving(backend="cuda" if first else "numpy")
    yield "backend of a list", solving(listed, end_of_list, backend="cpu" if first else "auto")
    yield "blelloch", solving(method="blelloch")
    yield "levels", solving(levels=2 if first else None)
    yield "truncated", solving(method="truncated", levels=2)
    fails = patched(maps, "combine", failing(RuntimeError("broken")))
    yield "in the scan", lambda: fails(solving())
    none = patched(messages, "diamond", failing(RuntimeError("broken")))
    yield "in the scan of a list", lambda: none(solving(listed, end_of_list))
    conversion = patched(lists.listed, "operand", failing(MemoryError("no room")) if first else lists.listed.operand)
    at_last = patched(lists.listed, "operand", failing(MemoryError("no room")) if last else lists.listed.operand)
    for method in "linear", "chunked":
        yield f"memory in a list, {method}", lambda m=method: conversion(solving(listed, end_of_list, method=m))
        yield f"memory in a list, last, {method}", lambda m=method: at_last(solving(listed, end_of_list, method=m))
    if LAST > 1:
        one = RANK == 1
        product = patched(runs.Run, "_product", failing(MemoryError("no room")) if one else runs.Run._product)
        yield "memory in a product, 1", lambda: product(solving())
    yield "no communicator", solving(comm="COMM_WORLD")
    yield "no rank", solving(comm=MPI.COMM_NULL)
    yield "left out", solving(comm=COMM.Split(MPI.UNDEFINED))
    local = COMM.Split(RANK % 2)
    both = local.Create_intercomm(0, COMM, 1 - RANK % 2, 9)
    yield "two groups", solving(comm=both)
    both.Free()
    local.Free()


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def check():
    """Do everything that is fast."""
    backends.cuda_available = lambda: False  # whatever this machine has
    if COMM.size == 1:
        compile_products()
    # A message of the user's is on its way all the while: it must not meet the solver's, nor they it.
    kept, taken = np.full((2, 5), 7.0), np.zeros((2, 5))
    sent = COMM.Isend(kept, (RANK + 1) % COMM.size, tag=0)
    wrong = random_chains() + terms_at_the_end() + compare_awkward() + at_the_ends() + communicators()
    refused = {}
    for name, call in refusals() if COMM.size > 1 else ():
        try:
            call()
            refused[name] = "solved"
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
    wrong += [] if simple(COMM) == np.ones((3, 1, 2)).tolist() else ["after all refusals"]
    COMM.Recv(taken)
    sent.Wait()
    if not (taken == kept).all():
        wrong.append("the user's message")
    return {"wrong": wrong, "refused": refused}


def killed():
    """Have a rank disappear while the others wait for it."""
    if RANK == 1:
        runs.Run.sweep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    simple(COMM)


def memory(T):
    """Measure how far each call's memory rises above what this rank had before, in bytes, by method and kind."""
    (B, H), rng, libc = (16, 20), np.random.default_rng(RANK), ctypes.CDLL(None)
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
        libc.malloc_trim(0)  # what the call before has freed is not had
        before = status("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak is counted anew
        result = distributed.solve(bp.StructuredChain(weights, slopes), end, local_grads=local, method=method, **how)
        assert result.method == method and result.finite
        found[method + (", loss terms" if local is not None else "")] = status("VmHWM") - before
        del result
    return found


def status(name):
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(name))


if __name__ == "__main__":
    task, path, *sizes = sys.argv[1:]
    every = COMM.gather({"check": check, "killed": killed, "memory": memory}[task](*map(int, sizes)))
    if RANK == 0:
        Path(path).write_text(json.dumps(every))
