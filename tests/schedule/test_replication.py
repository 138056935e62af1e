import naive_schedule as naive
import numpy as np
import pytest
import schedule_draws as draws

from bppsa_nb import schedule
from bppsa_nb.schedule.operations import SW, F, O, W


def instances(seed, count, layers=9, floats=False):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield draws.network(rng, int(rng.integers(1, layers)), floats, sync=True), draws.assumptions(rng)


def backward(timeline):
    return [entry[:2] for entry in timeline.order(0) if entry[0] != "F"]


def test_algorithm_2_puts_the_first_layers_last_and_in_reverse():
    net = schedule.Network.uniform(4, sync=1)
    for k, order in {
        0: "δW4 δO4 δW3 δO3 δW2 δO2 δW1", 1: "δW4 δO4 δW3 δO3 δW2 δO2 δW1", 2: "δW4 δO4 δW3 δO3 δO2 δW1 δW2",
        3: "δW4 δO4 δO3 δO2 δW1 δW2 δW3", 4: "δO4 δO3 δO2 δW1 δW2 δW3 δW4",
    }.items():
        timeline = schedule.data_parallel(net, "reverse_first_k", k)
        assert timeline.k == k
        assert " ".join(f"{kind}{layer}" for kind, layer in backward(timeline)) == order
    assumptions = schedule.Assumptions(first_output_grad=True, weight_grad_first=False)
    timeline = schedule.data_parallel(net, "reverse_first_k", 2, assumptions=assumptions)
    order = "δO4 δW4 δO3 δW3 δO2 δO1 δW1 δW2"
    assert " ".join(f"{kind}{layer}" for kind, layer in backward(timeline)) == order


def test_orders_hold_for_any_costs():
    for net, assumptions in instances(0, 80):
        L = net.layers
        made = [schedule.data_parallel(net, policy, assumptions=assumptions) for policy in ("fifo", "priority")]
        made += [schedule.data_parallel(net, "reverse_first_k", k, assumptions=assumptions) for k in range(L + 1)]
        for timeline in made:
            timeline.check()
            naive.check(draws.rows(timeline), draws.problem(timeline))
            ops, k = timeline.operations, timeline.k or 0
            assert (timeline.k is None) == (timeline.policy != "reverse_first_k")
            expected = []
            for layer in range(L, 0, -1):
                pair = [W] * (layer > k) + [O] * (layer > 1 or assumptions.first_output_grad)
                expected += [(kind, layer) for kind in (pair if assumptions.weight_grad_first else pair[::-1])]
            expected += [(W, layer) for layer in range(1, k + 1)] + [(F, layer) for layer in range(1, L + 1)]
            numbers = [ops.select(kind)[0, layer - 1] for kind, layer in expected]
            assert (timeline.end[numbers[:-1]] <= timeline.start[numbers[1:]]).all()
            # The link: in the order in which they come, or of what has come, the lowest layer; it never waits.
            sent, ready = ops.select(SW)[0], timeline.end[ops.select(W)[0]]
            if (ops.duration > 0).all():
                now, left = 0, set(range(L))
                while left:
                    now = max(now, min(ready[i] for i in left))
                    there = [i for i in left if ready[i] <= now]
                    next_one = min(there, key=lambda i: ready[i]) if timeline.policy == "fifo" else min(there)
                    assert timeline.start[sent[next_one]] == now
                    now = timeline.end[sent[next_one]]
                    left.remove(next_one)


def test_the_best_k_is_the_lowest_of_the_best():
    for net, assumptions in instances(2, 60):
        best = schedule.data_parallel(net, "reverse_first_k", assumptions=assumptions)
        units = [
            schedule.data_parallel(net, "reverse_first_k", k, assumptions=assumptions).makespan
            for k in range(net.layers + 1)
        ]
        assert best.makespan == min(units) and best.k == units.index(min(units))


def test_memory_limits_are_kept():
    lowered = refused = 0
    for net, assumptions in instances(3, 40):
        L = net.layers
        made = [schedule.data_parallel(net, "reverse_first_k", k, assumptions=assumptions) for k in range(L + 1)]
        peaks = [timeline.peak_memory[0] for timeline in made]
        for limit in {min(peaks), max(peaks), float(np.mean(peaks))}:
            fits = [timeline for timeline, peak in zip(made, peaks, strict=True) if peak <= limit]
            best = schedule.data_parallel(net, "reverse_first_k", memory_limit=limit, assumptions=assumptions)
            assert best.peak_memory[0] <= limit and best.makespan == min(one.makespan for one in fits)
            for k in range(L + 1):
                options = dict(k=k, memory_limit=limit, assumptions=assumptions)
                below = [timeline.k for timeline in fits if timeline.k <= k]
                if below:  # the largest that fits (Algorithm 2, line 2)
                    assert schedule.data_parallel(net, "reverse_first_k", **options).k == below[-1]
                    lowered += below[-1] < k
                else:
                    with pytest.raises(ValueError, match=f"memory_limit must be at least {min(peaks[: k + 1]):g}, "):
                        schedule.data_parallel(net, "reverse_first_k", **options)
                    refused += 1
        if min(peaks):
            with pytest.raises(ValueError, match=f"memory_limit must be at least {min(peaks):g}, which .*; got"):
                schedule.data_parallel(net, "reverse_first_k", memory_limit=0.99 * min(peaks), assumptions=assumptions)
    assert lowered > 10 and refused > 3
