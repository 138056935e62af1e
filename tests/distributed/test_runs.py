"""Runs of dense and structured chains, and of lists: the map that a run is reduced to, and the sweep, without MPI."""

import naive
import numpy as np
import pytest
from scipy import sparse

import bppsa_nb as bp
from bppsa_nb.chains import plan
from bppsa_nb.distributed import maps
from bppsa_nb.distributed.lists import ListRun
from bppsa_nb.distributed.runs import Run
from bppsa_nb.operands.dense import Affine
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.scan.operator import IDENTITY

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}
KINDS = ["dense", "shared", "rnn", "gru", "carry only"]


def make(kind, T, B, H, dtype, rng):
    """Make links that about keep a gradient's size, in numbers that float32 holds; return them also written out."""
    if kind in ("dense", "shared"):
        matrices = 1 if kind == "shared" else B
        links = np.linalg.qr(rng.standard_normal((T, matrices, H, H)))[0].astype(np.float32)
        return np.ascontiguousarray(links, dtype), np.broadcast_to(links, (T, B, H, H))
    K, carry = {"rnn": (1, None), "gru": (3, 0.1), "carry only": (0, 1)}[kind]
    weights = np.linalg.qr(rng.standard_normal((K, H, H)))[0] * np.array([1, 0.3, 0.1])[:K, None, None]
    slopes = rng.choice([-1.0, 1.0], (K, T, B, H)) * rng.uniform(0.9, 1.1, (K, T, B, H))
    arrays = [weights, slopes, None if carry is None else carry * rng.uniform(0.8, 1.2, (T, B, H))]
    arrays = [None if array is None else array.astype(np.float32) for array in arrays]
    written = naive.structured_jacobians_T(*arrays)
    return bp.StructuredChain(*(None if array is None else array.astype(dtype) for array in arrays)), written


def apply(found, gradient):
    """Take a gradient through a map."""
    after = np.zeros(2, found.dtype)
    after["kind"], after["offset"] = maps.CONSTANT, gradient
    into = found[0].copy()
    maps.combine(after[0], into)
    assert into["kind"] == maps.CONSTANT
    return into["offset"]


def gap(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("workers", [1, 4, 64])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_map_of_a_run_does_what_its_sweep_does(kind, backend, workers, monkeypatch):
    monkeypatch.setattr(plan, "workers", lambda _: workers)  # who take chunks of the run, the last of them shorter
    for T, B, H, dtype in [(1, 2, 3, np.float64), (37, 1, 2, np.float32), (101, 3, 3, np.float64)]:
        rng = np.random.default_rng([T, H])
        links, written = make(kind, T, B, H, dtype, rng)
        run = Run(links, B, backend)
        assert run.shape == (T, B, H) and run.dtype == dtype
        g, *terms = (rng.standard_normal((n, B, H)).astype(np.float32).astype(dtype) for n in (1, T, 1))
        for end, local in (None, None), (None, terms[0]), (terms[1][0], None), (terms[1][0], terms[0]):
            below = None if local is None else np.concatenate([local, np.zeros_like(g)])
            start = g[0] if end is None else g[0] + end
            oracle = naive.backprop(written, start, below)
            swept = run.sweep(start, local)
            assert swept.dtype == dtype and swept.shape == oracle.shape
            assert gap(swept, oracle) < TOLERANCE[dtype]
            assert gap(run.sweep(start, below), swept) == 0
            found = run.map(end, local)
            assert found.shape == (2,) and found["kind"].tolist() == [maps.LINEAR, maps.IDENTITY]
            assert gap(apply(found, g[0]), oracle[0]) < TOLERANCE[dtype]
            assert found["offset"][0].any() == (end is not None or local is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_links_changes_nothing_but_by_a_term_at_its_end(kind):
    links, _ = make(kind, 0, 2, 3, np.float64, np.random.default_rng(0))
    run, g = Run(links, 2, "numpy"), np.arange(6.0).reshape(2, 3)
    assert run.map(None, None)["kind"][0] == run.map(None, np.empty((0, 2, 3)))["kind"][0] == maps.IDENTITY
    assert np.array_equal(apply(run.map(np.ones((2, 3)), None), g), g + 1)
    assert np.array_equal(run.sweep(g, None), g[None])
    assert np.array_equal(run.known(g)["offset"][0], g) and run.known(g)["kind"][0] == maps.CONSTANT
    assert run.nothing()["kind"][0] == maps.IDENTITY


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_product_that_cannot_be_kept(kind, backend):
    links, _ = make(kind, 4, 2, 2, np.float32, np.random.default_rng(0))
    far = np.array([[1, 2.0**-80], [2.0**-80, 1]], np.float32)
    if kind == "rnn":
        links = bp.StructuredChain(far[None], np.ones((1, 4, 2, 2), np.float32))
    else:
        links[...] = far
    with pytest.raises(DynamicRangeError):
        Run(links, 2, backend).map(None, None)


def test_products_of_chunks_are_put_together_in_order(monkeypatch):
    monkeypatch.setattr(plan, "workers", lambda _: 5)
    rng = np.random.default_rng(3)
    links = np.triu(rng.uniform(0.5, 1, (44, 1, 2, 2)))  # products that do not commute
    whole = np.linalg.multi_dot(list(links[:, 0]))
    found = Run(links, 1, "cpu").map(None, None)[0]
    rows = found["rows"][0] * 2.0 ** found["exponents"][0][:, None]
    assert np.allclose(rows, whole.T, rtol=1e-12, atol=0)


def test_seconds_are_the_plan_s():
    links, _ = make("gru", 7, 2, 3, np.float32, np.random.default_rng(0))
    assert Run(links, 2, "numpy").costs()[:2] == plan.run_seconds(7, 2, 3, np.float32, "numpy", 3)
    links, _ = make("carry only", 7, 2, 3, np.float32, np.random.default_rng(0))
    assert Run(links, 2, "numpy").costs()[:2] == plan.run_seconds(7, 2, 3, np.float32, "numpy", 1)
    links, _ = make("shared", 7, 2, 3, np.float64, np.random.default_rng(0))
    assert Run(links, 2, "cpu").costs()[:2] == plan.run_seconds(7, 2, 3, np.float64, "cpu", 0)


def test_a_run_of_a_list_is_affine_if_any_is():
    links = [sparse.csr_array(np.ones((2, 3))), np.ones((3, 4))]
    plain, affine = (ListRun(links, 0, np.dtype(np.float64), "numpy", affine) for affine in (False, True))
    product = plain.map(None, None)
    assert not isinstance(product, Affine) and np.array_equal(product @ np.ones(4), [12, 12])
    product = affine.map(None, None)
    assert isinstance(product, Affine) and np.array_equal(product.offset, [0, 0])
    product = affine.map(None, [np.ones(2), np.ones(3)])
    assert np.array_equal(product @ np.ones(4), [16, 16])
    empty = ListRun([], 0, np.dtype(np.float64), "numpy", True)
    assert empty.map(None, None) is empty.map(None, []) is empty.nothing() is IDENTITY
    assert [g.tolist() for g in empty.sweep(np.ones(2), None)] == [[1, 1]]
