import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from texts import beside

import bppsa_nb as bp
from bppsa_nb.operands import products
from bppsa_nb.operands import products_cpu as cpu
from bppsa_nb.sparse import CSRPattern, PlannedProduct

BACKENDS = ("numpy", "cpu")
INTEGERS = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])  # sums of these are exact in any order


def random_pattern(rng, m, n, kind):
    """A CSR pattern: sparse, with at most one entry a row, diagonal, or with unsorted and repeated columns."""
    if kind == "one":
        counts = rng.integers(0, 2, m) if n else np.zeros(m, int)
    elif kind == "diagonal":
        counts = np.ones(m, int) if m == n else np.zeros(m, int)
    else:
        counts = rng.integers(0, n + 1, m)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    if kind == "diagonal":
        indices = np.arange(indptr[-1])
    elif kind == "messy":
        indices = rng.integers(0, max(n, 1), indptr[-1])
    else:
        rows = [np.sort(rng.choice(n, count, replace=False)) for count in counts] or [[]]
        indices = np.concatenate(rows).astype(int)
    return CSRPattern(indptr, indices, (m, n))


def multiply(a, b, a_values, b_values):
    """Return the dense product, and how many pairs of entries there are."""
    dense = a.matrix(a_values).toarray() @ b.matrix(b_values).toarray()
    return dense, np.diff(b.indptr)[a.indices].sum()


