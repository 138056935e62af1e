"""Structured chains against the loop oracle: every method and backend, many shapes; what else is asked of them."""

import copy
import pickle
from itertools import product

import naive
import numpy as np
import pytest
from chain_draws import TOLERANCE, cast
from rings import large, more
from texts import beside, refuses

import bppsa_nb as bp
from bppsa_nb.chains import runs, runs_cpu
from bppsa_nb.chains.methods import go_back, multiply

TWINS = {"numpy": runs, "cpu": runs_cpu}
METHODS = [("linear", None), ("chunked", None), ("blelloch", None), ("truncated", 2), ("auto", None)]
each_backend = pytest.mark.parametrize("backend", TWINS)


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    """Chunks of five, wherever the planner would take one that is as long as the chain."""
    monkeypatch.setattr("bppsa_nb.chains.methods.chunk_length", lambda *_: 5)


def make(K, T, B, H, carry, rng):
    """Make arrays whose numbers float32 holds exactly, so that one oracle serves both dtypes.

    The first sum about keeps a gradient's size; the others and the carry add less than what would cancel it. A carry of
    2 is that of states of two vectors.
    """
    share, states = np.array([1, 0.3, 0.1])[:K, None, None], max(int(carry), 1)
    if K:
        share /= np.sqrt((share**2).sum() + 0.01 * bool(carry)) * states
    weights = np.linalg.qr(rng.standard_normal((K, H, H)))[0] * share
    H, of_carry = H * states, (states,) * (states > 1) + (T, B, H * states)
    slopes = rng.choice([-1.0, 1.0], (K, T, B, H)) * rng.uniform(0.9, 1.1, (K, T, B, H))
    diagonal = rng.choice([-1.0, 1.0], of_carry) * rng.uniform(0.8, 1.2, of_carry) if carry else None
    if carry and K:
        diagonal *= 0.1
    terms = rng.standard_normal((B, H)), rng.standard_normal((T + 1, B, H))
    return [None if each is None else each.astype(np.float32) for each in (weights, slopes, diagonal, *terms)]


def gap(found, oracle):
    """Largest difference of any step's gradients, relative to the largest of them."""
    assert found.shape == oracle.shape
    return (np.abs(found - oracle).max((1, 2)) / np.abs(oracle).max((1, 2))).max()


KINDS = [(0, True), (1, False), (1, True), (2, True), (3, False), (3, True), (0, 2), (3, 2)]
each_kind = pytest.mark.parametrize(("K", "carry"), KINDS)


@each_backend
@each_kind
@pytest.mark.parametrize(("T", "B", "H"), [(0, 1, 1), (1, 2, 1), (5, 1, 7), (3, 4, 5), (2, 1, 33)])
def test_jacobians_written_out(T, B, H, K, carry, backend):
    arrays = make(K, T, B, H, carry, np.random.default_rng([T, B, H, K]))[:3]
    oracle = naive.structured_jacobians_T(*arrays)
    for dtype in TOLERANCE:
        found = TWINS[backend].jacobians_T(bp.StructuredChain(*cast(dtype, *arrays)))
        assert found.dtype == dtype and found.shape == oracle.shape
        assert np.abs(found - oracle).max(initial=0) <= 8 * np.finfo(dtype).eps


SHAPES = [*((T, 2, 3) for T in (0, 1, 2, 3, 5, 6, 11, 12)), (40, 4, 1), (16, 5, 20), (12, 1, 33), more(13, 3, 64)]


