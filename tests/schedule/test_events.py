import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import beside

from bppsa_nb.schedule.events import Event, check, in_order, list_schedule, makespan


@st.composite
def graphs(draw):
    count = draw(st.integers(0, 25))
    durations = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    needs = [draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else [] for i in range(count)]
    return durations, needs


def longest_chain(durations, needs):
    end = []
    for duration, before in zip(durations, needs, strict=True):
        end.append(duration + max((end[i] for i in before), default=0))
    return max(end, default=0)


@given(graph=graphs(), workers=st.integers(1, 6))
def test_list_schedule_is_a_schedule_within_grahams_bounds(graph, workers):
    durations, needs = graph
    placed = list_schedule(durations, needs, workers)
    events = [Event(worker, start, d, "") for (worker, start), d in zip(placed, durations, strict=True)]
    check(events, needs)
    assert {event.worker for event in events} <= set(range(workers))
    work, chain = sum(durations), longest_chain(durations, needs)
    assert max(work / workers, chain) <= makespan(events) <= work / workers + chain
    if workers == 1:
        assert makespan(events) == work
    placed = list_schedule(durations, needs, max(1, len(durations)))  # a worker for everyone
    assert max((s + d for (_, s), d in zip(placed, durations, strict=True)), default=0) == chain


def test_the_longest_way_to_the_end_goes_first():
    # Task 2 starts a chain of three; tasks 0 and 1 stand alone. First come, first served would take 5.
    placed = list_schedule([1, 1, 1, 1, 1], [[], [], [], [2], [3]], 2)
    assert [start for _, start in placed][2:] == [0, 1, 2]
    assert max(start for _, start in placed) == 2
    # The same, once task 0 has made all of them ready.
    placed = list_schedule([1] * 6, [[], [0], [0], [0], [3], [4]], 2)
    assert [start for _, start in placed][3:] == [1, 2, 3]


@pytest.mark.parametrize("events, needs, message", beside(__file__)["wrong"])
def test_check_finds_what_is_no_schedule(events, needs, message):
    with pytest.raises(ValueError, match=message):
        check([Event(*event) for event in events], needs)


def test_makespan():
    assert makespan([]) == 0
    assert makespan([Event(0, 1, 4, "a"), Event(1, 2, 1, "b")]) == 5


@given(graph=graphs(), workers=st.lists(st.integers(0, 3), min_size=25, max_size=25), sending=st.integers(0, 4))
def test_in_order_is_a_schedule_in_which_nobody_waits_for_nothing(graph, workers, sending):
    durations, needs = graph
    tasks = [Event(w, 0, d, "") for w, d in zip(workers, durations, strict=False)]
    events, waits = in_order(tasks, needs, [sending] * len(tasks))
    check(events, waits)
    own, free = events[: len(tasks)], {}
    for i, event in enumerate(own):
        assert (event.worker, event.duration) == (workers[i], durations[i])
        there = [free.get(event.worker, 0), *(events[j].end for j in waits[i])]
        assert event.start == max(there)
        free[event.worker] = event.end
        for j in needs[i]:  # at once from the worker itself, and after a message from others
            assert event.start >= own[j].end + (0 if own[j].worker == event.worker else sending)
    # Everyone gets a result once, however many of their tasks need it.
    crossing = {(j, workers[i]) for i, before in enumerate(needs) for j in before if workers[j] != workers[i]}
    assert len(events) - len(own) == len(crossing)


def test_a_link_sends_one_thing_at_a_time_and_workers_go_on():
    tasks = [Event(0, 0, 1, "a"), Event(0, 0, 1, "b"), Event(1, 0, 2, "c"), Event(1, 0, 2, "d"), Event(0, 0, 1, "e")]
    events, waits = in_order(tasks, [[], [], [0], [1, 0], [3]], [3, 3, 0, 0.5, 0])
    assert [(event.start, event.end) for event in events[:5]] == [(0, 1), (1, 2), (4, 6), (7, 9), (9.5, 10.5)]
    assert [(event.worker, event.start, event.end) for event in events[5:]] == [(2, 1, 4), (2, 4, 7), (3, 9, 9.5)]
    assert waits == [[], [], [5], [6, 5], [7], [0], [1], [3]]


def test_every_pair_of_workers_has_a_link_for_each_direction():
    tasks = [Event(0, 0, 1, "a"), Event(1, 0, 1, "b"), Event(2, 0, 1, "c"), Event(0, 0, 1, "d")]
    events, _ = in_order(tasks, [[], [], [0, 1], [1]], [2, 3, 0, 0])
    assert [(event.worker, event.start, event.end) for event in events[4:]] == [(3, 1, 3), (4, 1, 4), (5, 1, 4)]
