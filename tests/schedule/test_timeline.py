import dataclasses

import naive_schedule as naive
import numpy as np
import pytest
import schedule_draws as draws
from rings import more

from bppsa_nb import schedule
from bppsa_nb.schedule import engine
from bppsa_nb.schedule.operations import SF, SW, F, O, W
from bppsa_nb.schedule.timeline import Timeline, place


def timelines(seed, count, **sizes):
    """Pipelines of every policy, and data-parallel training, with the rules for each."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        made, boundary = draws.pipelines(rng, **sizes)
        yield from ((timeline, draws.problem(timeline, boundary)) for timeline in made)
        net = draws.network(rng, int(rng.integers(1, 8)), sizes.get("floats", False), sync=True)
        for policy in ("fifo", "priority", "reverse_first_k"):
            timeline = schedule.data_parallel(net, policy, assumptions=draws.assumptions(rng))
            yield timeline, draws.problem(timeline)


@pytest.mark.parametrize(("seed", "count", "rounding"), [(0, 8, 0), (1, 8, 1e-12), more(0, 30, 0), more(1, 15, 1e-12)])
def test_every_schedule_keeps_to_the_rules_and_to_its_lower_bound(seed, count, rounding):
    for timeline, problem in timelines(seed, count, floats=rounding > 0):
        timeline.check()
        naive.check(draws.rows(timeline), problem)
        assert timeline.lower_bound == pytest.approx(naive.lower_bound(problem), rel=rounding, abs=0)
        assert timeline.makespan >= timeline.lower_bound * (1 - rounding)


def test_memory_is_what_the_loops_count():
    for timeline, _ in timelines(2, 12, layers=5, micro_batches=3):
        ops, rows = timeline.operations, draws.rows(timeline)
        keeps = ops.network.memory
        keeps = keeps.activation, keeps.output_grad, keeps.weight_grad, keeps.inner
        moments = np.unique(np.concatenate([timeline.start, timeline.end]))
        curves, peaks = timeline.memory(), np.zeros(ops.devices)
        for time in np.concatenate([moments, (moments[1:] + moments[:-1]) / 2]):
            expected = naive.memory_at(time, rows, keeps, ops.network.layers, ops.synchronizes)
            for device, (times, level) in enumerate(curves):
                at = np.searchsorted(times, time, "right") - 1
                assert (level[at] if at >= 0 else 0) == expected[ops.workers[device]]
                peaks[device] = max(peaks[device], expected[ops.workers[device]])
        np.testing.assert_array_equal(timeline.peak_memory, peaks)
        assert all((np.diff(times) > 0).all() for times, _ in curves)


def test_memory_of_one_layer_after_the_other():
    # Three layers on one device: inputs come one by one, and go with each layer's gradients; the weights' stay.
    net = schedule.Network.uniform(3, memory=schedule.Memory(1, 10, 100))
    times, level = schedule.pipeline(net, 1).memory()[0]
    assert times.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    # F1 F2 F3 | δW3 δO3 δW2 δO2 δW1: F1 reads its input and writes F2's.
    assert level.tolist() == [2, 3, 113, 123, 212, 222, 311, 0]


def test_figures_are_sums_over_operations():
    timeline = schedule.pipeline(schedule.Network([1, 2], [3, 4], [5, 6]), 2, 3, "gpipe", boundary_cost=1)
    ops = timeline.operations
    assert timeline.makespan == max(event.end for event in timeline.events)
    assert [event.label for event in timeline.events[:2]] == ["F1 of micro-batch 0", "F2 of micro-batch 0"]
    for device in range(2):
        mine = [event for event in timeline.events if event.worker == device]
        assert timeline.work[device] == sum(event.duration for event in mine)
        assert timeline.span[device] == max(event.end for event in mine) - min(event.start for event in mine)
    np.testing.assert_array_equal(timeline.idle, timeline.span - timeline.work)
    assert timeline.work.shape == timeline.span.shape == timeline.idle.shape == timeline.peak_memory.shape == (2,)
    assert ops.workers == ("GPU 1", "GPU 2", "link 1 to 2", "link 2 to 1")
    for name, dtype in dict(kind=int, layer=int, micro_batch=int, worker=int, needs=int, duration=float).items():
        assert getattr(ops, name).dtype == np.dtype(dtype)
    assert repr(timeline) == f"Timeline of 21 operations by 'gpipe' on 2 devices: {timeline.makespan:g}"


def test_the_orders_of_all_workers_can_be_followed_together():
    # Each worker does its next operation once what it needs is done: also where operations cost nothing.
    for timeline, (_, worker, needs) in timelines(3, 15):
        workers = timeline.operations.workers
        queues = {name: timeline.order(w) for w, name in enumerate(workers)}
        assert all(worker[operation] == name for name, queue in queues.items() for operation in queue)
        assert sum(map(len, queues.values())) == len(needs)
        done, before = set(), -1
        while len(done) > before:
            before = len(done)
            for queue in queues.values():
                while queue and all(need in done for need in needs[queue[0]]):
                    done.add(queue.pop(0))
        assert len(done) == len(needs)


def test_staleness_counts_the_updates_that_go_by():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        net = schedule.Network(*(rng.integers(1, 5, 6) for _ in range(3)))
        timeline = schedule.pipeline(net, 3, 4, "1f1b", flush=False, boundary_cost=int(rng.integers(0, 3)))
        ops = timeline.operations
        for device in range(3):
            mine = ops.worker == device
            updated = [timeline.end[mine & (ops.kind == W) & (ops.micro_batch == m)].max() for m in range(4)]
            for m in range(4):
                begins = timeline.start[mine & (ops.kind == F) & (ops.micro_batch == m)].min()
                count = sum(begins < updated[other] < updated[m] for other in range(4))
                assert timeline.staleness()[device, m] == count


def altered(timeline, changes=None, chosen=None, **columns):
    """A timeline with other starts, other columns, or only some of its operations."""
    start = timeline.start.copy()
    for i, value in (changes or {}).items():
        start[i] = value
    ops = dataclasses.replace(timeline.operations, **columns)
    if chosen is not None:
        names = ("kind", "layer", "micro_batch", "worker", "duration", "needs")
        ops = dataclasses.replace(ops, **{name: getattr(ops, name)[chosen] for name in names})
        start = start[chosen]
    return Timeline(ops, start, timeline.policy)


def test_check_finds_what_is_wrong():
    timeline = schedule.pipeline(schedule.Network.uniform(4), 2, 2, "gpipe", boundary_cost=1)
    ops, n = timeline.operations, len(timeline.operations)
    timeline.check()
    altered(timeline).check()
    sent, forward, weight = ops.select(SF), ops.select(F), ops.select(W)
    late = timeline.makespan + 5

    last = ops.select(W)[1, 0]  # nothing needs it
    without = np.delete(np.arange(n), last)
    names = np.arange(n) - (np.arange(n) > last)  # what is left is numbered anew
    fewer = {"chosen": without, "needs": np.where(ops.needs >= 0, names[ops.needs], -1)}
    later = {i: timeline.start[i] + 100 for i in range(n) if i not in forward[:, :2]}
    at_once, on_link = {weight[0, 0]: late, weight[1, 0]: late + 0.5}, {sent[0, 1]: 102.0, sent[1, 1]: 102.5}
    for changes, said in [
        *(({forward[1, 1]: x}, f"F2 of micro-batch 1 must start at 0 or later, got {x}") for x in (np.nan, np.inf, -1)),
        (fewer, "δW of layer 1 and micro-batch 1 is missing"),
        ({"chosen": np.append(np.arange(n), last)}, "δW1 of micro-batch 1 is listed 2 times"),
        ({forward[0, 3]: 3.0}, "F4 of micro-batch 0 starts at 3, but F3 of micro-batch 0, which it needs, "),
        ({sent[0, 1]: 1.0}, r"S\[F2\] of micro-batch 0 starts at 1, but F2 of micro-batch 0, which it n"),
        (at_once, "worker 'GPU 1' is busy with δW[12] of micro-batch . until"),
        (later | on_link, r"worker 'link 1 to 2' is busy with S\[F2\] of micro-batch 0 until 103, but"),
    ]:
        columns = changes if "chosen" in changes else {"changes": changes}
        with pytest.raises(ValueError, match=said):
            altered(timeline, **columns).check()


def test_check_misses_no_synchronization():
    timeline = schedule.data_parallel(schedule.Network.uniform(3, sync=1))
    ops = timeline.operations
    gone = ops.select(SW)[0, 1]
    needs = np.where(ops.needs == gone, -1, ops.needs - (ops.needs > gone))
    with pytest.raises(ValueError, match=r"S\[δW\] of layer 2 and micro-batch 0 is missing"):
        altered(timeline, chosen=np.delete(np.arange(len(ops)), gone), needs=needs).check()


def test_check_finds_any_two_operations_that_change_places():
    for timeline, problem in timelines(4, 4, layers=4, micro_batches=2):
        n = len(timeline.operations)
        rng = np.random.default_rng(n)
        for _ in range(10):
            one, two = rng.integers(0, n, 2)
            wrong = altered(timeline, {one: timeline.start[two], two: timeline.start[one]})
            try:
                naive.check(draws.rows(wrong), problem)
            except AssertionError:
                with pytest.raises(ValueError):
                    wrong.check()
            else:
                wrong.check()


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 1e-9, 1e9])
def test_the_unit_of_time_changes_no_order(factor):
    rng = np.random.default_rng(7)
    for _ in range(12):
        L = int(rng.integers(1, 9))
        costs, boundary = rng.integers(0, 4, (4, L)), int(rng.integers(0, 3))
        sizes = int(rng.integers(1, min(L, 4) + 1)), int(rng.integers(1, 5))
        pairs = []
        for f in (1, factor):
            alone, parallel = schedule.Network(*(costs[:3] * f)), schedule.Network(*(costs * f))
            pairs.append([schedule.pipeline(alone, *sizes, *chosen, boundary * f) for chosen in draws.PIPELINES])
            policies = ("fifo", "priority", "reverse_first_k")
            pairs[-1] += [schedule.data_parallel(parallel, policy) for policy in policies]
        for one, two in zip(*pairs, strict=True):
            two.check()
            assert one.k == two.k and two.makespan == pytest.approx(one.makespan * factor, rel=1e-12)
            np.testing.assert_allclose(two.start, one.start * factor, rtol=1e-11, atol=1e-11 * two.makespan)
            np.testing.assert_array_equal(two.peak_memory, one.peak_memory)
            if (costs > 0).all():
                workers = range(len(one.operations.workers))
                assert [one.order(w) for w in workers] == [two.order(w) for w in workers]


def test_waiting_in_a_circle_is_an_error():
    timeline = schedule.pipeline(schedule.Network.uniform(2), 1)
    ops = timeline.operations
    waits = np.full(len(ops), -1)
    waits[ops.select(F)[0, 0]] = ops.select(O)[0, 1]
    with pytest.raises(ValueError, match="F1 never starts: what it waits for under 'mine' waits for it"):
        place(ops, [waits], np.arange(len(ops)), "mine")


def test_greedy_is_a_list_scheduler():
    # Costs are integers, so that both see the same moments.
    rng = np.random.default_rng(5)
    for _ in range(60):
        made, boundary = draws.pipelines(rng, layers=5, micro_batches=3)
        for timeline in made[::4]:
            ops, problem = timeline.operations, draws.problem(timeline, boundary)
            rank = rng.permutation(len(ops))
            one = np.ones(len(ops.workers), np.int64)
            start, _ = engine.greedy(ops.worker, one, ops.duration, ops.needs, rank)
            rows = draws.rows(timeline)
            places = {row[1:4]: place for row, place in zip(rows, rank, strict=True)}
            expected = naive.list_schedule(problem, places)
            assert start.tolist() == [expected[row[1:4]] for row in rows]


def test_jacksons_bound_is_the_best_of_all_sets():
    rng = np.random.default_rng(6)
    for _ in range(100):
        n = int(rng.integers(0, 7))
        head, duration, tail = rng.integers(0, 8, (3, n)).astype(float)
        best = 0
        for chosen in range(1, 2**n):
            mine = [i for i in range(n) if chosen >> i & 1]
            best = max(best, head[mine].min() + duration[mine].sum() + tail[mine].min())
        assert engine.busy_bound(np.argsort(head), head, duration, tail) == best


def test_a_timeline_draws_itself():
    timeline = schedule.pipeline(schedule.Network.uniform(4), 2, 2, "modulo", boundary_cost=0.5)
    ax = timeline.plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == list(timeline.operations.workers)
    # A layer with its micro-batch below, as in Figure 13; without one if there is only one.
    texts = {text.get_text() for text in ax.texts}
    assert {"$1_{A}$", "$4_{B}$"} <= texts
    assert {text.get_text() for text in schedule.pipeline(schedule.Network.uniform(2)).plot().texts} >= {"1", "2"}
