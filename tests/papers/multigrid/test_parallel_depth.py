import itertools

import numpy as np
import pytest
from measuring import measure

from bppsa_nb.papers.multigrid import methods, roads_to_parallel_depth
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline


def work(road, workers):
    return sum(event.duration for event in road.events if event.worker < workers)


ROADS = {
    "pipeline": lambda depth, workers: methods.pipeline(depth, workers, 4),
    "multigrid": lambda depth, workers: methods.layer_parallel(depth, workers, 2),
    "scan": lambda depth, workers: methods.scan(depth, workers, 3),
}


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ROADS)
def test_every_road_is_a_schedule_of_its_work(name, workers):
    road = ROADS[name](32, workers)
    timeline.check(road.events, road.needs)
    assert work(road, workers) == pytest.approx(road.work)
    assert road.work / workers <= road.time
    assert 0 < road.backward < road.time
    if workers == 1:
        assert road.time == pytest.approx(road.work)
        forward = sum(event.duration for event in road.events if event.kind.startswith("F"))
        assert name == "pipeline" or road.backward == road.work - forward


def test_back_propagation_over_workers_is_a_staircase():
    road, message = methods.pipeline(32, 8), methods.LATENCY + methods.TRANSFER
    # One worker after the other, forward and back; the last one's weight gradients alone are not hidden.
    assert road.time == 2 * 32 + 2 * 7 * message + 32 / 8
    assert road.backward == 32 + 7 * message + 32 / 8
    assert (road.work, road.steps) == (3 * 32, 64)
    assert road.memory == 32 / 8 * 2  # a state and a gradient per layer


def test_a_pipeline_needs_a_batch():
    times = [methods.pipeline(32, 8, m).time for m in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True) and times[-1] < times[0] / 2  # as long as messages take as little
    assert methods.pipeline(32, 1, 8).time == methods.pipeline(32, 1).time == 3 * 32


def test_no_road_s_gain_is_larger_than_its_workers():
    for workers in (2, 8):
        roads = methods.pipeline(32, workers, 16), methods.layer_parallel(32, workers, 1), methods.scan(32, workers, 1)
        assert all(3 * 32 / road.time <= workers for road in roads)


@pytest.mark.parametrize("width", [1, 5])
def test_the_scan_goes_forward_layer_by_layer_and_back_in_levels(width):
    depth = 16
    road = methods.scan(depth, depth, width)
    kinds = [event.kind for event in road.events if event.worker < depth]
    assert [kinds.count(kind) for kind in ("F", "loss", "δW")] == [depth, 1, depth]
    products = kinds.count("J") - depth  # besides those that make them
    assert products + kinds.count("δO") == (road.work - 3 * depth + (1 - width) * products)
    forward = [event for event in road.events if event.kind == "F"]
    assert [event.start for event in forward] == [n * (1 + methods.LATENCY + methods.TRANSFER) for n in range(depth)]
    # With a layer on every worker, the longest chain of tasks is that of steps and products.
    counts = [event.kind not in ("message", "loss") for event in road.events]
    assert _longest(list(zip(counts, road.needs, strict=True))) == road.steps
    assert road.backward >= road.steps - depth
    assert road.memory == 3 + width
    last = [event.kind for event in road.events].index("loss")
    needs = {event.worker: road.needs[i] for i, event in enumerate(road.events) if event.kind == "δW"}
    assert needs[depth - 1] == [depth - 1, last]  # the gradient at the last state is there
    message = road.events[needs[depth - 2][1]]
    first = next(event for event in road.events if event.kind == "δO")
    assert (message.label, message.start) == ("what δO gives", first.end)


def _longest(counts):
    """Count along the longest chain; messages stand after the tasks, whatever they are needed by."""
    found = {}

    def chain(i):
        if i not in found:
            own, before = counts[i]
            found[i] = own + max(map(chain, before), default=0)
        return found[i]

    return max(map(chain, range(len(counts))))


