"""The compiled dense scans: chunks of any length, and numbers at every place of the range."""

import tracemalloc

import naive
import numpy as np
import pytest
from chain_draws import TOLERANCE

from bppsa_nb.chains import levels_cpu, runs_cpu
from bppsa_nb.chains.methods import go_back, multiply
from bppsa_nb.operands import scaled_cpu as arithmetic
from bppsa_nb.operands.range import DynamicRangeError

METHODS = [("blelloch", None, None), ("truncated", 2, None), *(("chunked", None, n) for n in (1, 3, 16, 1000))]


def chain(T, B, H, rng, matrices=None):
    jacobians_T = np.linalg.qr(rng.standard_normal((T, matrices or B, H, H)))[0]
    arrays = jacobians_T, rng.standard_normal((B, H)), rng.standard_normal((T + 1, B, H))
    return [np.ascontiguousarray(array, np.float32) for array in arrays]


def run(J, g, c, method, levels=None, length=None):
    """Give the twin what `bp.backprop` would."""
    g = g if c is None else g + c[-1]
    return go_back(J, g, c, "cpu", method, levels, length)


def check(J, g, c, *how, tolerance):
    oracle = naive.backprop(np.broadcast_to(J, (len(J), len(g), *J.shape[2:])), g, c)
    found = run(J, g, c, *how)
    assert found.dtype == g.dtype and found.shape == oracle.shape
    # Row by row, whose sizes may differ by more than a float's range.
    largest = np.abs(oracle).max((1, 2))
    assert (np.abs(found - oracle).max((1, 2)) <= tolerance * largest).all(), how


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 31, 1000])
@pytest.mark.parametrize("T", [0, 1, 2, 3, 6, 7, 8, 31, 32, 33, 100])
def test_chunks_of_any_length(T, length):
    for B, H, matrices in [(1, 1, 1), (2, 5, 2), (3, 4, 1), (5, 20, 5)]:
        arrays = chain(T, B, H, np.random.default_rng([T, B, H]), matrices)
        for dtype, tolerance in TOLERANCE.items():
            J, g, c = (array.astype(dtype) for array in arrays)
            for local_grads in (None, c):
                check(J, g, local_grads, "chunked", None, length, tolerance=tolerance)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("threads", [1, 2])
def test_groups_of_samples(how, threads, monkeypatch):
    monkeypatch.setattr("bppsa_nb.machine.workers.THREADS", threads)
    monkeypatch.setattr(levels_cpu, "SMALL", 0)  # share out even these
    monkeypatch.setattr(runs_cpu, "_THRESHOLD", 0)
    for group in (1, 2, 4):
        monkeypatch.setattr(levels_cpu, "GROUP", group * 9 * 4)
        monkeypatch.setattr(runs_cpu, "GROUP", group)
        for matrices in (1, 5):
            J, g, c = chain(50, 5, 3, np.random.default_rng(group), matrices)
            check(J, g, c, *how, tolerance=1e-5)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.2, 0.45, 0.9])
@pytest.mark.parametrize("period", [1, 5])
def test_links_and_products_beyond_what_is_multiplied_as_it_is(period, share, dtype, how):
    # Up by a large factor for some steps, then down as many; the gradient stays within the range.
    exponent = int(share * np.finfo(dtype).maxexp / period)
    J, g, c = chain(40, 2, 4, np.random.default_rng(period), 2)
    J, g, c = J.astype(dtype), g.astype(dtype), c.astype(dtype)
    down = np.arange(40) // period % 2 == 1  # seen from the loss, first up
    J *= np.where(down, dtype(2.0**exponent), dtype(2.0**-exponent))[::-1, None, None, None]
    tolerance = TOLERANCE[dtype]
    for shared in (slice(None), slice(1)):
        check(J[:, shared], g, None, *how, tolerance=tolerance)
    check(J, g, c, *how, tolerance=tolerance)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("size", [1e-44, 1e-39, 1e-30, 1e30])
def test_gradients_near_the_ends_of_the_range(how, size):
    J, g, _ = chain(40, 2, 4, np.random.default_rng(3))
    g *= np.float32(size)
    oracle = naive.backprop(J, g)
    found = run(J, g, None, *how)
    assert np.abs(found - oracle).max() <= 1e-5 * np.abs(oracle).max() + 40 * 4 * 1.5e-45


@pytest.mark.parametrize("how", METHODS[:2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_of_a_gradient_too_far_apart_for_a_large_matrix(dtype, how):
    # Scaled to the large entry, the small one keeps half of its bits, which the matrix lifts to where none seem lost.
    info = np.finfo(dtype)
    large, lift = 2.0 ** (info.maxexp - 28), 2.0 ** (info.nmant // 2 + info.nmant + 10)
    link = np.array([[[[0, lift], [1, 0]]]], dtype)
    small = 1 / 3 * large * 2.0 ** (info.minexp - info.nmant // 2 + 2)
    with pytest.raises(DynamicRangeError):
        run(link, np.array([[large, small]], dtype), None, *how)
    assert np.isfinite(run(link, np.array([[large, 0]], dtype), None, *how)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_which_numbers_are_multiplied_as_they_are(dtype):
    info = np.finfo(dtype)
    least, most = dtype(2.0 ** (info.minexp // 2)), dtype(2.0 ** (info.maxexp // 2 - 16))
    for moderate in (0, -0.0, 1, least, -least, most, -most):
        assert arithmetic.moderate(np.array([1, moderate], dtype))
    for other in (np.nextafter(least, 0), np.nextafter(most, np.inf), info.tiny, 1e-320, info.max, np.inf, np.nan):
        if dtype(other) != 0:
            assert not arithmetic.moderate(np.array([1, other], dtype))
            assert not arithmetic.moderate(np.array([-other], dtype))


def test_chunks_store_no_more_than_their_products():
    J, g, c = chain(1000, 2, 20, np.random.default_rng(5))
    run(J, g, c, "chunked", None, 50)
    tracemalloc.start()
    run(J, g, c, "chunked", None, 50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * (J.nbytes / 50 + 2 * c.nbytes)


# What ranks that share a chain need of it.


def test_products_of_chunks_beyond_the_range():
    links = np.repeat(np.eye(3)[None, None] * 2.0**60, 50, 0).astype(np.float32)
    found, exponents = multiply(links, 2, 25, "cpu")
    assert np.allclose(np.ldexp(found.astype(float), exponents[..., None] - 1500), np.eye(3))
    links[0, 0, 0, 1] = 2.0**-60
    with pytest.raises(DynamicRangeError):
        multiply(links, 2, 25, "cpu")
