"""bp.backprop against the loop oracle: every method and backend, many shapes, awkward numbers, bad input."""

import copy
import itertools
import logging
import tempfile

import naive
import numpy as np
import pytest
from chain_draws import BACKENDS, METHODS, TOLERANCE, cast, chain, error, hills
from rings import large, more, on_gpu
from scipy import sparse

import bppsa_nb as bp
from bppsa_nb.chains import methods, runs

each_backend = pytest.mark.parametrize("backend", BACKENDS)
or_a_gpu = pytest.mark.parametrize("backend", [*BACKENDS, on_gpu("cuda")])


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    """Chunks of five, wherever the planner would take one that is as long as the chain."""
    for module in ("chains.methods", "chains.plan"):
        monkeypatch.setattr(f"bppsa_nb.{module}.chunk_length", lambda *_: 5)


def check(T, H, B, local, backends=BACKENDS, dtypes=TOLERANCE, methods=METHODS):
    jacobians_T, grad_output, local_grads = chain(T, B, H, np.random.default_rng([T, H, B]), local=local)
    oracle = naive.backprop(jacobians_T, grad_output, local_grads)
    for dtype in dtypes:
        J, g, c = cast(dtype, jacobians_T, grad_output, local_grads)
        for backend, (method, levels) in itertools.product(backends, methods):
            result = bp.backprop(J, g, local_grads=c, method=method, backend=backend, levels=levels)
            assert result.dtype == dtype and result.shape == (T + 1, B, H)
            assert error(result, oracle) < TOLERANCE[dtype], (backend, method, levels, dtype)


@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("H", [1, 3, 20, 33, 64])
@pytest.mark.parametrize("T", [0, 1, 2, 3, 5, 10, 100, more(300), large(1000)])
def test_equals_the_oracle(T, H, B):
    check(T, H, B, T <= 100, methods=METHODS[:3] if T > 100 else METHODS)


FEW = [("linear", None), ("blelloch", None), ("truncated", 1), ("chunked", None)]
SMALL = [(0, 1, False), (2, 2, True), (3, 1, False), (6, 1, False), (10, 1, True)]
MANY = itertools.product([0, 1, 2, 3, 5, 10, 100, 500], [1, 3, 20, 33, 64, 128], [1, 5])


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "H", "B", "local", "dtype", "methods"), [
    *((T, 3, B, local, np.float32, FEW) for T, B, local in SMALL),
    more(1, 3, 1, True, np.float64, FEW), more(10, 3, 1, False, np.float64, FEW),
    *(large(*size, size[0] <= 100, dtype, METHODS) for size in MANY for dtype in TOLERANCE),
])  # fmt: skip
def test_a_gpu_equals_the_oracle(T, H, B, local, dtype, methods):
    check(T, H, B, local, ["cuda"], [dtype], methods)


