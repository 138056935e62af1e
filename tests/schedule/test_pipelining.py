from itertools import combinations

import numpy as np
import pytest
import schedule_draws as draws

from bppsa_nb import schedule
from bppsa_nb.schedule.operations import F, O, W
from bppsa_nb.schedule.policies import blocks

ALL = schedule.Assumptions(first_output_grad=True)


def uniform(devices, micro_batches, policy, flush=True, costs=(1, 1, 1), assumptions=ALL, layers=1, **options):
    """A pipeline of equal stages, of one layer or more."""
    L = devices * layers
    net = schedule.Network(*(np.full(L, cost) for cost in costs))
    timeline = schedule.pipeline(net, devices, micro_batches, policy, flush, assumptions=assumptions, **options)
    timeline.check()
    return timeline


def in_flight(timeline):
    """The most micro-batches that each device has begun, but not ended."""
    ops, most = timeline.operations, []
    for d in range(ops.devices):
        mine = [np.flatnonzero((ops.worker == d) & (ops.micro_batch == m)) for m in range(ops.micro_batches)]
        starts = np.array([timeline.start[i].min() for i in mine])
        ends = np.array([timeline.end[i].max() for i in mine])
        most.append(max(((starts <= moment) & (moment < ends)).sum() for moment in starts))
    return most


def test_figure_5():
    net = schedule.Network.uniform(8)
    for policy, units in (("conventional", 23), ("fast_forward", 19), ("modulo", 16)):
        assert schedule.pipeline(net, 2, 1, policy).makespan == units
    # Figure 5 (c): layers 8, 6, 4, 2 on the second device, which hands over each δO and then computes the δW.
    timeline = schedule.pipeline(net, 2, 1, "modulo")
    backward = [entry[:2] for entry in timeline.order(1) if entry[0] != "F"]
    assert backward[:4] == [("δO", 8), ("δW", 8), ("δO", 6), ("δW", 6)]


def test_figure_13_for_sixteen_layers():
    net = schedule.Network.uniform(16)
    units = {}
    for policy, flush in draws.PIPELINES:
        units[policy, flush] = schedule.pipeline(net, 4, 4, policy, flush).makespan
    assert units["gpipe", True] == 83
    assert units["fast_forward", True] == 68 and int(100 * 83 / 68) == 122
    assert units["modulo", False] == 51 and int(100 * 83 / 51) == 162
    assert units["modulo", True] == 53


@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 1), (2, 1), (3, 5), (4, 4), (4, 2), (5, 9)])
@pytest.mark.parametrize("costs", [(1, 1, 1), (3, 2, 5), (2, 4, 0)])
def test_1f1b_and_gpipe_fill_the_pipeline_once(devices, micro_batches, costs):
    for policy in ("1f1b", "gpipe"):
        timeline = uniform(devices, micro_batches, policy, costs=costs)
        assert timeline.makespan == (micro_batches + devices - 1) * sum(costs)
    # 1F1B keeps no more micro-batches in flight than there are devices to come; GPipe keeps all.
    for layers in (1, 2):
        sizes = dict(devices=devices, micro_batches=micro_batches, costs=costs, layers=layers)
        assert in_flight(uniform(policy="1f1b", **sizes)) == [min(micro_batches, devices - d) for d in range(devices)]
        assert in_flight(uniform(policy="gpipe", **sizes)) == [micro_batches] * devices
    # PipeDream does the same in the same order; only the updates differ.
    one, two = (uniform(devices, micro_batches, "1f1b", flush, costs=costs) for flush in (True, False))
    np.testing.assert_array_equal(one.start, two.start)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("costs", [(1, 1, 1), (4, 3, 2), (3, 5, 0), (2, 3, 2)])
def test_zero_bubble_schedules_idle_as_their_formulas_say(p, costs):
    forward, output, weight = costs
    for M in (p, p + 1, 2 * p - 1, 2 * p + 3):
        timeline = uniform(p, M, "zero_bubble", costs=costs)
        assert timeline.idle.max() == (p - 1) * (forward + output - weight)
        # ZB-H1 keeps on every device what 1F1B keeps on the first.
        assert in_flight(timeline) == [p] * p
        if M >= 2 * p - 1:
            timeline = uniform(p, M, "zero_bubble", flush=False, costs=costs)
            assert timeline.idle.max() == (p - 1) * (forward + output - 2 * weight)
            assert in_flight(timeline) == [2 * p - 1] * p
            assert timeline.span.max() == M * sum(costs) + timeline.idle.max()