@pytest.mark.parametrize("width", [1, 5])
def test_the_scan_takes_its_critical_path_where_messages_are_free(monkeypatch, width):
    paid = methods.scan(16, 16, width).backward
    monkeypatch.setattr(methods, "LATENCY", 0.0)
    monkeypatch.setattr(methods, "TRANSFER", 0.0)
    chain, _ = trace(16, "blelloch").critical_path({"mm": width, "mv": 1})
    road = methods.scan(16, 16, width)
    # Jacobians, products, a weight gradient; the first and the last worker have two positions.
    assert 0 <= road.backward - (1 + chain + 1) <= width
    assert paid > road.backward + 1  # several messages lie on it otherwise
    assert road.time <= 16 + road.backward  # products of early layers do not wait for late ones


def test_what_is_sent_takes_its_size():
    road = methods.scan(16, 4, 6)
    messages = [event for event in road.events if event.kind == "message"]
    for event in messages:
        size = 6 if event.label == "what J gives" else 1
        assert event.duration == methods.LATENCY + size * methods.TRANSFER
    took = {event.duration for event in methods.layer_parallel(64, 4, 1).events if event.kind == "message"}
    assert took == {methods.LATENCY + methods.TRANSFER}
    took = {event.duration for event in methods.pipeline(64, 4, 8).events if event.kind.startswith("S")}
    assert took == {methods.LATENCY + methods.TRANSFER / 8}


def test_products_are_where_they_stand():
    run, road = trace(16, "blelloch"), methods.scan(16, 2, 6)
    holder = [1] * 9 + [0] * 9  # of positions: the gradient, and layers 15 to 8; then layers 7 to 0
    ups = [level for level in run.levels if level.level.phase == "up"]
    up = [pair for level in ups for pair in zip(level.products, level.level.pairs, strict=True)]
    crossing = [pair for product, pair in up if product.product == "mm" and holder[pair[0]] != holder[pair[1]]]
    # Jacobians go over once for every product of two that stand on different sides.
    assert sum(event.label == "what J gives" for event in road.events) == len(crossing) > 0
    share = [sum(event.duration for event in road.events if event.worker == w) for w in (0, 1)]
    assert abs(share[0] - share[1]) < 0.2 * sum(share)


def test_memory_of_multigrid_by_hand():
    # States, and for the adjoint points on levels of 32, 8 and 2 steps, right-hand sides, and what blocks end with.
    assert methods.layer_parallel(32, 1, 1).memory == 33 + (33 + 9 + 3) + (8 + 2) + (8 + 2 + 1)


def test_multigrid_takes_no_more_workers_than_blocks():
    assert methods.layer_parallel(32, 32, 1) == methods.layer_parallel(32, 8, 1)


def test_only_multigrid_is_approximate_and_cycles_make_it_less_so():
    found = methods.errors(64, 4, 3, (1, 2, 4), np.random.default_rng(0))
    assert 0 < found["scan"] < 1e-13
    assert 1 > found[1] > 5 * found[2] > 25 * found[4] > 1e-12


def test_timelines_show_all_workers_and_counts_and_other_sizes_follow():
    small = {"DEPTH": 32, "WORKERS": 4, "DEPTHS": {"quick": (16, 64)}, "MORE_WORKERS": {"quick": (1, 4)}}
    table = measure(roads_to_parallel_depth, **small)
    events = table[table["part"] == "event"]
    assert events.groupby("road")["worker"].nunique().tolist() == [4] * 5
    counts = table[table["part"] == "road"].set_index("road")
    ends = (events["start"] + events["duration"]).groupby(events["road"]).max()
    assert ends.loc[counts.index].tolist() == counts["time"].tolist()
    took = events.groupby("road")["duration"].sum() / 96
    np.testing.assert_allclose(took.loc[counts.index], counts["work"])
    over = table[table["part"] == "over depth"].set_index(["depth", "workers", "road"])
    sizes = itertools.product([(16, 1), (64, 1), (64, 4)], roads_to_parallel_depth.WAYS)
    assert set(over.index) == {(*size, road) for size, road in sizes}
    exact = ["back-propagation", "pipeline, 32 samples", "pipeline, 4 samples"]
    assert over["speedup"].loc[:, 1].loc[:, exact].tolist() == [1.0] * 6
    facts = roads_to_parallel_depth.facts(table)
    assert facts["steps"].to_dict() == {depth: record(depth, cycles=2).span() for depth in (16, 64)}
    assert (facts["workers"], facts["depth"]) == (4, 64) and (facts["whole"]["speedup"] < 4).all()