@pytest.mark.gpu
def test_a_gpu_has_kernels_for_any_size(monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.cuda.REGISTERS", 0)
    check(5, 3, 2, True, ["cuda"], [np.float32], FEW[1:3])


@or_a_gpu
@pytest.mark.parametrize(("method", "levels"), METHODS)
def test_jacobians_shared_by_the_batch(method, levels, backend):
    dtype = np.float32 if backend == "cuda" else np.float64
    jacobians_T, grad_output, local_grads = chain(10, 1, 3, np.random.default_rng(0), local=True)
    J, g, c = cast(dtype, jacobians_T[:, 0], np.tile(grad_output, (4, 1)), np.tile(local_grads, (1, 4, 1)))
    g[1:] += np.arange(3)[:, None]
    c[:, 2] -= 1
    oracle = naive.backprop(np.broadcast_to(J[:, None], (10, 4, 3, 3)), g, c)
    result = bp.backprop(J, g, local_grads=c, method=method, backend=backend, levels=levels)
    assert error(result, oracle) < TOLERANCE[dtype]


# What a caller may hand over, and what it gets back: of chains that are stored and of those of weights and diagonals.


def every_second(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def in_a_file(array):
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return mapped


LAYOUTS = {
    "Fortran": np.asfortranarray, "strided": every_second, "backwards": lambda array: array[::-1].copy()[::-1],
    "transposed": lambda array: array.swapaxes(-1, -2).copy().swapaxes(-1, -2), "in a file": in_a_file,
}
STRUCTURED = {"weights": (2, 3, 3), "slopes": (2, 12, 2, 3), "carry": (12, 2, 3)}
SHAPES = {  # T = 12, B = 2, H = 3
    "stored": {"jacobians_T": (12, 2, 3, 3)},
    "structured": {f"jacobians_T.{name}": shape for name, shape in STRUCTURED.items()},
}
each_chain = pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
each_method = pytest.mark.parametrize(("method", "levels"), [("auto", None), *METHODS[:3], ("truncated", 1)])


def draw(shapes):
    """Return the arrays of a chain, the gradient at its end and loss terms, by the names that errors give them."""
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        for name, shape in (shapes | {"grad_output": (2, 3), "local_grads": (13, 2, 3)}).items()
    }


def solve(arrays, **how):
    *parts, grad_output, local_grads = arrays.values()
    links = parts[0] if len(parts) == 1 else bp.StructuredChain(*parts)
    return bp.backprop(links, grad_output, local_grads=local_grads, **how)


@each_chain
@each_backend
@each_method
def test_any_memory_layout_and_read_only_arrays(method, levels, backend, shapes):
    arrays, how = draw(shapes), {"method": method, "levels": levels, "backend": backend}
    before = copy.deepcopy(arrays)
    expected = solve(arrays, **how)
    assert expected.flags.c_contiguous and not any(np.shares_memory(expected, array) for array in arrays.values())
    for layout in LAYOUTS.values():
        awkward = {name: layout(array) for name, array in arrays.items()}
        for array in awkward.values():
            array.flags.writeable = False
        found = solve(awkward, **how)
        assert type(found) is np.ndarray and found.flags.c_contiguous
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    found += 1
    assert all(np.array_equal(array, before[name]) for name, array in arrays.items())


@each_chain
@each_backend
@each_method
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("zero", [False, True])
def test_nan_and_infinity_are_found(zero, value, method, levels, backend, shapes):
    for name, shape in draw(shapes).items():
        for place in tuple(size // 2 for size in shape.shape), tuple(size - 1 for size in shape.shape):
            arrays = draw(shapes)
            for of_gradient in ("grad_output", "local_grads") if zero else ():
                arrays[of_gradient][:] = 0
            arrays[name][place] = value
            with pytest.raises(ValueError, match=rf"{name} must be finite, got {value} at \{list(place)}"):
                solve(arrays, method=method, levels=levels, backend=backend)


# Chains whose products leave the range of a float while the gradient stays well inside it.

OF_PRODUCTS = [("stored", "blelloch"), ("stored", "chunked"), ("structured", "chunked")]
each_product = pytest.mark.parametrize(("kind", "method"), OF_PRODUCTS)


def scans(kind, chain, g, backend, method, caplog, c=None):
    """Gradients by the linear scan and by a method, along a structured chain or its Jacobians, and what is logged."""
    links = chain if kind == "structured" else runs.jacobians_T(chain)
    linear = bp.backprop(links, g, local_grads=c, method="linear", backend=backend)
    with caplog.at_level(logging.INFO, "bppsa_nb"):
        found = bp.backprop(links, g, local_grads=c, method=method, backend=backend)
    return linear, found, [record.message for record in caplog.records]


@each_backend
@each_product
def test_a_vanishing_gradient_vanishes_without_falling_back(kind, method, backend, caplog):
    rng = np.random.default_rng(5)
    slopes = 0.5 * rng.choice([-1, 1], (1, 500, 2, 4)).astype(np.float32)
    links = bp.StructuredChain(np.linalg.qr(rng.standard_normal((1, 4, 4)))[0].astype(np.float32), slopes)
    linear, found, logged = scans(kind, links, np.ones((2, 4), np.float32), backend, method, caplog)
    alive = np.abs(linear).max((1, 2)) > 1e-30
    assert not logged and 90 < alive.sum() < 110 and error(found[alive], linear[alive]) < 1e-5
    assert (np.abs(found[~alive]) <= 1.1e-30).all()


@each_backend
@each_product
@pytest.mark.parametrize("K", [0, 1])
def test_a_gradient_that_overflows_is_what_the_linear_scan_gives(K, kind, method, backend, caplog):
    rate = np.full((1, 40, 1, 1), 64, np.float32)
    links = bp.StructuredChain(np.ones((K, 1, 1), np.float32), rate[:K], None if K else rate[0])
    _, found, _ = scans(kind, links, np.ones((1, 1), np.float32), backend, method, caplog)
    assert np.array_equal(found.ravel()[::-1][:21], 64.0 ** np.arange(21)) and np.isinf(found.ravel()[:19]).all()
    top = np.full((41, 1, 1), np.finfo(np.float32).max)  # finite as a gradient and as a loss term, but not in sum
    assert np.isinf(scans(kind, links, top[-1], backend, method, caplog, top)[1]).all()
    jacobians_T, g, _ = chain(5, 1, 4, np.random.default_rng(0))
    g[0, 0] = np.inf  # as from the layer above: some sums are infinite, others NaN
    run = lambda *how: methods.go_back(jacobians_T, g, None, backend, *how)  # noqa: E731
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(methods.in_range(run, method, None), run("linear"))


@each_backend
@each_product
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_too_far_apart_for_any_scale(dtype, kind, method, backend, caplog):
    # In every chunk both coordinates take the sum of both; then one climbs while the other falls.
    step = 2.0 ** (np.finfo(dtype).maxexp // 10)
    carry, slopes = np.tile(np.array([step, 1 / step], dtype), (40, 1, 1)), np.zeros((1, 40, 1, 2), dtype)
    carry[4::5], slopes[:, 4::5] = 0, step**-4
    links, g = bp.StructuredChain(np.ones((1, 2, 2), dtype), slopes, carry), np.array([[1, 3]], dtype)
    linear, found, logged = scans(kind, links, g, backend, method, caplog)
    assert np.isfinite(linear).all() and (linear > 0).all() and np.array_equal(found, linear)
    assert logged == ["products of Jacobians leave the range of their dtype; using the linear scan"]


@each_backend
@each_product
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_whose_entries_are_far_apart(dtype, kind, method, backend, caplog):
    # Scaled to the large entry, the small one would be rounded to a few bits. Going up and going down, at any place.
    large, small = dtype(2.0 ** (np.finfo(dtype).maxexp - 28)), dtype(1.2345678 * 2.0 ** (-np.finfo(dtype).maxexp // 3))
    links = bp.StructuredChain(np.ones((0, 2, 2), dtype), np.ones((0, 13, 1, 2), dtype), carry=1.0)
    for t in range(14):
        c = np.zeros((14, 1, 2), dtype)
        c[t, 0, 1] = small
        _, found, _ = scans(kind, links, np.array([[large, 0]], dtype), backend, method, caplog, c)
        assert (found[..., 0] == large).all()
        assert (found[: t + 1, 0, 1] == small).all() and (found[t + 1 :, 0, 1] == 0).all()


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.outer])])
@pytest.mark.parametrize(("method", "levels"), [("blelloch", None), ("truncated", 5), ("chunked", None)])
@pytest.mark.parametrize("rate", [1 / 64, 64])
def test_products_that_overflow_or_underflow(rate, method, levels, backend, caplog):
    # 32 steps are a factor of 2**192, beyond float32; the gradient stays between 2**-100 and 2**100.
    J, g = hills(3, np.random.default_rng(4), rate)
    oracle = naive.backprop(J, g)
    with caplog.at_level(logging.INFO, "bppsa_nb"):
        result = bp.backprop(J, g, method=method, backend=backend, levels=levels)
    assert (np.abs(result - oracle).max((1, 2)) < 1e-5 * np.abs(oracle).max((1, 2))).all()
    assert not caplog.records  # scaled, not handed to the linear scan


@each_backend
@pytest.mark.parametrize(("method", "levels"), METHODS)
@pytest.mark.parametrize("entry", [0.75, 0.1])
def test_products_whose_own_scale_changes(entry, method, levels, backend):
    # Products of rotations keep their largest entry near 1. These grow or shrink from level to level.
    rng = np.random.default_rng(8)
    J = entry * rng.uniform(0.5, 1, (40, 2, 5, 5))
    g, c = rng.uniform(0.5, 1, (2, 5)), rng.uniform(0.5, 1, (41, 2, 5))
    for local_grads in (None, c):
        oracle = naive.backprop(J, g, local_grads)
        result = bp.backprop(J, g, local_grads=local_grads, method=method, backend=backend, levels=levels)
        np.testing.assert_allclose(result, oracle, rtol=1e-12)  # every entry: all of them are positive sums


@each_backend
def test_a_power_of_two_beyond_the_dtype(backend, caplog):
    J = np.array([np.diag([1, 1]), np.diag([2.0**60, 1]), np.diag([1, 1])], np.float32)[:, None]
    g = np.array([[0, 2.0**100]], np.float32)  # matrix and vector together stand for 2**162
    with caplog.at_level(logging.INFO, "bppsa_nb"):
        result = bp.backprop(J, g, method="blelloch", backend=backend)
    assert (result == g).all() and not caplog.records


# Lists: sizes that differ, sparse matrices, batches of them.


SIZES = [3, 7, 1, 4, 4, 9, 5, 2, 6, 3, 2]  # links enough for a chunk that is multiplied


def ragged(rng, dtype=np.float64):
    dense = [rng.standard_normal((a, b)).astype(dtype) for a, b in zip(SIZES[:-1], SIZES[1:], strict=True)]
    dense[3] = np.diag(rng.uniform(1, 2, 4).astype(dtype))
    for matrix in dense:
        matrix[rng.random(matrix.shape) < 0.4] = 0
    local_grads = [rng.standard_normal(n).astype(dtype) for n in SIZES]
    return dense, rng.standard_normal(SIZES[-1]).astype(dtype), local_grads


def follow(dense, gradient, local_grads=None):
    terms = [0.0] * (len(dense) + 1) if local_grads is None else local_grads
    out = [gradient + terms[-1]]
    for matrix, term in zip(reversed(dense), reversed(terms[:-1]), strict=True):
        out.append(matrix @ out[-1] + term)
    return out[::-1]


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("method", "levels"), [("auto", None), *METHODS])
def test_lists_of_matrices_whose_sizes_chain(method, levels, local):
    dense, gradient, local_grads = ragged(np.random.default_rng(6))
    local_grads = local_grads if local else None
    mixed = [matrix if t % 3 == 2 else sparse.csr_array(matrix) for t, matrix in enumerate(dense)]
    for links in (dense, [sparse.csr_array(m) for m in dense], [sparse.csc_matrix(m) for m in dense], mixed):
        result = bp.backprop(links, gradient, local_grads=local_grads, method=method, levels=levels)
        for got, expected in zip(result, follow(dense, gradient, local_grads), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@or_a_gpu
@pytest.mark.parametrize(("method", "levels"), [("auto", None), *METHODS])
def test_batched_csr(method, levels, backend, few_threads):
    rng = np.random.default_rng(7)
    dtype = np.float32 if backend == "cuda" else np.float64
    dense, _, _ = ragged(rng)
    links, matrices = [], []
    for t, matrix in enumerate(dense):
        pattern = sparse.csr_array(matrix != 0)
        values = rng.standard_normal((1 if t % 3 == 1 else 3, pattern.nnz)).astype(dtype)  # some are of all samples
        links.append(bp.BatchedCSR(values, pattern.indices, pattern.indptr, matrix.shape))
        values = np.broadcast_to(values, (3, pattern.nnz))
        matrices.append([sparse.csr_array((v, pattern.indices, pattern.indptr), matrix.shape) for v in values])
    gradient = rng.standard_normal((3, 2)).astype(dtype)
    local_grads = [rng.standard_normal((3, n)).astype(dtype) for n in SIZES]
    before = [link.values.copy() for link in links]
    result = bp.backprop(links, gradient, local_grads=local_grads, method=method, levels=levels, backend=backend)
    assert all(np.array_equal(link.values, values) for link, values in zip(links, before, strict=True))
    for b in range(3):
        expected = follow([m[b].toarray() for m in matrices], gradient[b], [c[b] for c in local_grads])
        for got, want in zip(result, expected, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got[b], want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * np.abs(want).max())


@pytest.mark.full
@pytest.mark.gpu
def test_more_columns_than_shared_memory_holds():
    rng, size = np.random.default_rng(0), 20000
    patterns = [sparse.random_array((size, size), density=3 / size, format="csr", rng=rng) for _ in range(4)]
    links = [bp.BatchedCSR(rng.uniform(-1, 1, (2, a.nnz)).astype("f"), a.indices, a.indptr, a.shape) for a in patterns]
    gradient = rng.standard_normal((2, size)).astype("f")
    expected = bp.backprop(links, gradient, method="linear", backend="numpy")
    for method, levels in FEW[:3]:
        found = bp.backprop(links, gradient, method=method, levels=levels, backend="cuda")
        for here, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(here, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e34])