def test_layers_are_cut_as_evenly_as_possible():
    rng = np.random.default_rng(0)
    for _ in range(200):
        L = int(rng.integers(1, 9))
        devices, floats = int(rng.integers(1, L + 1)), rng.random() < 0.4
        net, assumptions = draws.network(rng, L, floats), draws.assumptions(rng)
        cost = net.forward + net.output_grad + net.weight_grad
        if not assumptions.first_output_grad:
            cost[0] = net.forward[0] + net.weight_grad[0]
        device = blocks(net, devices, assumptions)
        assert (np.diff(device) >= 0).all() and set(device) == set(range(devices))
        best = min(
            max(cost[a:b].sum() for a, b in zip((0, *cuts), (*cuts, L), strict=True))
            for cuts in combinations(range(1, L), devices - 1)
        )
        assert np.bincount(device, cost).max() == pytest.approx(best, rel=1e-11)
    # Among equally good cuts, equal shares.
    for L, devices in ((8, 2), (16, 4), (6, 3)):
        np.testing.assert_array_equal(blocks(schedule.Network.uniform(L), devices, ALL), np.arange(L) * devices // L)


def test_modulo_deals_layers_out():
    for policy in schedule.policies.POLICIES:
        timeline = schedule.pipeline(schedule.Network.uniform(7), 3, policy=policy, assumptions=ALL)
        device = timeline.operations.worker[timeline.operations.select(F)[0]]
        assert device.tolist() == ([0, 1, 2, 0, 1, 2, 0] if policy == "modulo" else [0, 0, 1, 1, 1, 2, 2])


def instances(seed, count, **sizes):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        made, _ = draws.pipelines(rng, **sizes)
        yield dict(zip(draws.PIPELINES, made, strict=True))


def moments(timeline, *kinds):
    """Starts and ends of some kinds [shape=(micro-batches, layers)]: those which are not there are left out."""
    found = [timeline.operations.select(kind) for kind in kinds]
    start = [np.where(numbers >= 0, timeline.start[numbers], np.inf) for numbers in found]
    end = [np.where(numbers >= 0, timeline.end[numbers], -np.inf) for numbers in found]
    return np.minimum.reduce(start), np.maximum.reduce(end)


def test_every_policy_does_what_it_is_for():
    for made in instances(1, 60):
        for (policy, flush), timeline in made.items():
            ops, assumptions = timeline.operations, timeline.operations.assumptions
            assert (timeline.policy, timeline.flush) == (policy, flush)
            forward, backward = moments(timeline, F), moments(timeline, O, W)
            owner = ops.worker[ops.select(F)[0]]
            for d in range(ops.devices):
                mine = owner == d
                forwards, backwards = forward[1][:, mine], backward[0][:, mine]
                if policy in ("conventional", "gpipe", "1f1b", "zero_bubble"):
                    # Micro-batches take their turns.
                    for one, two in (forward, moments(timeline, O), moments(timeline, W)):
                        first, last = one[:, mine].min(axis=1), two[:, mine].max(axis=1)
                        assert (last[:-1] <= first[1:])[np.isfinite(last[:-1])].all()
                if policy == "gpipe" or (flush and policy in ("fast_forward", "modulo")):
                    assert forwards.max() <= backwards.min()
                # How many micro-batches have been forward before the first comes back.
                begun = (forward[0][:, mine].min(axis=1) < backwards.min()).sum()
                if (timeline.operations.duration > 0).all() and policy in ("1f1b", "zero_bubble"):
                    ahead = (ops.devices - 1 - d) * (1 if flush or policy == "1f1b" else 2) + 1
                    assert begun == min(ahead, ops.micro_batches)
            if policy == "conventional":
                whole = moments(timeline, F, O, W)
                assert (whole[1][:-1].max(axis=1) <= whole[0][1:].min(axis=1)).all()
                computes = np.flatnonzero(ops.worker < ops.devices)
                order = computes[np.lexsort((timeline.end[computes], timeline.start[computes]))]
                assert (timeline.end[order[:-1]] <= timeline.start[order[1:]]).all()  # one device at a time
            if policy in ("conventional", "gpipe", "1f1b"):
                outputs, weights = timeline.start[ops.select(O)[:, 1:]], timeline.start[ops.select(W)[:, 1:]]
                assert ((weights <= outputs) if assumptions.weight_grad_first else (outputs <= weights)).all()


def test_fast_forwarding_never_lets_a_weight_gradient_go_first():
    # Whenever a δW starts, no δO of its device is ready, nor an F with a flush: it is only done while waiting.
    def goes_first(timeline, kind, others):
        ops, start = timeline.operations, timeline.start
        ready = np.where(ops.needs >= 0, timeline.end[ops.needs], 0).max(axis=1)
        for i in np.flatnonzero(ops.kind == kind):
            better = (ops.worker == ops.worker[i]) & np.isin(ops.kind, others) & (start > start[i])
            if (better & (ready <= start[i])).any():
                return True
        return False

    for made in instances(2, 40):
        for (policy, flush), timeline in made.items():
            if policy in ("fast_forward", "modulo") and (timeline.operations.duration > 0).all():
                assert not goes_first(timeline, W, [F, O])
                assert flush or not goes_first(timeline, F, [O])


@pytest.mark.parametrize(("policy", "boundary", "usual", "early"), [
    ("gpipe", 0, 24, 23), ("gpipe", 1, 26, 25), ("1f1b", 1, 28, 26), ("conventional", 0, 36, 36),
    ("conventional", 1, 42, 39), ("fast_forward", 1, 24, 24), ("zero_bubble", 1, 24, 24),
])  # fmt: skip
def test_handing_over_before_the_weight_gradient_is_sooner(policy, boundary, usual, early):
    # Section 6. Where δO is computed first, sending overlaps the δW, also where devices do not.
    for weight_first, makespan in ((True, usual), (False, early)):
        assumptions = schedule.Assumptions(True, weight_first)
        timeline = uniform(2, 3, policy, layers=2, assumptions=assumptions, boundary_cost=boundary)
        assert timeline.makespan == makespan


def test_sending_takes_its_time_on_its_own_link():
    # Two layers on two devices, one after the other: F1 S F2 δO2 (δW2 besides) S δW1.
    net = schedule.Network([1, 2], [3, 4], [5, 6])
    timeline = schedule.pipeline(net, 2, 1, "fast_forward", boundary_cost=10)
    assert timeline.makespan == 1 + 10 + 2 + 4 + 10 + 5
    assert timeline.order(2) == [("S[F]", 1, 0)] and timeline.order(3) == [("S[δO]", 2, 0)]
    # Only boundaries between devices are crossed, and what costs nothing is no operation.
    net = schedule.Network.uniform(4)
    links = schedule.pipeline(net, 2, boundary_cost=[7, 0, 7]).operations.workers
    assert links == ("GPU 1", "GPU 2")
    assert len(schedule.pipeline(net, 4, boundary_cost=[1, 0, 1]).operations.workers) == 4 + 4
    # With two devices that take turns, both directions carry outputs, and gradients.
    timeline = schedule.pipeline(net, 2, 1, "modulo", boundary_cost=1)
    assert timeline.operations.workers == ("GPU 1", "GPU 2", "link 1 to 2", "link 2 to 1")
    assert sorted(timeline.order(2)) == [("S[F]", 1, 0), ("S[F]", 3, 0), ("S[δO]", 3, 0)]


def test_small_pipelines():
    net = schedule.Network([2], [3], [4])
    for policy, flush in draws.PIPELINES:
        for first in (False, True):
            assumptions = schedule.Assumptions(first_output_grad=first)
            timeline = schedule.pipeline(net, 1, 3, policy, flush, assumptions=assumptions, boundary_cost=[])
            timeline.check()
            assert timeline.makespan == 3 * (2 + 4 + 3 * first) == timeline.lower_bound
            assert timeline.idle == [0]
        nothing = schedule.Network([0, 0], [0, 0], [0, 0])
        timeline = schedule.pipeline(nothing, 2, 2, policy, flush)
        timeline.check()
        assert timeline.makespan == timeline.lower_bound == 0


@pytest.mark.full
@pytest.mark.parametrize(("policy", "flush"), draws.PIPELINES)
def test_a_thousand_layers_on_64_devices(policy, flush):
    rng = np.random.default_rng(0)
    timeline = schedule.pipeline(schedule.Network(*rng.random((3, 1000))), 64, 256, policy, flush, 0.1)
    timeline.check()
    assert timeline.lower_bound <= timeline.makespan