@each_kind
@pytest.mark.parametrize(("T", "B", "H"), SHAPES)
def test_equals_the_oracle(T, B, H, K, carry):
    *arrays, terms = make(K, T, B, H, carry, np.random.default_rng([T, B, H, K]))
    for local in (None, terms):
        oracle = naive.structured_backprop(*arrays, local)
        for dtype, tolerance in TOLERANCE.items():
            weights, slopes, diagonal, g, c = cast(dtype, *arrays, local)
            links = bp.StructuredChain(weights, slopes, diagonal)
            for backend in TWINS:
                for method, levels in METHODS:
                    how = {"method": method, "backend": backend, "levels": levels}
                    found = bp.backprop(links, g, local_grads=c, **how)
                    assert found.dtype == dtype
                    assert gap(found, oracle) < tolerance, (dtype, how)


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "B", "H", "K", "dtype"), [
    (0, 2, 3, 1, np.float32), more(1, 1, 3, 0, np.float64), (7, 2, 3, 3, np.float32), (5, 1, 3, 1, np.float32),
    more(5, 1, 3, 1, np.float64), large(7, 2, 3, 0, np.float64), large(1000, 16, 20, 1, np.float32),
    large(259, 5, 33, 3, np.float32), large(100, 2, 128, 3, np.float64),
])  # fmt: skip
def test_a_gpu_equals_the_oracle(T, B, H, K, dtype, few_threads, monkeypatch):
    *arrays, start, terms = make(K, T, B, H, K != 1, np.random.default_rng([T, B, H, K]))
    oracle, (start, terms) = naive.structured_backprop(*arrays, start, terms), cast(dtype, start, terms)
    g = start + terms[T]
    links = bp.StructuredChain(*cast(dtype, *arrays))
    stored, levels = runs.jacobians_T(links), {"chain": links, "method": "blelloch"}
    one, two, *longer = ({"method": "chunked", "length": n} for n in (1, 2, 3, max(T // 30, 4), T + 1))
    loop, by_any = {"method": "linear"}, [("bppsa_nb.machine.cuda.REGISTERS", 0)]  # by the kernels for any H
    ways = [([], [one, two, *longer, loop]), (by_any, [two, loop])]
    # With so many threads of a row, one lacks a column, and some of a warp have no row.
    teams = [[("bppsa_nb.chains.methods_cuda.team_of", lambda *_, team=team: team)] for team in (2, 3)]
    ways += [(team, [one, two]) for team in teams if H == K == 3]
    for patches, scans in ways:
        with monkeypatch.context() as patch:
            for changed in patches:
                patch.setattr(*changed)
            hows = [scan | {"chain": chain} for scan in scans for chain in (links, stored)]
            for how in hows if patches in teams else [*hows, levels]:
                found = go_back(grad_output=g, local_grads=terms, backend="cuda", **how)
                assert found.dtype == dtype and gap(found, oracle) < TOLERANCE[dtype], (patches, how)


@each_backend
@each_kind
@pytest.mark.parametrize("T", [0, 1, 2, 3, 7, 12, 24])
def test_chunks_of_any_length(T, K, carry, backend):
    arrays = make(K, T, 2, 3, carry, np.random.default_rng([T, K]))
    weights, slopes, diagonal, g, terms = cast(np.float64, *arrays)
    links = bp.StructuredChain(weights, slopes, diagonal)
    for local in (None, terms):
        oracle = naive.structured_backprop(weights, slopes, diagonal, g, local)
        start = g if local is None else g + local[-1]
        assert gap(go_back(links, start, local, backend, "linear"), oracle) < 1e-12
        for length in {1, 2, 3, 5, max(T - 1, 1), max(T, 1), T + 1, 10**6}:
            found = go_back(links, start, local, backend, "chunked", length=length)
            assert gap(found, oracle) < 1e-12, length


# What a caller may hand over, and what it gets back.


def test_what_a_chain_says_of_itself():
    weights, slopes, diagonal, *_ = make(2, 5, 3, 4, True, np.random.default_rng(4))
    links = bp.StructuredChain(weights, slopes, diagonal)
    assert (links.shape, links.dtype) == ((5, 3, 4), np.float32)
    assert repr(links) == "StructuredChain(T=5, B=3, H=4, weights=2, with a carry)"
    assert repr(bp.StructuredChain(weights, slopes)) == "StructuredChain(T=5, B=3, H=4, weights=2)"
    assert links.weights is weights and links.slopes is slopes and links.carry is diagonal


W, S, C, G = (np.ones(shape) for shape in ((2, 3, 3), (2, 4, 5, 3), (4, 5, 3), (5, 3)))


@pytest.mark.parametrize("carry", [0.5, 1, np.float32(0.5), C[0, 0], C[:, :1], np.array(0.5)], ids=repr)
def test_a_carry_may_stay_the_same_along_an_axis(carry):
    whole = np.broadcast_to(carry, C.shape).astype(C.dtype)
    chain = bp.StructuredChain(W, S, carry)
    assert np.array_equal(chain.carry, whole) and chain.carry.flags.c_contiguous
    for backend in ("numpy", "cpu"):
        found = bp.backprop(chain, np.ones(C.shape[1:]), method="chunked", backend=backend)
        expected = bp.backprop(bp.StructuredChain(W, S, whole), np.ones(C.shape[1:]), method="linear", backend=backend)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["weights", "slopes", "carry"])
def test_arrays_of_a_chain_cannot_be_replaced(name):
    for links in (bp.StructuredChain(W, S, C), bp.StructuredChain.made(W, S, C)):
        with pytest.raises(AttributeError, match=f"{name} of this StructuredChain cannot be replaced; make another"):
            setattr(links, name, np.ones((1, 1, 1, 1), np.float32))
        links.name = "of a user's own"
        for twin in (links, copy.copy(links), pickle.loads(pickle.dumps(links))):
            assert twin.name == "of a user's own"
            assert all(map(np.array_equal, (twin.weights, twin.slopes, twin.carry), (W, S, C)))


@pytest.mark.parametrize("backend", TWINS)
@pytest.mark.parametrize(("change", "message"), beside(__file__)["changed"])
def test_arrays_changed_in_place_are_found(change, message, backend):
    links = bp.StructuredChain(W.copy(), S.copy(), C.copy())
    exec(change, {"np": np, "links": links})
    refuses("bp.backprop(links, G, method='linear', backend=backend)", message, globals() | locals())


def test_numbers_changed_in_place_count():
    links = bp.StructuredChain(W.copy(), S, C)
    links.weights[:] *= 0.5
    expected = bp.backprop(bp.StructuredChain(0.5 * W, S, C), G, backend="numpy")
    np.testing.assert_array_equal(bp.backprop(links, G, backend="numpy"), expected)


# Memory.


@pytest.mark.parametrize("backend", TWINS)
def test_jacobians_that_do_not_fit(backend, monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.memory.available", lambda: 2**30)
    links = bp.StructuredChain(np.ones((1, 64, 64), "f"), np.ones((1, 4096, 32, 64), "f"))
    message = "storing 4096 x 32 transposed Jacobians of 64 x 64 takes 2.0 GiB, but 1.0 GiB are available"
    with pytest.raises(MemoryError, match=message):
        TWINS[backend].jacobians_T(links)
    with pytest.raises(MemoryError, match=message):
        bp.backprop(links, np.ones((32, 64), "f"), method="blelloch", backend=backend)


@each_backend
def test_chunks_that_do_not_fit(backend, monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.memory.available", lambda: 2**20)
    links = bp.StructuredChain(np.ones((1, 64, 64), "f"), np.ones((1, 64, 16, 64), "f"))
    with pytest.raises(MemoryError, match="multiplying 14 chunks of 4 steps takes .* GiB, but 0.0 GiB are available"):
        go_back(links, np.ones((16, 64), "f"), None, backend, "chunked", length=4)


# What ranks that share a chain need of it: products of chunks, and sweeps that take no loss term at the end.


def check_products(K, carry, count, length, H, backends, dtypes):
    """Check products of chunks of a structured chain, and of its Jacobians."""
    arrays = make(K, count * length, 2, H, carry, np.random.default_rng([K, length]))[:3]
    written = naive.structured_jacobians_T(*arrays)
    N = written.shape[-1]
    # Every unit vector goes back as a gradient does, at the chunk's end.
    parts = written.reshape(count, length, 2, 1, N, N).repeat(N, 3)
    ends = [[naive.backprop(part[:, b], np.eye(N))[:1] for b in range(2)] for part in parts]
    for dtype in dtypes:
        chain = bp.StructuredChain(*cast(dtype, *arrays))
        for links, backend in product((chain, written.astype(dtype)), backends):
            rows, exponents = multiply(links, count, length, backend)
            assert rows.shape == (count, 2, N, N) and exponents.shape == (count, 2, N)
            assert rows.dtype == dtype and exponents.dtype.kind == "i"
            peak = np.abs(rows).max(-1)
            assert np.all((peak >= 0.5) & (peak < 1))  # as `rows.apply` wants it
            found = np.ldexp(rows.astype(float), exponents[..., None])
            for c, b in np.ndindex(count, 2):
                assert gap(found[None, c, b], ends[c][b]) < TOLERANCE[dtype], (backend, dtype)


@each_kind
@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 7), (3, 4), (6, 1)])
def test_products_of_chunks(K, carry, count, length):
    check_products(K, carry, count, length, 3, TWINS, TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "length", "H", "K", "dtype"), [
    (1, 3, 3, 1, np.float32), (3, 2, 3, 3, np.float32), more(3, 2, 3, 3, np.float64), more(2, 1, 3, 0, np.float64),
    more(1, 2, 20, 1, np.float32), more(2, 1, 21, 1, np.float32), more(1, 2, 20, 3, np.float32),
    more(1, 2, 33, 3, np.float32), large(1, 500, 20, 1, np.float32), large(7, 40, 33, 3, np.float64),
])  # fmt: skip
def test_products_of_chunks_on_a_gpu(count, length, H, K, dtype):
    check_products(K, K != 1, count, length, H, ["cuda"], [dtype])


@pytest.mark.parametrize("T", [0, 1, 5])
def test_the_last_loss_term_of_a_sweep_may_be_missing(T):
    weights, slopes, diagonal, g, terms = make(2, T, 2, 3, True, np.random.default_rng(T))
    links, before = bp.StructuredChain(weights, slopes, diagonal), terms.copy()
    for chain, backend in product((links, runs.jacobians_T(links)), TWINS):
        found = [go_back(chain, g, each, backend, "linear") for each in (terms, terms[:T])]
        assert np.array_equal(*found) and np.array_equal(terms, before)
