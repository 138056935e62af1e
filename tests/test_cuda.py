"""The CUDA kernels on a GPU, or from their PTX with every access watched; `test_machine_code.py` has the other gate."""

from contextlib import nullcontext

import numpy as np
import pytest
from chain_draws import METHODS, TOLERANCE, cast, chain, error
from rings import large, more
from scipy import sparse
from texts import beside

import bppsa_nb as bp
from bppsa_nb.cells import layer as plain_layer
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.cell import Cell
from bppsa_nb.chains import levels_cuda, methods_cuda, plan
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.chains.kernels_cuda import NOTHING
from bppsa_nb.chains.methods import go_back
from bppsa_nb.machine import arrays_cuda, backends, items_cuda
from bppsa_nb.machine.cuda import SHARED_BYTES, in_registers, row_of, shared_bytes
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import products, products_cpu, products_cuda
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.sparse import PlannedProduct

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_levels_refuse_matrices_that_do_not_fit(dtype):
    itemsize = np.dtype(dtype).itemsize
    most, fits = plan.LARGEST[itemsize], lambda H: (H + 1) * row_of(H) * itemsize <= SHARED_BYTES
    assert [H for H in range(1, 300) if fits(H) and in_registers(H, np.dtype(dtype))] == list(range(1, most + 1))
    links, g = np.ones((9, 1, most + 1, most + 1), dtype), np.ones((1, most + 1), dtype)
    for method, levels in (("blelloch", None), ("truncated", 2)):
        with pytest.raises(ValueError, match=f"at most {most} x {most} in float.*H = {most + 1}; use method='chunked'"):
            bp.backprop(links, g, method=method, levels=levels, backend="cuda")
    for T in (100, 10**6):
        assert plan.explain(T, 1, most + 1, dtype, "cuda").method != "blelloch"


def test_extremes_are_found_wherever_they_stand():
    """Nine threads, which are no power of two, with an entry each."""
    for place in range(9):
        for entry, exponent, lost in ((1024, 0, 0), (2.0**60, 61, 0), (2.0**-70, 1, 1)):
            matrix = np.ones((1, 1, 3, 3), np.float32)
            matrix.flat[place] = entry
            mats, exps, _, found = levels_cuda.workspace(1, 1, 1, 3, np.float32)
            methods_cuda.launch_prepare(methods_cuda.Links(matrix), mats, exps, found)
            assert exps.copy_to_host() == exponent and found.copy_to_host() == lost
            assert np.array_equal(np.ldexp(mats.copy_to_host(), exponent), matrix)