KINDS = st.sampled_from(["any", "one", "diagonal", "messy"])


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(*3 * [st.integers(0, 6)]),
    kinds=st.tuples(KINDS, KINDS),
    batches=st.sampled_from([((), ()), ((3,), (3,)), ((), (3,)), ((3,), (1,)), ((1,), (3,))]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_values_are_those_of_dense_matrices(seed, sizes, kinds, batches, dtype):
    rng = np.random.default_rng(seed)
    (m, k, n), (kind_a, kind_b) = sizes, kinds
    a, b = random_pattern(rng, m, k, kind_a), random_pattern(rng, k, n, kind_b)
    plan = PlannedProduct(a, b)
    assert plan.pattern.shape == (m, n) and plan.pattern.canonical
    x, y = (rng.choice(INTEGERS, (*batch, each.nnz)).astype(dtype) for batch, each in zip(batches, (a, b), strict=True))
    for backend in BACKENDS:
        c = plan(x, y, backend=backend)
        assert c.dtype == dtype and c.shape == (*max(batches), plan.pattern.nnz)
        several = zip(*(np.broadcast_to(each, (3, each.shape[-1])) for each in (x, y)), np.atleast_2d(c), strict=False)
        for x_s, y_s, c_s in several:
            dense, pairs = multiply(a, b, x_s, y_s)
            assert np.array_equal(plan.pattern.matrix(c_s).toarray(), dense)
            assert plan.multiply_adds == pairs
    # The pattern has every entry that some values make non-zero, and no other.
    x, y, z = (np.ones(each.nnz) for each in (a, b, plan.pattern))
    assert np.array_equal(plan.pattern.matrix(z).toarray() > 0, multiply(a, b, x, y)[0] > 0)


@given(seed=st.integers(0, 2**32 - 1), kinds=st.tuples(KINDS, KINDS))
def test_zeros_are_passed_over_and_not_counted(seed, kinds):
    rng = np.random.default_rng(seed)
    plan = PlannedProduct(*(random_pattern(rng, 5, 5, kind) for kind in kinds))
    a, b = (rng.random(plan.left.nnz) < 0.6).astype(float), np.ones(plan.right.nnz)
    for backend in BACKENDS:
        values = plan(a, b, backend=backend)
        assert np.array_equal(plan.pattern.matrix(values).toarray(), multiply(plan.left, plan.right, a, b)[0])
        assert values.sum() == plan.performed(a) if plan.kind == "sums" else plan.performed(a) == plan.multiply_adds
    assert plan.performed(np.ones(plan.left.nnz)) == plan.multiply_adds


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_into_an_array_that_is_there(backend):
    plan = PlannedProduct(A, B)
    a, b = np.arange(1.0, 4), np.array([[5.0, 7.0], [1.0, 1.0]])
    expected = plan(a, b, backend=backend)
    out = np.full_like(expected, np.nan)
    assert plan(a, b, backend, out) is out and np.array_equal(out, expected)
    one = np.full(plan.pattern.nnz, np.nan)
    assert plan(a, b[0], backend, one) is one and np.array_equal(one, expected[0])
    square = PlannedProduct(*2 * [CSRPattern([0, 1, 2], [0, 1], (2, 2))])
    first, second = np.ones(2), np.ones(2)
    for out_too in (first, second):
        with pytest.raises(ValueError, match="out must not share memory with a or b"):
            square(first, second, backend, out_too)
    for wrong in (one, out[:, ::-1]):
        with pytest.raises(ValueError, match=r"out must be contiguous and writeable, of shape \(2, 2\), got"):
            plan(a, b, backend, wrong)


@pytest.mark.parametrize("left, right, kind", beside(__file__)["kinds"])
def test_kinds(left, right, kind):
    dense, one = CSRPattern.of(sparse.csr_array(np.ones((4, 4)))), CSRPattern([0, 1, 1, 2, 3], [2, 0, 2], (4, 4))
    names = {"dense": dense, "one": one, "diagonal": CSRPattern(np.arange(5), np.arange(4), (4, 4))}
    left, right = (eval(text, names | {"CSRPattern": CSRPattern}) for text in (left, right))
    assert PlannedProduct(left, right).kind == kind


def test_columns_are_sorted_where_few_are_far_apart():
    rng = np.random.default_rng(2)
    a, b = (sparse.random_array((40, 40), density=0.05, format="csr", rng=rng) for _ in range(2))
    wide = sparse.csr_array((b.data, b.indices * 1000, b.indptr), shape=(40, 40000))
    wide.indices = wide.indices[::-1].copy()  # in no order
    plan = PlannedProduct(a, wide)
    assert plan.pattern.canonical and plan.pattern.nnz > 40
    np.testing.assert_allclose(plan.pattern.matrix(plan(a.data, wide.data)).toarray(), (a @ wide).toarray())


def test_samples_of_a_product():
    batches = [(1, 0), (0, 1), (3, 1), (1, 3), (3, 3), (1, 1), (0, 0)]
    found = [products.batch_of(*(np.zeros((size, 1)) for size in both)) for both in batches]
    assert found == [0, 0, 3, 3, 3, 1, 0]


def big(rng, shape, density, dtype):
    matrix = sparse.random_array(shape, density=density, format="csr", rng=rng, dtype=dtype)
    matrix.data = rng.uniform(-1, 1, matrix.nnz).astype(dtype)
    return matrix


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_enough_for_several_threads(dtype, threads, monkeypatch):
    from bppsa_nb.machine import workers

    monkeypatch.setattr(workers, "THREADS", threads)
    rng = np.random.default_rng(3)
    a, b = big(rng, (700, 600), 0.1, dtype), big(rng, (600, 500), 0.02, dtype)
    diagonal = sparse.csr_array(sparse.diags_array(rng.uniform(1, 2, 700).astype(dtype)))
    for left, right in ((a, b), (diagonal, a), (a[:, :500].T.tocsr(), diagonal[:, :700])):
        plan = PlannedProduct(left, right)
        expected = (left @ right).toarray()
        found = plan.pattern.matrix(plan(left.data, right.data)).toarray()
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(expected).max())
        vector = rng.standard_normal((2, left.shape[1])).astype(dtype)
        found = cpu.apply(plan.left, left.data[None], vector)
        np.testing.assert_allclose(found, (left @ vector.T).T, rtol=0, atol=1000 * np.finfo(dtype).eps)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(0, 5)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_extent_and_scale(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    values = rng.uniform(-1, 1, shape)
    values = np.ldexp(values, rng.integers(info.minexp - info.nmant, info.maxexp, shape)).astype(dtype)
    values[rng.random(shape) < 0.3] = 0
    expected = products.magnitude_range(values)
    sizes = [[abs(v) for v in row if v != 0] for row in values.tolist()]
    assert expected[0].tolist() == [max(row, default=0) for row in sizes]
    assert expected[1].tolist() == [min(row, default=np.inf) for row in sizes]
    for found, want in zip(cpu.magnitude_range(values), expected, strict=True):
        assert found.dtype == dtype and np.array_equal(found, want)
    exponents = rng.integers(-20, 20, len(values))
    with np.errstate(all="ignore"):
        want = np.ldexp(values, exponents[:, None])
    for twin in (cpu, products):
        with np.errstate(all="ignore"):
            assert np.array_equal(twin.scale(values, exponents), want)
            place = values.copy()
            assert twin.scale(place, exponents, place) is place and np.array_equal(place, want)


def test_extent_of_many_parts():
    values = np.random.default_rng(0).uniform(1, 2, (2, 3 * cpu.PART + 5)).astype(np.float32)
    values[0, -1], values[1, cpu.PART] = 7, 0.25
    peak, floor = cpu.magnitude_range(values)
    assert peak.tolist() == [7, values[1].max()] and floor.tolist() == [values[0].min(), 0.25]


def test_plans_are_made_once_per_pattern(monkeypatch):
    made = []
    name = "bppsa_nb.operands.pattern.PlannedProduct"
    monkeypatch.setattr(name, lambda *both: made.append(both) or PlannedProduct(*both))
    rng = np.random.default_rng(5)
    patterns = [CSRPattern.of(sparse.csr_array(rng.random((4, 4)) < 0.5)) for _ in range(9)]
    for iteration in range(3):
        links = [bp.BatchedCSR.of(pattern, rng.uniform(1, 2, (2, pattern.nnz))) for pattern in patterns]
        result = bp.backprop(links, np.ones((2, 4)), method="blelloch", backend="cpu")
        expected = bp.backprop(links, np.ones((2, 4)), method="linear", backend="numpy")
        np.testing.assert_allclose(np.stack(result), np.stack(expected), rtol=1e-12)
        if iteration == 0:
            first = len(made)
            assert first > 4
    assert len(made) == first


def test_plans_do_not_keep_patterns_alive():
    a, b = (CSRPattern([0, 1], [0], (1, 1)) for _ in range(2))
    plan = a.times(b)
    assert a.times(b) is plan
    a_gone, b_gone = weakref.ref(a), weakref.ref(b)
    del b
    gc.collect()
    assert b_gone() is None and len(a._plans) == 0
    del a
    gc.collect()
    assert a_gone() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch(backend):
    plan = PlannedProduct(A, B)
    none_a, none_b = np.zeros((0, 3)), np.zeros((0, 2))
    for a, b in ((none_a, np.ones((1, 2))), (np.ones(3), none_b), (none_a, none_b)):
        assert plan(a, b, backend).shape == (0, plan.pattern.nnz)
    assert plan(np.ones((1, 3)), np.ones(2), backend).shape == (1, plan.pattern.nnz)


def test_patterns_are_copied_and_pickled_without_their_plans():
    indptr, indices = np.arange(5, dtype=np.int32), np.arange(4, dtype=np.int32)
    pattern = CSRPattern(indptr, indices, (4, 4))
    indices[:] = indptr[1:] = 100
    plan = pattern.times(pattern)
    for other in (pickle.loads(pickle.dumps(pattern)), copy.copy(pattern), copy.deepcopy(pattern)):
        assert np.array_equal(other.indices, np.arange(4)) and np.array_equal(other.indptr, np.arange(5))
        assert other.times(other) is not plan and other.shape == (4, 4)
    again = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(again(np.arange(4.0), np.arange(4.0)), np.arange(4.0) ** 2)
    link = pickle.loads(pickle.dumps(bp.BatchedCSR.of(pattern, np.ones((1, 4)))))
    assert np.array_equal(bp.backprop([link], np.ones((2, 4)), backend="cpu")[0], np.ones((2, 4)))


def test_chunks_small_enough_to_interrupt(monkeypatch):
    calls = []

    def parallel_for(function, count, *arguments, parallel, chunks):
        calls.append(chunks)
        return function(*arguments, 0, count)

    monkeypatch.setattr(cpu, "parallel_for", parallel_for)
    monkeypatch.setattr(cpu, "_CHUNK", 10)
    dense = CSRPattern.of(sparse.csr_array(np.ones((5, 5))))
    plan = PlannedProduct(dense, dense)
    plan(np.ones((2, 25)), np.ones(25), "cpu")
    assert calls == [12, 12, 12, 25]  # count, list, place, multiply-add of two samples
    plan(np.ones((2, 25)), np.ones(25), "cpu")
    assert calls[4:] == [25]  # places are kept


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_the_same_bits_with_places_and_without(monkeypatch, dtype):
    rng = np.random.default_rng(0)
    for shape in [(1, 5, 3), (7, 6, 9), (30, 40, 20)]:
        a, b = (sparse.random_array(each, density=0.4, rng=rng, format="csr") for each in (shape[:2], shape[1:]))
        patterns = CSRPattern.of(a), CSRPattern.of(b)
        values = [rng.standard_normal((3, each.nnz)).astype(dtype) for each in patterns]
        values[0][:, ::4] = 0
        plan = PlannedProduct(*patterns)
        placed = plan(*values, "cpu")
        monkeypatch.setattr(cpu, "_PLACED", 0)
        assert np.array_equal(PlannedProduct(*patterns)(*values, "cpu"), placed)
        monkeypatch.undo()
        assert len(plan.places) == (plan.kind == "sums")


A, B = (CSRPattern(*each) for each in (([0, 1, 3], [0, 1, 2], (2, 3)), ([0, 1, 2, 2], [0, 1], (3, 2))))


def test_products_that_do_not_fit_into_memory(monkeypatch):
    from bppsa_nb.machine import memory

    monkeypatch.setattr(memory, "available", lambda: 10)
    with pytest.raises(MemoryError, match=r"the pattern of a product of shape \(40, 40\) with 1600 entries takes"):
        PlannedProduct(*(CSRPattern.of(sparse.csr_array(np.ones((40, 40)))) for _ in range(2)))


def test_patterns_and_plans_cannot_be_changed():
    """Compiled code goes where they say."""
    plan = PlannedProduct(*(sparse.csr_array(np.eye(2)) for _ in range(2)))
    for pattern in plan.left, plan.pattern, CSRPattern([0, 1], [0], (1, 1)), copy.copy(plan.left):
        for array in pattern.indptr, pattern.indices:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 10**6
        for name in "indptr", "indices", "shape":
            with pytest.raises(AttributeError, match=f"{name} of this CSRPattern cannot be replaced; make another"):
                setattr(pattern, name, getattr(pattern, name))
    for name in "left", "right", "pattern", "kind", "multiply_adds":
        with pytest.raises(AttributeError, match=f"{name} of this PlannedProduct cannot be replaced; make another Pl"):
            setattr(plan, name, getattr(plan, name))
