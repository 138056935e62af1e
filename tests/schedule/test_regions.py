from fractions import Fraction
from itertools import combinations_with_replacement, permutations

import naive_schedule as naive_rules
import numpy as np
import pytest
import schedule_draws as draws
from texts import beside

from bppsa_nb import schedule
from bppsa_nb.schedule import Assumptions, Memory, Network, Regions, joint_regions
from bppsa_nb.schedule import events as timeline

# Loops of their own: what the paper and the model of co-running kernels say, in whatever numbers they are given.


def passes(L, kernels, weight_grad_first=True, first_output_grad=False):
    """List what the main stream does, pass by pass."""
    listed = []
    for layer in range(L, 0, -1):
        both = ["W", "O"] if weight_grad_first else ["O", "W"]
        if layer in kernels:
            both.remove("W")
        if layer == 1 and not first_output_grad:
            both.remove("O")
        listed.append([(kind, layer) for kind in both])
    return listed + [[("F", layer)] for layer in range(1, L + 1)]


def cut(listed, ends):
    """Put passes into regions."""
    regions, first = [], 0
    for end in ends:
        regions.append([op for one in listed[first:end] for op in one])
        first = end
    return regions


def two_streams(regions, sub, cost, speedup):
    """Run two streams; sub lists kernels with their regions, 1 to N or 0. Return starts and ends; None if stuck."""
    main = [(op, i) for i, region in enumerate(regions) for op in region]
    began = [sum(len(region) for region in regions[:i]) for i in range(len(regions))]
    start, end, left, now, done, served = {}, {}, dict(cost), 0, 0, 0
    while done < len(main) or served < len(sub):
        both = []
        if done < len(main):
            (kind, layer), _ = main[done]
            if kind == "F":
                ready = ("W", layer) in end and (layer == 1 or ("F", layer - 1) in end)
            else:
                ready = ("O", layer + 1) in end or ("O", layer + 1) not in cost
            if ready:
                both.append(main[done][0])
        if served < len(sub):
            layer, region = sub[served]
            ready = ("O", layer + 1) in end or ("O", layer + 1) not in cost
            if ready and (region == 0 or done >= began[region - 1]):
                both.append(("W", layer))
        if not both:
            return None
        share = speedup[sub[served][0], main[done][1]] / 2 if len(both) == 2 else 1
        step = min(left[op] / share for op in both)
        for op in both:
            start.setdefault(op, now)
            left[op] -= step * share
            if left[op] < 1e-12:
                end[op] = now + step
                if done < len(main) and op == main[done][0]:
                    done += 1
                else:
                    served += 1
        now += step
    return start, end


def algorithm_1(regions, first_pass, cost, speedup, k, carry_over=False):
    """Plan as published, with what it leaves open settled as documented. Return kernels with their regions."""
    kernels = list(dict.fromkeys(kernel for kernel, _ in speedup))
    position, at, begin, end = {}, 0, [], []
    for region in regions:
        begin.append(at)
        for op in region:
            position[op] = at
            at += cost[op]
        end.append(at)
    ready = {k: position["O", k + 1] + cost["O", k + 1] if ("O", k + 1) in cost else 0 for k in kernels}
    due = {k: position["F", k] for k in kernels}

    def holds(kind, layer):
        return [i for i, region in enumerate(regions) if (kind, layer) in region]

    planned, now = {}, list(begin)
    open_regions = [i for i in range(k, len(regions)) if end[i] > begin[i]]
    waiting = []
    for kernel in sorted(kernels, reverse=True):
        planned[kernel] = (ready[kernel], 0)
        if first_pass[kernel] >= k:
            waiting.append(kernel)
    while waiting and open_regions:
        best = None
        for i in list(open_regions):
            fit = [
                kernel
                for kernel in waiting
                if max(now[i], ready[kernel]) + cost["W", kernel] <= due[kernel] and i <= holds("F", kernel)[0]
            ]
            if fit and min(ready[kernel] for kernel in fit) > now[i]:
                now[i] = min(ready[kernel] for kernel in fit)
            if not fit or now[i] >= end[i]:
                open_regions.remove(i)
                continue
            for kernel in fit:
                if ready[kernel] <= now[i] and (best is None or speedup[kernel, i] > speedup[best[0], best[1]]):
                    best = (kernel, i)
        if best:
            kernel, j = best
            planned[kernel] = (now[j], j + 1)
            waiting.remove(kernel)
            now[j] += cost["W", kernel]
            if now[j] >= end[j]:
                open_regions.remove(j)
            for i in range(j + 1, len(regions) if carry_over else 0):
                now[i] = max(now[i], now[j])
    order = sorted(kernels, key=lambda kernel: (*planned[kernel], -kernel))
    return [(kernel, planned[kernel][1]) for kernel in order]


