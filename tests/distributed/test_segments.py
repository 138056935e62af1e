"""Segments of dense and structured chains, and of lists: what one is reduced to, and the sweep, without MPI."""

import naive
import numpy as np
import pytest
from chain_draws import error
from hypothesis import given
from hypothesis import strategies as st
from random_chains import TOLERANCE, Chain
from scipy import sparse
from texts import beside

import bppsa_nb as bp
from bppsa_nb import distributed
from bppsa_nb.chains import counts
from bppsa_nb.distributed.segments import DenseSegment, ListSegment, choose
from bppsa_nb.operands.kinds import Affine
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.scan.operator import IDENTITY

KINDS = ["dense", "shared", "rnn", "gru", "lstm", "carry only"]


@given(st.integers(0, 500), st.integers(1, 40))
def test_parts_are_consecutive_and_even(steps, ranks):
    parts = distributed.partition(steps, ranks)
    assert [t for part in parts for t in range(part.start, part.stop)] == list(range(steps))
    lengths = [part.stop - part.start for part in parts]
    assert len(parts) == ranks and max(lengths) - min(lengths) <= 1


def make(kind, T, dtype, seed=0):
    """Return a segment of a random chain, in numbers that float32 holds, its links written out, and a random source."""
    rng = np.random.default_rng(seed)
    chain = Chain(kind, T, dtype, rng)
    links = chain.links[:, None] if kind == "shared" else chain.links
    return links, len(chain.grad_output), chain.dense, rng


@pytest.mark.parametrize("workers", [1, 4, 64])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_segment_is_reduced_to_does_what_its_sweep_does(kind, backend, workers, monkeypatch):
    monkeypatch.setattr(counts, "workers", lambda _: workers)  # who take chunks, the last of them shorter
    for T, dtype in [(1, np.float64), (37, np.float32), (101, np.float64)]:
        links, B, written, rng = make(kind, T, dtype, T)
        segment, H = DenseSegment(links, B, backend), written.shape[-1]
        assert segment.shape == (T, B, H)
        g, *terms = (rng.standard_normal((n, B, H)).astype(np.float32).astype(dtype) for n in (1, T, 1))
        for end, local in (None, None), (None, terms[0]), (terms[1][0], None), (terms[1][0], terms[0]):
            below = None if local is None else np.concatenate([local, np.zeros_like(g)])
            start = g[0] if end is None else g[0] + end
            oracle = naive.backprop(written, start, below)
            swept = segment.sweep(start, local)
            assert swept.dtype == dtype and swept.shape == oracle.shape
            assert error(swept, oracle) < TOLERANCE[dtype]
            assert error(segment.sweep(start, below), swept) == 0
            found = segment.reduce(end, local)
            assert error(found @ g[0], oracle[0]) < TOLERANCE[dtype] and (found @ g[0]).dtype == dtype
            assert found.offset.any() == (end is not None or local is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_without_links_changes_nothing_but_by_a_term_at_its_end(kind):
    links, B, written, _ = make(kind, 0, np.float64)
    shape = B, links.shape[2]
    segment, g = DenseSegment(links, B, "numpy"), np.arange(1.0 * B * shape[1]).reshape(shape)
    assert segment.reduce(None, None) is segment.reduce(None, np.empty((0, *shape))) is IDENTITY
    assert np.array_equal(segment.reduce(np.ones(shape), None) @ g, g + 1)
    assert np.array_equal(segment.sweep(g, None), g[None])


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_product_that_cannot_be_kept(kind, backend):
    far = np.array([[1, 2.0**-80], [2.0**-80, 1]], np.float32)
    links = np.broadcast_to(far, (4, 1 if kind == "shared" else 2, 2, 2)).copy()
    if kind == "rnn":
        links = bp.StructuredChain(far[None], np.ones((1, 4, 2, 2), np.float32))
    with pytest.raises(DynamicRangeError):
        DenseSegment(links, 2, backend).reduce(None, None)


@pytest.mark.parametrize("ranks, size, batch, matrices, method", beside(__file__)["chosen"])
def test_auto_multiplies_where_ranks_have_less_to_do_than_all_of_them_in_turn(ranks, size, batch, matrices, method):
    assert choose("auto", ranks, size, batch, matrices) == method
    assert choose("linear", ranks, size, batch, matrices) == "linear"


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_knows_how_many_matrices_its_product_has(kind):
    chain = Chain(kind, 3, np.float64, np.random.default_rng(0))
    B = len(chain.grad_output)
    assert DenseSegment(chain.links, B, "numpy").matrices == (1 if kind == "shared" else B)


def test_a_segment_of_a_list_is_affine_if_any_is():
    links = [sparse.csr_array(np.ones((2, 3))), np.ones((3, 4))]
    plain, affine = (ListSegment(links, 0, np.dtype(np.float64), "numpy", affine) for affine in (False, True))
    product = plain.reduce(None, None)
    assert not isinstance(product, Affine) and np.array_equal(product @ np.ones(4), [12, 12])
    product = affine.reduce(None, None)
    assert isinstance(product, Affine) and np.array_equal(product.offset, [0, 0])
    product = affine.reduce(None, [np.ones(2), np.ones(3)])
    assert np.array_equal(product @ np.ones(4), [16, 16])
    empty = ListSegment([], 0, np.dtype(np.float64), "numpy", True)
    assert empty.reduce(None, None) is empty.reduce(None, []) is IDENTITY
    assert [g.tolist() for g in empty.sweep(np.ones(2), None)] == [[1, 1]]
