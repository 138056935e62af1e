import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bppsa_nb.operands.kinds import Affine, Dense, Scaled
from bppsa_nb.scan import blelloch, chunked, levels, linear, operator, scan, truncated
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import Traced, trace

LENGTHS = [*range(71), 127, 128, 129, 255, 256, 1000, 4095, 4096]
METHODS = [(method, {}) for method in ("linear", "blelloch", "hillis_steele")]
METHODS += [("truncated", {"levels": k}) for k in (0, 1, 2, 99)]
METHODS += [("chunked", {"length": length}) for length in (1, 2, 3, 7, 40, 1000)]
each_method = pytest.mark.parametrize(("method", "how"), METHODS)


def spans(operands):
    return [each if each is IDENTITY else (each.kind, each.span) for each in operands]


def depth(n):
    """⌈log2(n + 1)⌉, by doubling."""
    found, size = 0, 1
    while size < n + 1:
        found, size = found + 1, 2 * size
    return found


@each_method
def test_exclusive_scan_and_the_product_of_all(method, how):
    for n in LENGTHS[:-2]:
        run = trace(n, method, **how)
        # A traced product refuses operands that are not neighbors in order, so spans say everything.
        assert spans(run.result) == [IDENTITY, *(("vector", (0, i)) for i in range(n + 1))]


@pytest.mark.parametrize("n", LENGTHS)
def test_blelloch_levels_and_work(n):
    run = trace(n, "blelloch")
    assert run.steps == max(0, 2 * depth(n) - 1)
    assert n <= run.work <= 2 * n
    assert run.mm <= n - depth(n) if n else run.mm == 0
    assert [level.level.phase for level in run.levels] == ["up"] * max(0, depth(n) - 1) + ["down"] * depth(n)
    for level in run.levels:
        if level.level.phase == "down":
            assert all(product.product == "mv" for product in level.products)
    if n:  # the first level of the down-sweep moves data, and takes the gradient at x_0 along
        first = run.levels[depth(n) - 1]
        assert [product.span for product in first.products] == [(0, n)]


@pytest.mark.parametrize("n", LENGTHS)
def test_linear_and_hillis_steele_levels_and_work(n):
    one, other = trace(n, "linear"), trace(n, "hillis_steele")
    assert (one.steps, one.work, one.mm) == (n, n, 0)
    assert other.steps == depth(n)
    assert other.work == sum(n + 1 - 2**d for d in range(depth(n)))


@each_method
def test_products_of_a_level_do_not_wait_for_each_other(method, how):
    for n in range(40):
        for level in trace(n, method, **how).levels:
            made = set(level.products)
            assert not any(parent in made for product in level.products for parent in product.parents)


@pytest.mark.parametrize("n", range(1, 71))
def test_truncated_at_either_end(n):
    def done(run):
        return [(level.level, spans(level.products)) for level in run.levels]

    assert done(trace(n, "truncated", 0)) == done(trace(n, "linear"))
    for k in (levels.up_levels(n), levels.up_levels(n) + 1, 10**9):
        assert trace(n, "truncated", k).steps == trace(n, "blelloch").steps
        assert trace(n, "truncated", k).mm == trace(n, "blelloch").mm
        assert spans(trace(n, "truncated", k).products) == spans(trace(n, "blelloch").products)


@pytest.mark.parametrize("n", range(71))
def test_truncated_in_between(n):
    for k in range(levels.up_levels(n)):
        run = trace(n, "truncated", k)
        blocks = -(-(n + 1) // 2**k)
        assert run.steps == k + (blocks - 1) + k
        assert run.work <= 2 * n
        assert run.mm <= trace(n, "blelloch").mm


@pytest.mark.parametrize("n", range(71))
def test_index_arithmetic_is_algorithm_1_s(n):
    assert levels.up_levels(n) == max(0, depth(n) - 1)
    assert levels.down_levels(n) == depth(n)
    for d in range(levels.down_levels(n) + 2):
        found = levels.pairs(n, d)
        assert found == naive.pairs(n, d)
        assert levels.num_pairs(n, d) == len(found)
        assert len({position for pair in found for position in pair}) == 2 * len(found)
    for k in range(levels.up_levels(n) + 1):
        ends = [levels.block_end(j, k, n) for j in range(levels.num_blocks(n, k))]
        assert ends == sorted({min(i // 2**k * 2**k + 2**k - 1, n) for i in range(n + 1)})


@each_method
@given(n=st.integers(0, 14), scaled=st.booleans(), local=st.booleans())
@settings(max_examples=15)
def test_numbers_equal_the_loop(method, how, n, scaled, local):
    rng = np.random.default_rng(n)  # of small integers, so that sums come out the same in any order
    links, gradient, terms = (
        rng.integers(-2, 3, shape).astype(float) for shape in ((n, 1, 3, 3), (1, 3), (n + 1, 1, 3))
    )
    operands, start = [Scaled(Dense(link[0])) if scaled else Dense(link[0]) for link in links], gradient[0]
    if local:
        operands = [Affine(operand, term[0]) for operand, term in zip(operands, terms[:-1], strict=True)]
        start = start + terms[-1, 0]
    found = scan([start, *operands[::-1]], method, **how)
    expected = naive.backprop(links, gradient, terms if local else None)[:, 0]
    assert np.array_equal(found[::-1], expected)


def test_scan_over_matrices_only():
    links = np.random.default_rng(0).integers(-2, 3, (6, 2, 2)).astype(float)
    for method, how in METHODS:
        expected = links[0].tolist()
        for found, link in zip(scan(list(map(Dense, links)), method, **how), [None, *links[1:]], strict=True):
            expected = expected if link is None else naive.matmul(link.tolist(), expected)
            assert found.matrix.tolist() == expected


@each_method
def test_the_identity_may_be_among_operands(method, how):
    one, two = Dense(np.array([[1.0, 3.0], [0.0, 2.0]])), Dense(np.array([[0.0, 1.0], [1.0, 5.0]]))
    found = scan([np.ones(2), one, IDENTITY, two, IDENTITY], method, **how)
    assert [each.tolist() for each in found] == [[1, 1], [4, 2], [4, 2], [2, 14], [2, 14]]


@each_method
def test_operands_are_left_as_they_are(method, how):
    log = []
    operands = [Traced("matrix" if i else "vector", (i, i), log) for i in range(12)]
    given = list(operands)
    scan(operands, method, **how)
    assert operands == given


COMMUTED = [(blelloch, "blelloch", {}), (linear, "linear", {}), (chunked, "chunked", {"length": 2})]


@pytest.mark.parametrize("module, method, how", COMMUTED)
def test_a_commuted_operator_is_caught(module, method, how, monkeypatch):
    monkeypatch.setattr(module, "diamond", lambda a, b: operator.diamond(b, a))
    for n in (1, 2, 3, 7):
        with pytest.raises(ValueError, match="not a product of neighbors in order"):
            trace(n, method, **how)


def test_a_down_sweep_that_does_not_reverse_is_caught(monkeypatch):
    # Blelloch's own down-sweep: right for addition, wrong for matrices.
    def forward(a, n, count):
        for d in reversed(range(count)):
            for l, r in levels.pairs(n, d):
                a[l], a[r] = a[r], operator.diamond(a[l], a[r])
            yield levels.Level("down", d, levels.pairs(n, d))

    for module, method, k in ((blelloch, "blelloch", None), (truncated, "truncated", 1)):
        monkeypatch.setattr(module, "down_sweep", forward)
        with pytest.raises(ValueError, match="not a product of neighbors in order"):
            trace(7, method, k)
