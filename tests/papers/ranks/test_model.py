import numpy as np
import pytest

from bppsa_nb.papers import timelines
from bppsa_nb.papers.ranks import model
from bppsa_nb.papers.ranks.model import Costs, Interconnect, OperatorCosts, exscan, pipeline, scan, sequential
from bppsa_nb.schedule import events as timeline

LINK = Interconnect(3.0, 4.0)
OPERATOR = OperatorCosts(product=7.0, apply=2.0, start=11.0, size=20)
COSTS = Costs(forward=1.0, sweep=2.0, gradients=0.25, jacobian=0.5, product=10.0, state=8, operator=OPERATOR)
FREE, AT_ONCE = COSTS._replace(operator=OperatorCosts(0, 0, 0, 0)), Interconnect(0, np.inf)


def doubling(ready):
    """Exchange maps, rank by rank: spans of places, and whether they end in what is known."""
    size, now = len(ready), [each + OPERATOR.start for each in ready]
    own = [{"places": (r, r), "known": r == 0, "nothing": r == size - 1} for r in range(size)]
    above, calls = [None] * size, [0] * size

    def combine(a, b, rank):
        assert a["places"][1] + 1 == b["places"][0]  # in order, or ⋄ would be commuted
        places = {"places": (a["places"][0], b["places"][1])}
        if b["nothing"]:
            return a | places
        calls[rank] += 1
        now[rank] += OPERATOR.apply if a["known"] else OPERATOR.product
        return a | places

    mask = 1
    while mask < size:
        pairs = [(r, r ^ mask) for r in range(size) if r ^ mask < size]
        came = {r: own[other] for r, other in pairs}
        meet = {r: max(now[r], now[other]) + LINK.seconds(OPERATOR.size) for r, other in pairs}
        for r, other in pairs:
            now[r] = meet[r]
            if other < r:
                above[r] = came[r] if above[r] is None else combine(came[r], above[r], r)
            if 2 * mask < size:
                own[r] = combine(came[r], own[r], r) if other < r else combine(own[r], came[r], r)
        mask *= 2
    assert all(above[r]["places"] == (0, r - 1) and above[r]["known"] for r in range(1, size))
    return now, calls


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 33])
def test_exscan_is_recursive_doubling_of_maps_in_order(ranks):
    ready = np.random.default_rng(ranks).uniform(0, 50, ranks)
    done, calls = exscan(ready, LINK, OPERATOR)
    expected = doubling(list(ready))
    np.testing.assert_allclose(done, expected[0])
    assert calls.tolist() == expected[1]
    assert calls.max(initial=0) <= max(0, 2 * np.ceil(np.log2(ranks)) - 2)


@pytest.mark.parametrize("whole", [False, True])
def test_on_one_rank_all_roads_are_back_propagation(whole):
    step = COSTS.sweep + whole * (COSTS.forward + COSTS.gradients)
    assert sequential(12, 1, COSTS, LINK, whole) == 12 * step
    assert scan(12, 1, COSTS, LINK, whole) == 12 * step + OPERATOR.start
    if whole:
        assert pipeline(12, 1, 3, COSTS, LINK) == (3 * 12 * step, 0)


def test_two_ranks_need_no_product():
    hop, exchange = 3 + COSTS.state / 4, OPERATOR.start + 3 + OPERATOR.size / 4
    assert scan(10, 2, COSTS, LINK) == 10 * 2 + exchange
    assert sequential(10, 2, COSTS, LINK) == 10 * 2 + hop
    assert sequential(10, 2, COSTS, LINK, whole=True) == 10 * 3 + 2 * hop + 5 * 0.25
    # The run at the loss is there last: it begins when it has the state, and sweeps.
    assert scan(10, 2, COSTS, LINK, whole=True) == 10 * 3 + hop + exchange + 5 * 0.25


def test_four_ranks_reduce_scan_and_replay():
    assert scan(40, 4, FREE, AT_ONCE) == 10 * (0.5 + 10) + 10 * 2
    # In a whole step, ranks multiply while others go forward: the third has its states after 30 steps, and multiplies.
    assert scan(40, 4, FREE, AT_ONCE, whole=True) == 30 * 1 + 10 * 10.5 + 10 * 2 + 10 * 0.25
    cheap = FREE._replace(product=1.0, jacobian=0.0)
    assert scan(40, 4, cheap, AT_ONCE, whole=True) == 40 * 1 + 10 * 2 + 10 * 2 + 10 * 0.25
    # Uneven shares: the run at the loss has two steps, the others one.
    assert scan(5, 4, FREE, AT_ONCE) == 10.5 + 2
    # In time, the runs have 1, 1, 1 and 2 steps; the third multiplies from 3 to 13.5.
    assert scan(5, 4, FREE, AT_ONCE, whole=True) == 13.5 + 2 + 0.25
    assert sequential(2, 8, FREE, AT_ONCE) == 2 * 2  # more ranks than steps


@pytest.mark.parametrize("ranks", [2, 3, 4, 16, 64])
def test_a_longer_run_at_the_loss_is_never_slower_than_sequential(ranks):
    ratio = (FREE.jacobian + FREE.product) / FREE.sweep
    steps = 10000 * (ranks - 1) + round(10000 * ratio)  # shared out without a rest
    seconds, factor = model.longest_at_the_loss(steps, ranks, FREE, AT_ONCE)
    if ranks == 2:  # of which none multiplies
        assert seconds == scan(steps, 2, FREE, AT_ONCE)
        return
    # All but the loss's multiply while it goes back, then they do: 10000 (m + s) seconds instead of steps * s.
    assert factor == pytest.approx(ratio) and seconds == pytest.approx(10000 * (ratio + 1) * FREE.sweep)
    serial = sequential(steps, ranks, FREE, AT_ONCE)
    assert serial / seconds == pytest.approx((ranks - 1 + ratio) / (ratio + 1)) and serial > seconds
    assert seconds <= scan(steps, ranks, FREE, AT_ONCE)


@pytest.mark.parametrize("ranks, batches", [(1, 1), (2, 3), (4, 4), (5, 2)])
def test_gpipe_is_the_schedule_of_figure_11(ranks, batches):
    events, needs = timelines.gpipe(ranks, batches, backward=True)
    timeline.check(events, needs)
    one = Costs(1.0, 0.75, 0.25, 0, 0, 0, OPERATOR)
    seconds, bubble = pipeline(ranks, ranks, batches, one, Interconnect(0, 1))
    assert seconds == timeline.makespan(events)
    busy = sum(event.duration for event in events if event.worker == 0)
    assert bubble == pytest.approx(1 - busy / seconds)
    assert pipeline(ranks, ranks, batches, one, Interconnect(5, 1))[0] == seconds + 2 * (ranks - 1) * 5