GAINS = (Fraction(1, 2), 1, Fraction(6, 5), Fraction(3, 2), 2)


def instance(rng, L=None, N=None, kernels=None, values=(0, 1, 1, 2, 3, 5), gains=GAINS):
    """Make up a network, regions, kernels and speed-ups, for us and for the loops."""
    L = int(rng.integers(1, 7)) if L is None else L
    N = int(rng.integers(1, 2 * L + 1)) if N is None else N
    ends = [int(e) for e in sorted(rng.choice(np.arange(1, 2 * L), N - 1, replace=False))] + [2 * L]
    if kernels is None:
        kernels = [int(k) for k in rng.permutation(np.arange(1, L + 1))[: rng.integers(0, L + 1)]]
    assumptions = Assumptions(first_output_grad=bool(rng.random() < 0.3), weight_grad_first=bool(rng.random() < 0.7))
    forward, output, weight = ([Fraction(int(v)) for v in rng.choice(values, L)] for _ in range(3))
    speedup = [[gains[i] for i in rng.integers(0, len(gains), N)] for _ in kernels]
    memory = Memory(*rng.integers(0, 9, (3, L)), inner=np.arange(L) % 5)
    net = Network(*(np.array(part, float) for part in (forward, output, weight)), memory=memory)
    ours = Regions(net, ends, assumptions), kernels, np.array(speedup, float).reshape(len(kernels), N)
    listed = passes(L, kernels, assumptions.weight_grad_first, assumptions.first_output_grad)
    first_pass = {layer: sum(end <= L - layer for end in ends) for layer in range(1, L + 1)}  # the region where it is
    parts = zip("FOW", (forward, output, weight), strict=True)
    cost = {(kind, i + 1): part[i] for kind, part in parts for i in range(L)}
    if not assumptions.first_output_grad:
        del cost["O", 1]
    gain = {(kernel, i): speedup[row][i] for row, kernel in enumerate(kernels) for i in range(N)}
    return ours, (cut(listed, ends), first_pass, cost, gain)


def as_dict(result):
    """Turn a timeline into starts and ends by kind and layer."""
    ops = result.operations
    keys = [("FOW"[kind], int(layer)) for kind, layer in zip(ops.kind, ops.layer, strict=True)]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, result.start, strict=True)), dict(zip(keys, result.end, strict=True))


@pytest.fixture
def worked():
    """Three layers, two units for everything, as worked out by hand below."""
    net = Network([2, 2, 2], [2, 2, 2], [2, 2, 2])
    return joint_regions(Regions.blocks(net, [1, 3]), [3, 2], [[1, 1, 2, 1], [1, 1.6, 1, 1]])


def test_the_device_works_while_either_stream_runs():
    rng, both = np.random.default_rng(5), 0
    for _ in range(60):
        (regions, kernels, speedup), _ = instance(rng)
        result = joint_regions(regions, kernels, speedup)
        times, runs = np.unique([result.start, result.end]), list(zip(result.start, result.end, strict=True))
        count = [sum(a <= t < b for a, b in runs) for t in times[:-1]]
        assert result.work == pytest.approx([np.diff(times)[np.array(count, int) > 0].sum()], abs=1e-9)
        assert result.idle == pytest.approx([0], abs=1e-9)  # whoever waits, waits for the other stream
        both += 2 in count
    assert both > 20


def test_a_small_example_by_hand(worked):
    # R1: δO3, δO2 take 0 to 4. δW2 goes to R2, beside δW1: each at 0.8 of its speed, 4 to 6.5. δW3 goes to R3, beside
    # F1, at full speed: 6.5 to 8.5. F2 and F3 run alone.
    worked.check()
    assert worked.regions.names == ("δO 3–2", "δO 1", "F 1", "F 2–3")
    assert (worked.kernels.tolist(), worked.region.tolist()) == ([2, 3], [2, 3])
    kinds = ("δO", "δO", "δW", "F", "F", "F")
    assert worked.order(0) == [(kind, layer, 0) for kind, layer in zip(kinds, (3, 2, 1, 1, 2, 3), strict=True)]
    assert worked.order(1) == [("δW", 2, 0), ("δW", 3, 0)]
    start, end = as_dict(worked)
    assert [end["O", 2], start["W", 2], end["W", 2], end["W", 1]] == pytest.approx([4, 4, 6.5, 6.5])
    assert [start["W", 3], end["W", 3], end["F", 1], end["F", 3]] == pytest.approx([6.5, 8.5, 8.5, 12.5])
    assert (worked.makespan, worked.sequential) == pytest.approx((12.5, 16))
    assert worked.lower_bound == pytest.approx(16 - 1.5 - 2)
    assert worked.region_ends == pytest.approx([4, 6.5, 8.5, 12.5])
    assert worked.work == pytest.approx([12.5]) and worked.idle == pytest.approx([0])
    assert [event.duration for event in worked.events if event.label == "δW2"] == pytest.approx([2.5])