def test_batched_csr_at_the_ends_of_the_range(size, backend):
    rng = np.random.default_rng(8)
    patterns = [sparse.csr_array(rng.random((4, 4)) < 0.7) for _ in range(6)]
    links = []
    for t, each in enumerate(patterns):
        values = rng.uniform(1, 2, (2, each.nnz)) * (size if t % 2 else 1 / size if size > 1e-40 else 1e34)
        links.append(bp.BatchedCSR(values.astype(np.float32), each.indices, each.indptr, (4, 4)))
    gradient = np.ones((2, 4), np.float32)
    expected = bp.backprop(links, gradient, method="linear", backend="numpy")
    for method, levels in METHODS:
        found = bp.backprop(links, gradient, method=method, levels=levels, backend=backend)
        for got, want in zip(found, expected, strict=True):
            assert np.all(np.abs(got - want) <= 1e-4 * np.abs(want).max() + 1e-43)


@each_backend
@pytest.mark.parametrize("t", [0, 1])
def test_batched_csr_whose_values_were_given_another_shape(t, backend):
    links = [bp.BatchedCSR(np.ones((2, 3)), [0, 1, 2], [0, 1, 2, 3], (3, 3)) for _ in range(2)]
    with pytest.raises(AttributeError, match="values of this BatchedCSR cannot be replaced; make another BatchedCSR"):
        links[t].values = np.ones((2, 2))
    links[t].values.resize((2, 2), refcheck=False)
    message = rf"jacobians_T\[{t}\].values must have shape \(B, nnz\) = \(2, 3\) or .* got \(2, 2"
    with pytest.raises(ValueError, match=message):
        bp.backprop(links, np.ones((2, 3)), backend=backend)