@pytest.mark.outer
@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("K", [0, 1])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_gradient_that_overflows_between_chunks_is_what_the_linear_scan_gives(dtype, K):
    """Where it does, and how far beyond the range."""
    rate = dtype(2.0 ** (np.finfo(dtype).maxexp // 3))
    links, g = np.full((9, 1, 1, 1), rate), np.ones((1, 1), dtype)
    if K:
        links = bp.StructuredChain(np.ones((1, 1, 1), dtype), links[None, ..., 0])
    with plan.chunks_of(2):
        for start in (1, -1, dtype(2.0 ** np.finfo(dtype).minexp)):
            linear = bp.backprop(links, start * g, method="linear", backend="numpy")
            found = bp.backprop(links, start * g, method="chunked", backend="cuda")
            assert np.array_equal(found, linear) and 3 <= np.isinf(linear).sum() <= 6


@pytest.mark.parametrize("dtype", [np.float32, more(np.float64)])
def test_gates_that_are_open_or_closed(dtype):
    model = bp.GRU(2, 3, 4, rng=0, dtype=dtype)
    for size in (1, 30, 1e3, 1e30):
        x = dtype(size) * np.array([[[1, 1], [-1, -1]], [[-1, 1], [1, -1]]], dtype)
        expected, found = (model.forward(x, backend=backend) for backend in ("numpy", "cuda"))
        assert np.allclose(found.gates[:3], expected.gates[:3], rtol=0, atol=1e-5)
        assert np.allclose(found.hidden, expected.hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("gates", "split", "T", "B", "H", "I", "dtype"), [
    (1, 0, 100, 16, 20, 1, np.float32), more(3, 1, 50, 7, 20, 1, np.float64), (3, 1, 1, 3, 5, 38, np.float32),
    more(4, 2, 5, 3, 6, 2, np.float64), more(1, 0, 3, 2, 150, 70, np.float64),
    large(1, 0, 1000, 256, 20, 1, np.float32), large(3, 1, 259, 16, 600, 38, np.float32),
])  # fmt: skip
def test_weight_gradients_of_many_tiles(gates, split, T, B, H, I, dtype, monkeypatch):
    monkeypatch.setattr(weight_gradients, "PARTS", 3 if backends.emulated() else 264)
    rng, cell = np.random.default_rng(0), Cell(None, None, gates, split)
    shapes = (T, B, I), (T + 1, B, H), (cell.preacts, T, B, H)
    x, hidden, at = arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    grads = [cuda.device_array(shape, dtype) for shape in ((gates * H, I), (gates * H, H), gates * H, gates * H)]
    parts = cuda.device_array(weight_gradients.parts_of(T * B, cell.preacts * H, I + 1 + H), dtype)
    weight_gradients.launch_gradients(*map(cuda.to_device, arrays), (I, cell.split), parts, grads)
    left = plain_layer.parameter_gradients(cell, x, hidden[None], at)
    for name, found in zip(cell.names, grads, strict=True):
        expected, left = np.split(left, [found.size])
        bound, found = TOLERANCE[dtype] * np.abs(expected).max(), found.copy_to_host()
        np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=0, atol=bound, err_msg=name)
    assert not left.size


def test_every_part_of_weight_gradients_is_added():
    parts = np.random.default_rng(0).standard_normal((131, 1, 3)).astype(np.float32)  # of one gate, unit and input
    grads = [cuda.device_array(shape, np.float32) for shape in ((1, 1), (1, 1), 1, 1)]
    weight_gradients.sum_parts[1, weight_gradients._BLOCK](cuda.to_device(parts), 1, 1, 0, *grads)
    found, (of_x, bias, of_hidden) = [grad.copy_to_host().item() for grad in grads], parts.astype(float).sum((0, 1))
    np.testing.assert_allclose(found, [of_x, of_hidden, bias, bias], atol=1e-5)


@pytest.mark.parametrize("T", [0, 3, large(50)])
def test_the_last_loss_term_of_a_sweep_may_be_missing(T):
    links, grad_output, terms = cast(np.float32, *chain(T, 2, 3, np.random.default_rng(T), local=True))
    assert np.array_equal(*(go_back(links, grad_output, each, "cuda", "linear") for each in (terms, terms[:T])))


@pytest.mark.parametrize("team", [1, more(2)])
@pytest.mark.parametrize("factor", [2.0**-30, 2.0**30])
def test_chunks_whose_products_leave_the_range(factor, team, monkeypatch):
    monkeypatch.setattr(methods_cuda, "team_of", lambda *_: team)
    # The product of the middle chunk is out of range, the gradient never is.
    slopes = np.full((1, 20, 1, 3), 1 / factor, np.float32)
    slopes[:, 8:16], slopes[:, :4] = factor, 1
    weights = np.array([[[0.5, -1, 0], [1, 0.5, 0], [0, 0, 1]]], np.float32)
    links, grad_output = StructuredChain(weights, slopes), np.ones((1, 3), np.float32)
    found = go_back(links, grad_output, None, "cuda", "chunked", length=8)
    np.testing.assert_allclose(found, go_back(links, grad_output, None, "numpy", "linear"), rtol=1e-5)
    # Slopes so small that terms are lost, though rows are scaled.
    links = StructuredChain(weights, np.full((1, 20, 1, 3), 1e-38, np.float32))
    slopes, carry = np.zeros((3, 16, 1, 3), np.float32), np.zeros((16, 1, 3), np.float32)
    slopes[0], slopes[1, 9] = (factor, 1 / factor, 1), 1  # entries are mixed once, then driven apart
    apart = StructuredChain(np.array([np.eye(3), np.ones((3, 3)), np.eye(3)], np.float32), slopes, carry)
    wide = np.eye(3) + np.float32([[0, 2.0**-65, 0], [1, 0, 0], [0, 0, 0]])
    wide = StructuredChain(wide[None].astype(np.float32), np.ones((1, 20, 1, 3), np.float32))
    for case in (links, apart, wide):
        for backend in ("numpy", "cuda"):
            with pytest.raises(DynamicRangeError), np.errstate(all="ignore"):
                go_back(case, grad_output, None, backend, "chunked", length=5)


@pytest.mark.parametrize("team", [1, more(2)])
def test_a_row_of_zeros_does_not_stop_chunks(team, monkeypatch):
    monkeypatch.setattr(methods_cuda, "team_of", lambda *_: team)
    # One unit is saturated where the middle chunk ends; the other's row goes far from 1, and the gradient need not.
    slopes = np.ones((1, 15, 1, 3), np.float32)
    slopes[:, 5:10], slopes[0, 9, 0, 1] = 2.0**-20, 0
    links = StructuredChain(np.array([[[0.5, -1, 0], [1, 0.5, 0], [0, 0, 1]]], np.float32), slopes)
    grad_output = np.full((1, 3), 2.0**60, np.float32)
    rows, powers = methods_cuda.multiply(links, 3, 5)
    assert np.array_equal(powers == NOTHING, ~rows.any(-1)) and (powers == NOTHING).any()
    found = go_back(links, grad_output, None, "cuda", "chunked", length=5)  # and does not raise DynamicRangeError
    np.testing.assert_allclose(found, go_back(links, grad_output, None, "numpy", "linear"), rtol=1e-5)


@pytest.mark.parametrize("registers", [128, 0])
@pytest.mark.parametrize("dtype", [np.float32, more(np.float64)])
def test_gradients_far_from_one_between_chunks(dtype, registers, monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.cuda.REGISTERS", registers)
    rng, most, (B, H) = np.random.default_rng(0), np.finfo(dtype).maxexp, (8, 3)
    # Where two terms cancel, and the third is too far below them: the kernel for one H scales nothing, and so loses
    # nothing, unless the gradient is too large for that.
    for top, terms_are_lost in ((None, False), (0, registers == 0), (most - 9, True)):
        powers = rng.integers(9 - most, most - 9, (B, 1)) + rng.integers(-9, 9, (B, H))
        rows = rng.uniform(0.5, 1, (1, B, H, H)).astype(dtype)
        # Of half the samples, products bring the gradient back to one; of the others, anywhere.
        exponents = np.where(np.arange(B)[:, None] % 2, -powers, rng.integers(-most, most, (B, 1)))
        exponents[5], exponents[7] = (most - 1, 0, 0) - powers[5], -most - 3 - powers[7]  # to either end of the range
        if top is not None:
            powers[3], exponents[3], rows[0, 3] = (top, top, top + 16 - most), 0, [[0.5], [-0.5], [0.5]]
        grads = np.ldexp(np.ones((B, H), dtype), powers)
        chunks = methods_cuda.Scan((15, B, H), np.dtype(dtype), 0, "chunked", length=5)  # one product is crossed
        chunks.products.copy_to_device(rows)
        chunks.exponents.copy_to_device(exponents[None].astype(np.int32))
        chunks.ends.copy_to_device(np.stack([grads, grads, grads]))
        chunks.stream = 0
        chunks.apply_products(False)
        expected = sum(np.ldexp(np.longdouble(rows[0, :, j]), (powers + exponents)[:, j, None]) for j in range(H))
        with np.errstate(all="ignore"):
            expected = expected.astype(dtype)
        assert chunks.is_lost() == terms_are_lost
        least = np.finfo(dtype).smallest_subnormal
        np.testing.assert_allclose(chunks.ends.copy_to_host()[0], expected, rtol=1e-6, atol=2 * least)


@pytest.mark.parametrize("dtype", [np.float32, more(np.float64)])
def test_range_is_kept_exactly_where_the_cpu_keeps_it(dtype):
    """Entries all over the range, in links and in gradients: both twins keep them, or neither does."""
    draws = 30
    rng, maxexp, kept = np.random.default_rng(0), np.finfo(dtype).maxexp, []
    for _ in range(draws):
        T, H, B = rng.integers(1, 6), rng.integers(1, 4) if dtype == np.float64 else 3, rng.integers(1, 3)
        spread, middle = rng.uniform(0, 0.9, 2) * maxexp
        powers = rng.uniform(-spread, spread, (T, B, H, H)) / 2 + middle * rng.choice([-1, 0, 0, 1], (T, 1, 1, 1)) / 2
        there = (rng.random(powers.shape) < 0.7).astype(dtype)
        jacobians_T = np.ldexp(there, np.rint(powers).astype(int))
        reach = rng.uniform(0, 0.9) * maxexp
        grad_output = np.ldexp(dtype(1), np.rint(rng.uniform(-reach, reach, (B, H))).astype(int))
        found = []
        for backend in ("cpu", "cuda"):
            try:
                with np.errstate(all="ignore"):
                    found.append(go_back(jacobians_T, grad_output, None, backend, "blelloch"))
            except DynamicRangeError:
                found.append(None)
        kept.append(found[0] is not None)
        assert (found[0] is None) == (found[1] is None)
        if kept[-1]:
            np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert draws / 5 < sum(kept) < draws * 4 / 5


@pytest.mark.parametrize(
    ("T", "B", "H"), [(0, 2, 3), (1, 1, 3), (4, 2, 3), large(500, 16, 20)]
)
@pytest.mark.parametrize("dtype", [np.float32, more(np.float64)])
def test_arrays_on_the_gpu_stay_there(T, B, H, dtype, fetched):
    rng = np.random.default_rng([T, B, H])
    jacobians_T, grad_output, local_grads = cast(dtype, *chain(T, B, H, rng, local=True))
    weights, slopes, carry = (
        rng.uniform(-1, 1, shape).astype(dtype) / 3 for shape in ((3, H, H), (3, T, B, H), (T, B, H))
    )
    there = [cuda.to_device(array) for array in (weights, slopes, carry)]
    chains = {
        "dense": (jacobians_T, cuda.to_device(jacobians_T)),
        "shared": (np.ascontiguousarray(jacobians_T[:, 0]), cuda.to_device(np.ascontiguousarray(jacobians_T[:, 0]))),
        "structured": (bp.StructuredChain(weights, slopes, carry), bp.StructuredChain(*there)),
    }
    for here, there in chains.values():
        for local, (method, levels) in zip((None, local_grads) * 3, METHODS, strict=False):
            expected = bp.backprop(here, grad_output, local_grads=local, backend="numpy")
            terms = None if local is None else cuda.to_device(local)
            fetched.clear()
            found = bp.backprop(there, cuda.to_device(grad_output), local_grads=terms, method=method, levels=levels)
            assert max(fetched, default=1) == 1  # whether all is finite and in range
            assert found.dtype == dtype
            assert error(found.copy_to_host(), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("cell", [bp.RNN, more(bp.GRU)])
@pytest.mark.parametrize(("T", "B", "L"), [more(4, 2, 1), (3, 2, 2), large(300, 16, 2)])
def test_models_take_and_return_arrays_on_the_gpu(T, B, L, cell, fetched):
    rng = np.random.default_rng([T, B, L])
    model = cell(2, 3, 4, L, rng=0)
    x, h0, grad_logits = (rng.standard_normal(shape).astype(np.float32) for shape in ((T, B, 2), (L, B, 3), (B, 4)))
    for initial in (None, h0):
        expected = model.forward(x, initial, backend="numpy")
        fetched.clear()
        found = model.forward(cuda.to_device(x), initial if initial is None else cuda.to_device(initial))
        assert max(fetched) == 1 or found.solved  # what chunks say of themselves is looked at here
        for name in ("hidden", "logits") + (() if found.gates is None else ("gates",)):
            np.testing.assert_allclose(getattr(found, name).copy_to_host(), getattr(expected, name), atol=1e-5)
        for method in ("linear", "chunked", "blelloch", "auto"):
            grads = model.backward(expected, grad_logits, method, backend="numpy")
            fetched.clear()
            there = model.backward(found, cuda.to_device(grad_logits), method)
            assert max(fetched) == 1 and list(there) == list(grads)
            for name, grad in there.items():
                np.testing.assert_allclose(grad.copy_to_host(), grads[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_what_arrays_on_the_gpu_are_refused_for():
    put, T, B, H = cuda.to_device, 3, 2, 2
    J, g, x, weights = cast(np.float32, *map(np.ones, ((T, B, H, H), (B, H), (T, B, 2), (1, H, H))))
    model = bp.RNN(2, 3, 4, rng=0)
    saved, nan = model.forward(put(x)), np.where(np.arange(H) > 0, *np.float32([np.nan, 1]))
    for text, match in beside(__file__)["refused"]:
        with pytest.raises((TypeError, ValueError), match=match):
            eval(text, globals() | locals())


def test_an_axis_of_one_may_have_any_stride(monkeypatch):
    found = {True: np.empty((3, 2)), False: np.empty((3, 2), order="F")}  # what Numba makes of strides that are None
    monkeypatch.setattr(arrays_cuda.cuda, "from_cuda_array_interface", lambda said, owner: found[not said["strides"]])
    rows, others = [(3, 8, 2, 4), (1, 99, 2, 4), (3, 4, 1, 99)], [(2, 4, 3, 8), (1, 4, 3, 8), (2, 99, 2, 4)]
    for m, step, n, next_ in rows + others:
        strided = np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (m, n), (step, next_))
        said = {"shape": (m, n), "typestr": "<f4", "strides": (step, next_)}
        with nullcontext() if strided.flags["C_CONTIGUOUS"] else pytest.raises(ValueError, match="must be contiguous"):
            arrays_cuda.as_device_array("x", type("There", (), {"__cuda_array_interface__": said})())
        arrays_cuda.as_device_array("x", type("There", (), {"__cuda_array_interface__": said | {"strides": None}})())


@pytest.mark.full
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)
    put = (lambda array: module.from_numpy(array).cuda()) if library == "torch" else module.asarray
    jacobians_T, grad_output, _ = cast(np.float32, *chain(100, 4, 20, np.random.default_rng(0)))
    found = bp.backprop(put(jacobians_T), put(grad_output))
    back = module.as_tensor(found, device="cuda").cpu().numpy() if library == "torch" else module.asarray(found).get()
    expected = bp.backprop(jacobians_T, grad_output, backend="numpy")
    assert error(back, expected) < TOLERANCE[np.float32]


def test_sparse_range_and_values(monkeypatch):
    if backends.emulated():  # so that loops over entries go round
        monkeypatch.setattr(items_cuda, "LANES", 64)
    count = products_cpu.PART + 13
    values = np.random.default_rng(0).uniform(-1, 1, (2, count)).astype(np.float32)
    values[0, 3] = values[1] = 0
    for shift in (0, 1, 20, count - 1):
        moved = np.roll(values, shift, axis=1)
        found, expected = products_cuda.magnitude_range(products_cuda.send(moved)), products.magnitude_range(moved)
        assert all(map(np.array_equal, found, expected))
    values[1, 7] = np.nan
    assert np.isnan(products_cuda.magnitude_range(products_cuda.send(values))[0]).tolist() == [False, True]
    on_device = products_cuda.send(values)
    for out in (None, on_device):
        scaled = products_cuda.scale(on_device, np.array([3, -2]), out).copy_to_host()
        assert np.array_equal(scaled, np.ldexp(values, [[3], [-2]]), equal_nan=True)
    twice = sparse.csr_array((np.ones(2), [0, 0], [0, 2]), shape=(1, 1))
    with pytest.raises(ValueError, match="b must name no column twice"):
        PlannedProduct(twice, twice)(np.ones(2), np.ones(2), backend="cuda")
    dense = sparse.csr_array(np.arange(1.0, 10).reshape(3, 3))
    found = PlannedProduct(dense, dense)(dense.data, dense.data, backend="cuda")
    assert np.array_equal(found, (dense @ dense).toarray().ravel())
    empty = sparse.csr_array((3, 3))
    assert PlannedProduct(empty, dense)(empty.data, dense.data, backend="cuda").shape == (0,)


def test_a_row_too_long_for_shared_memory():
    with pytest.raises(ValueError, match="hidden_size: 5 H = 25000 numbers take 100000 bytes"):
        shared_bytes(25000, 4, "hidden_size: 5 H = 25000 numbers")