@pytest.mark.parametrize("took, region, ends", [(4, 1, (17 / 3, 20 / 3, 23 / 3)), (6, 0, (23 / 3, 20 / 3, 26 / 3))])
def test_a_kernel_runs_on_at_the_next_region_s_speed_and_its_forward_pass_waits(took, region, ends):
    # δW2 must end before F2, 5 units in; R3 would be best but is too late. Beside δO2 at 0.75, to 8/3; beside δW1 at
    # 0.5, to 14/3; beside F1 at 1. Of 6 units, one is left when F1 ends: F2 waits.
    net = Network([2, 1], [0, 2], [1, took])
    result = joint_regions(Regions(net, [1, 2, 3, 4]), [2], [[1.5, 1, 2, 2]])
    result.check()
    _, end = as_dict(result)
    assert result.region.tolist() == [region]
    assert (end["W", 2], end["F", 1], end["F", 2]) == pytest.approx(ends)
    # At best, two units run beside δO2, which saves 4/3 of 4, and two beside F1, which saves two of 4.
    assert result.lower_bound == pytest.approx(result.sequential - 4 / 3 - 2)


def test_algorithm_and_streams_are_those_of_the_loops():
    rng = np.random.default_rng(1)
    regions_used = set()
    for _ in range(400):
        (regions, kernels, speedup), (parts, first_pass, cost, gain) = instance(rng)
        k = int(rng.integers(0, len(regions) + 1))
        carry_over = bool(rng.integers(0, 2))
        result = joint_regions(regions, kernels, speedup, k=k, carry_over=carry_over)
        expected = algorithm_1(parts, first_pass, cost, gain, k, carry_over)
        assert list(zip(result.kernels, result.region, strict=True)) == expected
        regions_used.update(result.region.tolist())
        loops = two_streams(parts, expected, cost, gain)
        assert loops is not None
        for ours, theirs in zip(as_dict(result), loops, strict=True):
            assert ours.keys() == theirs.keys() == cost.keys()
            assert max(abs(ours[op] - float(theirs[op])) for op in ours) < 1e-9
    assert regions_used >= {0, 1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("values", [(0, 1, 2, 3), (0.1, 0.3, 0.7, 1e-3), (0,), (1e-9, 1.0, 1e9)])
def test_every_schedule_is_one_and_none_is_below_the_bound(values):
    rng = np.random.default_rng(2)
    for _ in range(60):
        (regions, kernels, _), _ = instance(rng)
        net = regions.network
        net = Network(*(rng.choice(values, net.layers) for _ in range(3)))
        regions = Regions(net, regions.ends.tolist(), regions.assumptions)
        speedup = rng.choice([0.8, 1, 1.1, 1.9, 2], (len(kernels), len(regions)))
        result = joint_regions(regions, kernels, speedup, k=int(rng.integers(0, len(regions) + 1)))
        result.check()
        assert sorted(result.kernels.tolist()) == sorted(kernels)
        assert result.makespan >= result.lower_bound * (1 - 1e-12)
        assert result.lower_bound >= result.sequential / 2 * (1 - 1e-12)
        if (speedup >= 1).all() and values != (1e-9, 1.0, 1e9):
            assert result.makespan <= result.sequential * (1 + 1e-12)


def test_algorithm_1_is_near_the_best_order_and_regions():
    rng, joint, naive = np.random.default_rng(3), [], []
    for _ in range(60):
        gains = tuple(rng.uniform(1, 2, 6))
        (regions, kernels, speedup), (parts, _, cost, gain) = instance(rng, 4, 4, [2, 3, 4], (1, 2, 3, 5), gains)
        cost = {op: float(value) for op, value in cost.items()}
        best = np.inf
        for order in permutations(kernels):
            for places in combinations_with_replacement(range(len(parts) + 1), len(kernels)):
                run = two_streams(parts, list(zip(order, places, strict=True)), cost, gain)
                best = min(best, np.inf if run is None else max(run[1].values()))
        result = joint_regions(regions, kernels, speedup)
        assert best >= result.lower_bound * (1 - 1e-12)
        joint.append(result.makespan / best)
        naive.append(joint_regions(regions, kernels, speedup, k=len(parts)).makespan / best)
    assert min(joint) >= 1 - 1e-12 and min(naive) >= 1 - 1e-12
    assert max(joint) <= 1.15 and np.mean(joint) <= 1.01 < np.mean(naive)


def test_the_bound_knows_when_kernels_are_ready():
    result = joint_regions(Regions(Network.uniform(3), [1, 6]), [2], [[2, 1]])  # R1 is δO3, which δW2 waits for
    assert result.makespan == pytest.approx(result.sequential) == pytest.approx(result.lower_bound)


def test_no_kernels_are_conventional_training():
    rng = np.random.default_rng(4)
    for _ in range(30):
        (regions, _, _), _ = instance(rng, values=(1, 2, 3))
        net, assumptions = regions.network, regions.assumptions
        one = joint_regions(regions, [], np.ones((0, len(regions))))
        costs, memory = (net.forward, net.output_grad, net.weight_grad), net.memory
        same = schedule.data_parallel(Network(*costs, np.zeros(net.layers), memory), "fifo", assumptions=assumptions)
        assert one.makespan == pytest.approx(same.makespan) == pytest.approx(one.sequential)
        assert one.order(0) == same.order(0) and one.order(1) == []
        assert one.peak_memory == pytest.approx(same.peak_memory)


def test_memory_is_what_is_alive():
    rng = np.random.default_rng(6)
    for _ in range(60):
        (regions, kernels, speedup), _ = instance(rng)
        result = joint_regions(regions, kernels, speedup)
        ((times, level),) = result.memory()
        ran = zip(draws.rows(result), result.end - result.start, strict=True)
        memory, rows = regions.network.memory, [("GPU", *row[1:5], took) for row, took in ran]
        rows += [("GPU", "S[δW]", *row[2:4], row[4] + row[5], 0) for row in rows if row[1] == "δW"]  # used at once
        keeps = memory.activation, memory.output_grad, memory.weight_grad, memory.inner
        for a, b, kept in zip(times[:-1], times[1:], level[:-1], strict=True):
            assert kept == naive_rules.memory_at((a + b) / 2, rows, keeps, regions.network.layers, True)["GPU"]
        assert result.peak_memory == pytest.approx([level.max()]) and result.peak_memory.shape == (1,)


def test_a_limit_pre_schedules_as_many_regions_as_it_takes():
    rng, grew = np.random.default_rng(7), 0
    for _ in range(60):
        (regions, kernels, speedup), _ = instance(rng)
        tried = [joint_regions(regions, kernels, speedup, k=k) for k in range(len(regions) + 1)]
        peaks = [float(one.peak_memory[0]) for one in tried]
        before = 0
        for limit in sorted(set(peaks), reverse=True):
            result = joint_regions(regions, kernels, speedup, memory_limit=limit)
            assert result.k == min(k for k, peak in enumerate(peaks) if peak <= limit) >= before
            assert result.peak_memory[0] <= limit and result.makespan == tried[result.k].makespan
            grew, before = grew + (result.k > before), result.k
        if min(peaks):
            with pytest.raises(ValueError, match=rf"memory_limit must be at least {min(peaks)}, .*; got "):
                joint_regions(regions, kernels, speedup, memory_limit=min(peaks) - 0.5)
    assert grew > 5


def test_delaying_weight_gradients_takes_memory_that_a_limit_gives_back():
    net = Network.uniform(8, memory=Memory(1, 1, 0))
    regions = Regions.blocks(net, [2, 4, 6, 8])
    table = np.tile([1.05] * 4 + [1.5] * 4, (7, 1))  # better beside the forward pass
    free = joint_regions(regions, range(2, 9), table)
    naive = joint_regions(regions, range(2, 9), table, k=8)
    assert free.makespan < naive.makespan and free.peak_memory > naive.peak_memory
    limited = joint_regions(regions, range(2, 9), table, memory_limit=free.peak_memory[0] - 1)
    assert naive.makespan > limited.makespan > free.makespan and 0 < limited.k < 4


@pytest.mark.parametrize("change, message", beside(__file__)["spoiled"])
def test_check_holds_streams_to_their_speeds(worked, change, message):
    worked.check()
    exec(change, {"one": worked})
    with pytest.raises(ValueError, match=message):
        worked.check()


def test_regions_have_names_and_come_in_blocks():
    regions = Regions.blocks(Network.uniform(5), [2, 5])
    assert regions.ends.tolist() == [3, 5, 7, 10]
    assert regions.names == ("δO 5–3", "δO 2–1", "F 1–2", "F 3–5") and len(regions) == 4
    assert Regions(Network.uniform(2), [1, 3, 4]).names == ("δO 2", "δO 1, F 1", "F 2")
    assert "δO 2–1, F 1–2" in repr(Regions(Network.uniform(2), [4]))
    assert "two streams: 4" in repr(joint_regions(Regions(Network.uniform(2), [4]), [2], [[2]]))


def test_streams_are_drawn_with_their_regions(worked):
    ax = worked.plot(unit="ms")
    assert [text.get_text() for text in ax.texts if text.get_text().startswith("R")] == ["R1", "R2", "R3", "R4"]
    assert [line.get_xdata()[0] for line in ax.lines] == pytest.approx(worked.region_ends)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["main stream", "sub stream"]
    assert timeline.makespan(worked.events) == pytest.approx(worked.makespan)
    assert worked.staleness().tolist() == [[0]]
