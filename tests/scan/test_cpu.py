"""The compiled dense scans: chunks of any length, and numbers at every place of the range."""

import naive
import numpy as np
import pytest

from bppsa_nb.operator import RangeLost
from bppsa_nb.scan import cpu

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
METHODS = [("blelloch", None, None), ("truncated", 2, None), *(("chunked", None, n) for n in (1, 3, 16, 1000))]


def chain(T, B, H, rng, matrices=None):
    jacobians_T = np.linalg.qr(rng.standard_normal((T, matrices or B, H, H)))[0]
    arrays = jacobians_T, rng.standard_normal((B, H)), rng.standard_normal((T + 1, B, H))
    return [np.ascontiguousarray(array, np.float32) for array in arrays]


def run(J, g, c, method, levels=None, length=None):
    """Give the twin what `bp.backprop` would."""
    return cpu.backprop(J, g if c is None else g + c[-1], c, method, levels, length)


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
    monkeypatch.setattr("bppsa_nb.workers.THREADS", threads)
    monkeypatch.setattr(cpu, "SMALL", 0)  # share out even these
    for group in (1, 2, 4):
        monkeypatch.setattr(cpu, "GROUP", group * 9 * 4)
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


@pytest.mark.parametrize("how", METHODS[:-1])  # one chunk needs no product
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_too_far_apart(dtype, how):
    step = 2.0 ** (np.finfo(dtype).maxexp // 10)
    up, down = np.diag([step, 1 / step]), np.diag([1 / step, step])
    far = np.array([up] * 9 + [down] * 9 if how[2] != 1 else [np.diag([1, np.finfo(dtype).tiny])] * 6, dtype)
    with pytest.raises(RangeLost):
        run(np.tile(far, (3, 1, 1))[:, None], np.ones((1, 2), dtype), None, *how)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_that_could_lose_a_small_entry_of_a_gradient(dtype):
    # The matrix is multiplied as it is; scaled to the gradient's large entry, the small one keeps few bits.
    info = np.finfo(dtype)
    large, small = 2.0 ** (info.maxexp // 2 - 20), 1.2345678
    links = np.array([np.eye(2), np.diag([1 / large, large]), np.eye(2), np.eye(2)], dtype)[:, None]
    g = np.array([[2.0 ** (info.maxexp - 2), small * 2.0 ** (info.minexp + 8)]], dtype)
    for how in METHODS[:-1]:
        try:
            found = run(links, g, None, *how)
        except RangeLost:
            continue
        np.testing.assert_allclose(found, naive.backprop(links, g), rtol=10 * info.eps)
