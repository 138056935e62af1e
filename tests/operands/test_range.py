"""Chunks of structured chains at the ends of the range: neither overflow nor underflow of a product is an answer."""

import logging

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bppsa_nb as bp
from bppsa_nb.chains.methods import go_back, multiply
from bppsa_nb.operands import range as rules
from bppsa_nb.operands import rows as scaled_rows
from bppsa_nb.operands import scaled_cpu
from bppsa_nb.operands.kinds import Dense, Scaled
from bppsa_nb.operands.range import DynamicRangeError

BACKENDS, by_hand = ("numpy", "cpu"), naive.structured_backprop
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value", "ignore:underflow")


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr("bppsa_nb.chains.methods.chunk_length", lambda *_: 4)


def rotations(T, B, H, rng, dtype, size=1.0):
    """Make a chain of one weight that keeps norms, but for `size` [shape=(T,)]."""
    weights = np.linalg.qr(rng.standard_normal((1, H, H)))[0]
    slopes = rng.choice([-1.0, 1.0], (1, T, B, H)) * np.broadcast_to(size, T)[:, None, None]
    return weights.astype(dtype), slopes.astype(dtype)


def gap(found, oracle):
    return (np.abs(found - oracle).max(-1) / np.abs(oracle).max(-1)).max()


@each_backend
@each_dtype
@pytest.mark.parametrize("power", [-1, 1])
@pytest.mark.parametrize("length", [1, 5, 32, 50, 64])
def test_hills(length, power, dtype, backend):
    # 32 steps are a factor beyond the dtype; the gradient stays well inside.
    rate = 2.0 ** (power * np.finfo(dtype).maxexp // 21)
    rng, T = np.random.default_rng(0), 320
    weights, slopes = rotations(T, 2, 4, rng, dtype, np.where(np.arange(T) // 32 % 2 == 0, rate, 1 / rate))
    g = (rng.standard_normal((2, 4)) * rate**16).astype(dtype)
    # And does not raise DynamicRangeError.
    found = go_back(bp.StructuredChain(weights, slopes), g, None, backend, "chunked", length=length)
    assert gap(found, by_hand(weights, slopes, None, g)) < {np.float32: 1e-5, np.float64: 1e-12}[dtype]


# The rules themselves: as generous as they may be, and no more; and what they make of operands at their very edge.


@each_dtype
def test_rules_are_as_tight_as_they_are_derived(dtype):
    info = np.finfo(dtype)
    least = np.ldexp(dtype(0.5), rules.spread(info.minexp))  # beside a largest entry of 1/2, in a narrow operand
    assert least * least == info.tiny and (least / 2) * least < info.tiny and np.exp2(rules.half(info.minexp)) == least
    assert 2 * rules.ample(info.maxexp) + 32 == info.maxexp  # products of moderate numbers, and 2**32 of them
    # What 256 terms lose is less than the last digit of what they are added to.
    assert rules.threshold(dtype) * float(info.eps) == 256 * float(info.tiny)
    assert rules.threshold(dtype) == 2.0 ** rules.blurred(info.minexp, info.nmant)
    assert [rules.shift(power, -126) for power in (-126, -127, 5)] == [-126, -126, 5]
    assert [rules.part(power, -126, 128) for power in (-127, -126, 127, 128)] == [-126, -126, 127, 127]


def keeps(call, *arguments):
    """Tell whether an operand or a product is made, instead of a DynamicRangeError."""
    try:
        call(*arguments)
    except DynamicRangeError:
        return False
    return True


@each_dtype
def test_entries_are_refused_just_beyond_what_is_narrow(dtype):
    edge = np.ldexp(dtype(1), rules.spread(np.finfo(dtype).minexp))
    for entry, kept in ((edge, True), (np.nextafter(edge, dtype(0)), False)):
        row = np.array([1, entry], dtype)
        assert keeps(Scaled, Dense(row[None])) is kept
        assert keeps(scaled_rows.normalize, row[None].copy(), np.zeros(1, int)) is kept
        assert scaled_cpu.normalize(row.copy())[1] == kept


@each_dtype
def test_sums_are_refused_just_below_where_they_blur(dtype):
    edge, half = dtype(rules.threshold(dtype)), np.eye(2, dtype=dtype) / 2
    for entry, kept in ((edge, True), (np.nextafter(edge, dtype(0)), False)):
        wide = np.array([1, 4 * entry], dtype)  # scaled to [1/2, 2 entry], and then halved by the matrix
        assert keeps(Scaled(Dense(half)).__matmul__, wide) is kept
        assert keeps(scaled_rows.apply, half[None], np.zeros((1, 2), int), wide[None, None]) is kept
        assert scaled_cpu.matvec(half, 0, wide, np.empty(2, dtype)) == kept


@each_dtype
def test_apply_rows(dtype):
    info = np.finfo(dtype)
    wide = info.maxexp - 4
    rows = np.array([[[0.5, 0.75], [-0.5, 0.5]], [[0.5, 0.0], [0.0, 0.0]]], dtype)
    # Powers that no float holds cancel; a row of zeros may have any power.
    exponents = np.array([[3 * wide, 3 * wide + 1], [-2 * wide, 5 * wide]])
    grads = np.array([[[2.0**-wide, 2.0 ** -(wide + 1)]], [[2.0**wide, 1.0]]], dtype)
    found = scaled_rows.apply(rows, exponents - 2 * wide * np.array([[1], [-1]]), grads)
    assert found.dtype == dtype
    assert np.array_equal(found, np.array([[[0.0, 1.25]], [[2.0 ** (wide - 1), 0.0]]], dtype))
    assert np.array_equal(scaled_rows.apply(rows, exponents, 0 * grads), 0 * grads)
    # The small term would be lost, and nothing else is in its column.
    apart = np.array([[[1 / 2, 0], [0, 1 / 2]]], dtype)
    exponents = np.array([[wide, -wide]])
    with pytest.raises(DynamicRangeError):
        scaled_rows.apply(apart, exponents, np.ones((1, 1, 2), dtype))
    # Here it is lost, too, but beside what makes no difference.
    found = scaled_rows.apply(apart + 1 / 4, exponents, np.ones((1, 1, 2), dtype))
    assert np.array_equal(found, [[[0.75 * 2.0**wide, 0.25 * 2.0**wide]]])


@each_backend
@pytest.mark.parametrize("length", [1, 3, 16, 32])
@pytest.mark.parametrize("rate", [0.05, 0.3, 1])
def test_saturated_units_do_not_stop_a_chunked_scan(rate, length, backend):
    # Units with slopes of exactly zero leave rows of zeros in products whose other rows are far from 1.
    rng, T = np.random.default_rng(2), 160
    weights = (rng.standard_normal((1, 8, 8)) * rate).astype(np.float32)
    slopes = rng.uniform(0.5, 1, (1, T, 2, 8)).astype(np.float32)
    slopes[:, ::7, :, 2] = slopes[:, 31::32, 0, 3] = 0
    g = np.full((2, 8), 1e30 if rate < 1 else 1e-30, np.float32)
    links = bp.StructuredChain(weights, slopes)
    found = go_back(links, g, None, backend, "chunked", length=length)
    linear = go_back(links, g, None, backend, "linear")
    alive = (np.abs(linear) > 1e-30).all((1, 2)) & np.isfinite(linear).all((1, 2))
    assert alive.sum() > 40
    assert gap(found[alive], linear[alive]) < 1e-4


@each_backend
@pytest.mark.parametrize("saturated", [1e-30, 1e-38, 1e-45])
def test_gates_that_are_almost_shut(saturated, backend):
    # Of a GRU: three sums that hardly move some of the units, and a carry of one.
    rng, (T, B, H) = np.random.default_rng(3), (24, 2, 4)
    weights = rng.uniform(0.1, 1, (3, H, H)).astype(np.float32)
    slopes = rng.uniform(0.1, 0.5, (3, T, B, H)).astype(np.float32)
    carry = rng.uniform(0.1, 0.9, (T, B, H)).astype(np.float32)
    slopes[:, ::3, 0, 1], carry[::3, 0, 1] = saturated, 1
    slopes[:, 5], carry[5] = 0, 1
    links = bp.StructuredChain(weights, slopes, carry)
    g = rng.uniform(0.5, 1, (B, H)).astype(np.float32)
    found = bp.backprop(links, g, method="chunked", backend=backend)
    np.testing.assert_allclose(found, by_hand(weights, slopes, carry, g), rtol=1e-5)  # all are sums of positive numbers


UNDERFLOWS = [(1e-40, 0.1, 1e20), (1e-45, 1, 1e35), (1e-40, 1e-10, 1e30), (1e-30, 0.3, 1e10)]
UNDERFLOWS += [(1e-30, 1e20, 1), (3e-45, 1e8, 1e30)]


@pytest.mark.parametrize(("slope", "weight", "gradient"), UNDERFLOWS)
def test_terms_that_underflow_in_a_product_only(slope, weight, gradient):
    # One step shrinks the gradient, which is large enough for that; unit vectors are not.
    turn = np.array([[1, 0.7], [0.3, 1]], np.float32) / np.float32(1.5)
    weights = np.stack([turn, np.float32(weight) * turn])
    slopes = np.ones((2, 12, 1, 2), np.float32)
    slopes[0, 6], slopes[1], slopes[1, 6] = 0, 0, slope
    g = np.full((1, 2), gradient, np.float32)
    expected = by_hand(weights, slopes, None, g)
    assert (expected > 1e-35).all() and (expected < 1e38).all()
    found = bp.backprop(bp.StructuredChain(weights, slopes), g, method="chunked", backend="numpy")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_carries_that_underflow_in_a_product_only():
    carry = np.full((12, 1, 2), 0.7, np.float32)
    carry[6] = 1e-41
    links = bp.StructuredChain(np.ones((0, 2, 2), np.float32), np.ones((0, *carry.shape), np.float32), carry)
    g = np.full((1, 2), 1e30, np.float32)
    found = bp.backprop(links, g, method="chunked", backend="numpy")
    np.testing.assert_allclose(found, by_hand(links.weights, links.slopes, carry, g), rtol=1e-5)


def test_a_weight_that_brings_back_what_underflowed():
    # Slope times weight stays in range, the entry times the slope does not.
    weights = np.exp2(np.array([[[60, 100], [60, 100]]], np.float32))
    slopes = np.full((1, 6, 1, 2), 2.0**-100, np.float32)
    slopes[0, 2] = [[2.0**-122, 0]]
    g, links = np.full((1, 2), 2.0**100, np.float32), bp.StructuredChain(weights, slopes)
    expected = by_hand(weights, slopes, None, g)
    assert (expected > 1e-30).all()
    for backend in BACKENDS:
        with pytest.raises(DynamicRangeError):
            go_back(links, g, None, backend, "chunked", length=2)
        np.testing.assert_allclose(go_back(links, g, None, backend, "linear"), expected, rtol=1e-5)


@each_backend
def test_a_product_that_overflows_in_one_step(backend):
    weights, slopes = np.full((1, 1, 1), 1e20, np.float32), np.full((1, 6, 1, 1), 1e-20, np.float32)
    slopes[0, 3] = 1e20
    links, g = bp.StructuredChain(weights, slopes), np.full((1, 1), 1e-10, np.float32)
    with pytest.raises(DynamicRangeError):
        go_back(links, g, None, backend, "chunked", length=2)
    np.testing.assert_allclose(go_back(links, g, None, backend, "linear"), by_hand(weights, slopes, None, g), rtol=1e-5)


@each_backend
@pytest.mark.parametrize("where", [np.s_[:, 1], np.s_[:, :, 1], np.s_[0], np.s_[:]])
def test_weights_that_are_zero(where, backend, caplog):
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((2, 3, 3))
    weights[where] = 0
    slopes, g, c = rng.standard_normal((2, 20, 2, 3)), rng.standard_normal((2, 3)), rng.standard_normal((21, 2, 3))
    for local in (None, c):
        oracle = by_hand(weights, slopes, None, g, local)
        with caplog.at_level(logging.INFO, "bppsa_nb"):
            links = bp.StructuredChain(weights, slopes)
            found = bp.backprop(links, g, local_grads=local, method="chunked", backend=backend)
        assert not caplog.records
        assert (np.abs(found - oracle) <= 1e-12 * np.abs(oracle).max((1, 2), keepdims=True)).all()


def positive(rng, shape, spread, zeros):
    """Numbers in float32 of any size within 2**±spread, some of them zero."""
    numbers = np.exp2(rng.uniform(-spread, spread, shape)).astype(np.float32)
    numbers[rng.random(shape) < zeros] = 0
    return numbers


@given(st.data())
@settings(max_examples=150)
def test_every_entry_is_what_the_linear_scan_gives(data):
    """Sums of positive numbers have no cancellation: every entry must be right, however small."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    T, H, length = data.draw(st.integers(3, 12)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    K = data.draw(st.integers(0, 2))
    spread = st.sampled_from([0, 1, 20, 60, 140])
    zeros = st.sampled_from([0, 0.3])
    weights = positive(rng, (K, H, H), data.draw(spread), data.draw(zeros))
    slopes = positive(rng, (K, T, 1, H), data.draw(spread), data.draw(zeros))
    with_carry = K == 0 or data.draw(st.booleans())
    carry = positive(rng, (T, 1, H), data.draw(spread), data.draw(zeros)) if with_carry else None
    g, c = positive(rng, (1, H), data.draw(spread), 0), positive(rng, (T + 1, 1, H), data.draw(spread), 0.5)
    local = c if data.draw(st.booleans()) else None
    arrays = [weights, slopes, carry, g, local]
    if not all(np.isfinite(each).all() for each in arrays if each is not None):
        return
    links = bp.StructuredChain(weights, slopes, carry)
    start = g if local is None else g + local[-1]
    with np.errstate(all="ignore"):
        exact = by_hand(weights, slopes, carry, g, local)
        for backend in BACKENDS:
            linear = go_back(links, start, local, backend, "linear")
            try:
                found = go_back(links, start, local, backend, "chunked", length=length)
            except DynamicRangeError:
                continue
            if np.isfinite(found).all():  # the linear scan computes what is not
                right = np.abs(linear - exact) <= 1e-5 * np.abs(exact)
                # Where the linear scan has every entry, whether it is small or not.
                kept = np.flip(np.logical_and.accumulate(np.flip(right.all((1, 2)))))
                np.testing.assert_allclose(found[kept], exact[kept], rtol=1e-4)


# The paper's cells as they are initialized: products of their Jacobians shrink fast, and stay in range.


@each_backend
@pytest.mark.parametrize("kind", [bp.RNN, bp.GRU])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cells_never_fall_back(dtype, kind, backend, caplog, monkeypatch):
    monkeypatch.setattr("bppsa_nb.chains.methods.chunk_length", lambda *_: 25)
    rng = np.random.default_rng(5)
    model = kind(3, 20, 4, num_layers=2, rng=rng, dtype=dtype)
    activations = model.forward(rng.standard_normal((300, 2, 3)).astype(dtype) * 3, backend=backend)
    with caplog.at_level(logging.INFO, "bppsa_nb"):
        model.backward(activations, rng.standard_normal((2, 4)).astype(dtype), "chunked", backend)
    assert not caplog.records


@each_backend
@each_dtype
def test_products_of_chunks_that_cannot_be_kept(dtype, backend):
    tiny = np.array(2.0 ** (np.finfo(dtype).minexp * 3 // 4), dtype)
    weights, slopes = np.array([[[1, tiny], [1, 1]]], dtype), np.ones((1, 2, 1, 2), dtype)
    with pytest.raises(DynamicRangeError):
        multiply(bp.StructuredChain(weights.swapaxes(1, 2), slopes), 1, 2, backend)
    hills = np.array([2.0**50, 2.0**-50], dtype)
    weights, slopes = rotations(60, 2, 4, np.random.default_rng(0), dtype, hills[[0] * 30 + [1] * 30])
    rows, exponents = multiply(bp.StructuredChain(weights, slopes), 2, 30, backend)
    assert np.isfinite(rows).all() and (exponents[0] > 1490).all() and (exponents[1] < -1490).all()