def test_empty_list():
    gradient = np.arange(3.0)
    (result,) = bp.backprop([], gradient, method="blelloch")
    assert np.array_equal(result, gradient) and result is not gradient
    for backend in ("numpy", "cpu"):  # a batch, of which no link says so
        (result,) = bp.backprop([], gradient[None], method="blelloch", backend=backend)
        assert np.array_equal(result, gradient[None])


# Bad input.

J, G, C = (np.ones(shape) for shape in [(4, 2, 3, 3), (2, 3), (5, 2, 3)])


@pytest.mark.parametrize("terms", [False, True])
@pytest.mark.parametrize("shared", [(), (1, 2)])
@pytest.mark.parametrize("method", ["linear", "blelloch", "truncated", "chunked", "auto"])
def test_a_list_of_links_of_a_batch(method, shared, terms):
    rng, sizes, B = np.random.default_rng(0), [3, 4, 2, 5, 5], 6
    links = [rng.standard_normal((1 if t in shared else B, *sizes[t : t + 2])) for t in range(4)]
    grad, local = rng.standard_normal((B, 5)), [rng.standard_normal((B, n)) for n in sizes] if terms else None
    levels = 1 if method == "truncated" else None
    found = bp.backprop(links, grad, local_grads=local, method=method, levels=levels)
    for b in range(B):
        one = [link[b if len(link) > 1 else 0] for link in links]
        own = [term[b] for term in local] if terms else None
        expected = bp.backprop(one, grad[b], local_grads=own, method="linear")
        for here, there in zip(found, expected, strict=True):
            assert here.shape == (B, *there.shape)
            np.testing.assert_allclose(here[b], there, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("links", "grad_output", "terms"), [
    (J[:, 0], G[0], C[:, 0]), (J[:, :1], G[0], C[:, 0]),
    (bp.StructuredChain(J[:1, 0], np.ones((1, 4, 1, 3))), G[0], C[:, 0]),
    ([bp.BatchedCSR(np.ones((1, 3)), [0, 1, 2], [0, 1, 2, 3], (3, 3))] * 4, G[0], list(C[:, 0])),
])  # fmt: skip
def test_one_sample_becomes_a_batch_as_the_error_says(links, grad_output, terms):
    for _ in range(8):
        try:
            found = bp.backprop(links, grad_output, local_grads=terms)
        except ValueError as error:
            name, advice = str(error).split()[0], str(error).split(" one sample is ")[1]
            changed = eval(advice, {"grad_output": grad_output, "local_grads": terms})
            if name == "grad_output":
                grad_output = changed
            elif name == "local_grads":
                terms = changed
            else:
                terms[int(name[-2])] = changed
    assert [part.shape for part in found] == [(1, 3)] * 5


def test_missing_gpu(monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.backends.cuda_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"needs an NVIDIA GPU.*pip install"):
        bp.backprop(J, G, backend="cuda")
