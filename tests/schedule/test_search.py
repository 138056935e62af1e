import naive_schedule as naive
import numpy as np
import pytest
import schedule_draws as draws

from bppsa_nb import schedule


def small(seed, count):
    """Timelines of up to fifteen operations or so, some of them on links, with the rules for each."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        high = [10, 10, 3][rng.integers(3)]  # with few ties, and with many
        if i % 2:
            L, devices, micro_batches = [(1, 1, 4), (2, 2, 2), (4, 2, 1), (3, 3, 1), (5, 2, 1)][rng.integers(5)]
            net, boundary = schedule.Network(*rng.integers(0, high, (3, L))), rng.integers(0, high, L - 1)
            policy, flush = draws.PIPELINES[rng.integers(len(draws.PIPELINES))]
            sizes, chosen = (devices, micro_batches, policy, flush, boundary), draws.assumptions(rng)
            timeline = schedule.pipeline(net, *sizes, assumptions=chosen)
            yield timeline, draws.problem(timeline, boundary)
        else:
            L = int(rng.integers(1, 5))
            net = schedule.Network(*rng.integers(0, high, (3, L)), rng.integers(0, 3 * high, L))
            timeline = schedule.data_parallel(net, assumptions=draws.assumptions(rng))
            yield timeline, draws.problem(timeline)


def test_what_is_called_optimal_is_what_trying_all_orders_finds():
    better = above = 0
    for timeline, problem in small(0, 80):
        best = schedule.optimum(timeline)
        best.check()
        naive.check(draws.rows(best), problem)
        assert best.makespan == naive.optimum(problem) <= timeline.makespan
        assert best.policy == "optimum" and best.operations is timeline.operations and best.flush == timeline.flush
        better += best.makespan < timeline.makespan
        above += best.makespan > best.lower_bound
    assert better > 20 and above > 10  # neither the policies nor the bound would do


def test_the_optimum_of_figure_5_is_what_the_policies_find():
    # Fast-forwarding is optimal for blocks, modulo allocation for any allocation: the bound says so already.
    net = schedule.Network.uniform(8)
    for policy, units in (("fast_forward", 19), ("modulo", 16)):
        timeline = schedule.pipeline(net, 2, 1, policy)
        best = schedule.optimum(timeline)
        assert best.makespan == timeline.lower_bound == units
        np.testing.assert_array_equal(best.start, timeline.start)
        assert best.policy == "optimum" and timeline.policy == policy
    assert schedule.optimum(schedule.pipeline(net, 2, 1)).makespan == 19


def test_an_optimum_above_the_bound_is_proved():
    # If δW2 goes first, δW1 ends at 7, and S, F1 and F2 take 5 more. If not, δW1 ends at 5, the link has S[δW1]
    # until 8 and with S[δW2] until 10, and F2 is left.
    timeline = schedule.data_parallel(schedule.Network([1, 1], [2, 3], [2, 2], [3, 2]))
    best = schedule.optimum(timeline)
    assert (timeline.lower_bound, best.makespan, timeline.makespan) == (10, 11, 12)
    assert best.order(1) == [("S[δW]", 1, 0), ("S[δW]", 2, 0)]


def test_gaps_are_filled_with_what_is_ready_and_fits():
    # Layers 6, 4 and 2 on the second device, which waits while δO5 and δO3 are done on the first: δW6 is too long for
    # that, δW4 is not. Then δW1 takes 11 after five δO.
    net = schedule.Network([0] * 6, [1] * 6, [11, 1, 1, 1, 1, 10])
    timeline = schedule.pipeline(net, 2, policy="modulo")
    assert (timeline.makespan, schedule.optimum(timeline).makespan) == (25, 16)
    # Where they cost as much, δW8 goes first; also if the search begins with everything in a row.
    timeline = schedule.pipeline(schedule.Network.uniform(8), 2, policy="modulo")
    in_a_row = np.argsort(np.argsort(timeline.start, kind="stable")).astype(float)
    in_a_row = schedule.Timeline(timeline.operations, in_a_row, "in a row")
    in_a_row.check()
    assert (in_a_row.makespan, schedule.optimum(in_a_row).makespan) == (23, 16)


@pytest.mark.outer
def test_optima_do_not_depend_on_the_unit_of_time_nor_on_who_made_the_timeline():
    rng = np.random.default_rng(3)
    for _ in range(6):
        costs, boundary = rng.integers(0, 9, (3, 5)), int(rng.integers(0, 3))
        net = schedule.Network(*costs)
        made = [schedule.pipeline(net, 2, 2, *chosen, boundary) for chosen in draws.PIPELINES if "modulo" not in chosen]
        (best,) = {schedule.optimum(timeline).makespan for timeline in made}
        for factor in (0.1, 1e-9, 1e9):
            scaled = schedule.pipeline(schedule.Network(*(costs * factor)), 2, 2, boundary_cost=boundary * factor)
            scaled = schedule.optimum(scaled)
            scaled.check()
            assert scaled.makespan == pytest.approx(best * factor, rel=1e-11)


def test_a_search_that_is_too_large_says_what_is_known():
    rng = np.random.default_rng(0)
    timeline = schedule.pipeline(schedule.Network(*rng.random((3, 8))), 4, 4, boundary_cost=0.3)
    with pytest.raises(ValueError) as caught:
        schedule.optimum(timeline, nodes=50)
    low, high = str(caught.value).split("between ")[1].split(" and ")
    assert f"timeline of {len(timeline.operations)} operations needs more than nodes=50" in str(caught.value)
    assert float(low) == pytest.approx(timeline.lower_bound, rel=1e-5)
    assert timeline.lower_bound < float(high) <= timeline.makespan
