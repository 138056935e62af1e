"""What is recorded must be what runs: counted beside the solver itself, and by hand."""

import itertools

import numpy as np
import pytest
from texts import beside, refuses

from bppsa_nb import multigrid
from bppsa_nb.multigrid import cycles as cycles_module
from bppsa_nb.multigrid.cycles import Alone
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.schedule import events as timeline

OPTIONS = [
    {}, {"levels": 2}, {"relaxation": "F"}, {"relaxation": "FC", "cycle": "F"}, {"cycle": "F", "coarsening": 2},
    {"nested_iteration": True}, {"skip_downcycle": True, "coarsening": 3}, {"levels": 1},
]


def network(depth):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((depth, 2, 2))
    return multigrid.ResidualNetwork(weights, rng.standard_normal((depth, 2)), 1 / depth), rng.standard_normal((1, 2))


@pytest.mark.parametrize("depth, count", [(32, 1), (32, 3), (21, 2), (5, 1)])
@pytest.mark.parametrize("options", OPTIONS)
def test_recorded_steps_and_numbers_are_those_of_the_solver(monkeypatch, depth, count, options):
    done, kept = [], []
    for name in ("forward_sweep", "adjoint_sweep"):
        sweep = getattr(steps, name)
        monkeypatch.setattr(steps, name, lambda *args, sweep=sweep: done.append(args[3].tolist()) or sweep(*args))
    run = cycles_module.Cycles.run
    monkeypatch.setattr(cycles_module.Cycles, "run", lambda self: kept.append(self.levels) or run(self))
    net, u0 = network(depth)
    states = multigrid.solve(net, u0, cycles=count, backend="numpy", **options).states
    forward, done[:] = list(done), []
    multigrid.solve_adjoint(net, states, u0, cycles=count, backend="numpy", **options)

    recorded = record(depth, cycles=count, **options)
    for kind, layers, levels in (("F", forward, kept[0]), ("δO", done, kept[1])):
        # The same layers in the same order, sweep by sweep and block by block.
        assert np.concatenate([task.layers for task in recorded.part(kind).tasks]).tolist() == sum(layers, [])
        assert recorded.part(kind).work() == sum(map(len, layers))
        arrays = [array for level in levels for array in (level.points, level.source, level.arrivals)]
        assert recorded.stored[kind].tolist() == [sum(len(array) for array in arrays if array is not None)]
    assert sorted(itertools.chain(*(task.layers for task in recorded.part("δW").tasks))) == list(range(depth))


def test_a_cycle_by_hand():
    tasks = record(8, workers=2, levels=2).tasks
    found = [[task.worker, task.kind, task.level, task.layers.tolist(), task.needs] for task in tasks]
    by_hand = beside(__file__)
    assert found[:17] == by_hand["first"] + by_hand["then"] and found[-2:] == by_hand["last"] and len(found) == 23


@pytest.mark.parametrize("depth, c, count", [(32, 4, 1), (32, 4, 3), (64, 2, 2), (90, 9, 2)])
def test_two_levels_take_what_the_formulas_say(depth, c, count):
    recorded = record(depth, cycles=count, coarsening=c, levels=2)
    coarse = depth // c
    for kind in ("F", "δO"):
        part = recorded.part(kind)
        assert part.span() == c + count * (2 * c + coarse)  # F, then per cycle: F, the coarse level, F
        assert part.work() == depth + count * (2 * depth + 2 * coarse)  # and a coarse step at every C-point
    relaxed = record(depth, cycles=count, coarsening=c, levels=2, relaxation="F").part("F")
    assert relaxed.span() == c + count * (c + coarse)
    assert relaxed.work() == depth + count * (depth + 2 * coarse)


def test_the_critical_path_grows_with_the_logarithm_of_the_depth():
    spans = [record(4**n).part("F").span() for n in range(2, 6)]
    assert np.diff(spans).tolist() == [12, 12, 12]  # three F-relaxations of one more level
    assert spans[0] == 4 + 8 + 4
    skipped = [record(4**n, cycles=2, skip_downcycle=True).part("F").span() for n in range(2, 6)]
    assert skipped == [span + 4 * n for n, span in enumerate(spans, 1)]  # solves once, and goes up through n levels


def test_one_level_is_ordinary_back_propagation():
    recorded = record(12, workers=3, levels=1)
    assert [recorded.part(kind).span() for kind in ("F", "δO", "δW")] == [12, 12, 1]
    events, _ = recorded.timeline({"F": 1, "δO": 2, "δW": 5}, message=0.5)
    loss = next(event for event in events if event.kind == "loss")
    assert (loss.start, loss.duration, loss.worker) == (12 + 2 * 0.5, 0, 2)
    # The first worker gets the gradient last, and has its own layers' weight gradients still to do.
    assert timeline.makespan(events) == 13 + 2 * 12 + 2 * 0.5 + 4 * 5
    assert recorded.work({"F": 1, "δO": 2, "δW": 5}) == 12 * 8


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("workers", [1, 2, 5, 7])
def test_timelines_are_schedules(workers, options):
    recorded = record(29, workers, cycles=2, **options)
    events, needs = recorded.timeline(message=0.25)
    timeline.check(events, needs)
    own = events[: len(recorded.tasks)]
    assert {event.worker for event in own} == set(range(workers))
    assert timeline.makespan(events) >= recorded.work() / workers
    assert timeline.makespan(events) >= recorded.span()
    if workers == 1:
        assert timeline.makespan(events) == recorded.work() and len(own) == len(events)
    for task, event in zip(recorded.tasks, own, strict=True):
        assert event.duration == len(task.layers)
    busy = [sum(event.duration for event in own if event.worker == worker) for worker in range(workers)]
    assert sum(busy) == record(29, 1, cycles=2, **options).work() == recorded.work()


@pytest.mark.parametrize("options", [{}, {"relaxation": "FC"}, {"relaxation": "F"}, {"cycle": "F"}, {"levels": 2}])
@pytest.mark.parametrize("workers", [2, 4])
def test_messages_are_those_that_ranks_send(monkeypatch, workers, options):
    sent = []
    monkeypatch.setattr(Alone, "shift", lambda self, level: sent.append("shift"))
    monkeypatch.setattr(Alone, "send", lambda self, level: sent.append("send"))
    parts = multigrid.partition(64, workers, levels=options.get("levels"))
    recorded = record(64, workers, cycles=2, **options).part("F")
    owned = [sorted({n for task in recorded.tasks if task.worker == w for n in task.layers}) for w in range(workers)]
    assert owned == [list(range(part.start, part.stop)) for part in parts]
    sent.clear()
    multigrid.solve(*network(64), cycles=2, backend="numpy", **options)
    events, _ = recorded.timeline(message=1)
    messages = events[len(recorded.tasks) :]
    assert {event.kind for event in messages} == {"message"}
    assert len(messages) == (workers - 1) * len(sent)


def test_a_kind_that_did_not_run_takes_no_time():
    none = record(4).part("nothing")
    assert none.span() == none.work() == 0 and none.timeline() == ([], [])


@pytest.mark.parametrize("text, message", beside(__file__)["refused"])
def test_bad_arguments_are_errors(text, message):
    refuses(text, message, globals())
