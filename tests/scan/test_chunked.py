"""The chunked scan over any operand: what it computes, how many products that takes, and how long on p workers."""

import pytest

from bppsa_nb.scan import steps
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import Traced, trace
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import scan_schedule as list_schedule

LENGTHS = [1, 2, 3, 4, 7, 8, 25, 40, 41, 100]
each_length = pytest.mark.parametrize("length", LENGTHS)


def chunks(n, length):
    """Count links in the chunk that holds the gradient, and chunks of `length` links after it."""
    rest, first = 0, n
    while first > length:
        rest, first = rest + 1, first - length
    return first, rest


@each_length
def test_steps_and_work(length):
    for n in range(42):
        run, (first, rest) = trace(n, "chunked", length=length), chunks(n, length)
        assert run.mv == n  # as many as in the linear scan
        assert run.mm == max(0, rest - 1) * (length - 1)  # of every chunk but the first and the last
        assert len({product.span for product in run.products}) == run.work  # nothing is computed twice
        # The first chunk is gone through while the others are multiplied; then chunk by chunk; then all of them again.
        assert run.steps == max(first, length - 1 if rest > 1 else 0) + max(rest - 1, 0) + (length if rest else 0)


@each_length
def test_phases(length):
    for n in range(42):
        run, (first, rest) = trace(n, "chunked", length=length), chunks(n, length)
        assert all(level.level.phase == "linear" and level.level.d is None for level in run.levels)
        kinds = [{product.product for product in level.products} for level in run.levels]
        reduced = max(first, length - 1 if rest > 1 else 0)
        assert all("mm" in kind for kind in kinds[: length - 1] if rest > 1)
        assert all(kind == {"mv"} for kind in kinds[reduced:])  # only the first phase multiplies matrices
        for level in run.levels:
            assert [product.span[1] for product in level.products] == [right for _, right in level.level.pairs]


def test_one_long_chunk_is_the_linear_scan():
    for n in range(20):
        for length in (max(n, 1), n + 1, 10**9):
            run, linear = trace(n, "chunked", length=length), trace(n, "linear")
            assert [level.level for level in run.levels] == [level.level for level in linear.levels]
            assert [each.span for each in run.products] == [each.span for each in linear.products]


def test_chunks_of_one_link_are_the_linear_scan_and_one_step_more():
    for n in range(2, 20):
        run = trace(n, "chunked", length=1)
        assert (run.steps, run.work, run.mm) == (n, n, 0)


@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("p", [4, 16, 64, 256])
def test_equation_6_on_p_workers(n, p):
    run = trace(n, "chunked", length=-(-n // p))
    end = timeline.makespan(list_schedule(run, p))
    assert n / p + p / 2 <= end <= 2 * (n / p + 1) + p
    assert run.critical_path()[0] <= end


def test_the_array_can_be_looked_at_between_two_steps():
    log = []
    a = [Traced("matrix" if i else "vector", (i, i), log) for i in range(12)]
    for _ in steps(a, "chunked", length=3):
        # Every place holds its own operand until it holds the product of all that precede it.
        for position, operand in enumerate(a[:12]):
            if operand is IDENTITY:
                assert position == 0
            else:
                assert operand.span in ((position, position), (0, position - 1))
    assert len(a) == 13
