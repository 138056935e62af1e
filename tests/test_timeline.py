import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa_nb.timeline import Event, check, list_schedule, makespan


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


@given(graph=graphs())
def test_with_a_worker_for_everyone_only_the_longest_chain_counts(graph):
    durations, needs = graph
    placed = list_schedule(durations, needs, max(1, len(durations)))
    assert max((s + d for (_, s), d in zip(placed, durations, strict=True)), default=0) == longest_chain(*graph)


def test_the_longest_way_to_the_end_goes_first():
    # Task 2 starts a chain of three; tasks 0 and 1 stand alone. First come, first served would take 5.
    placed = list_schedule([1, 1, 1, 1, 1], [[], [], [], [2], [3]], 2)
    assert [start for _, start in placed][2:] == [0, 1, 2]
    assert max(start for _, start in placed) == 2
    # The same, once task 0 has made all of them ready.
    placed = list_schedule([1] * 6, [[], [0], [0], [0], [3], [4]], 2)
    assert [start for _, start in placed][3:] == [1, 2, 3]


def test_check_takes_what_is_a_schedule():
    check([], [])
    check([Event(0, 0, 2, "a"), Event(0, 2, 1, "b"), Event(1, 2, 3, "c")], [[], [], [0]])


def test_check_finds_a_worker_that_does_two_things_at_once():
    events = [Event(1, 0, 2, "a"), Event(0, 0, 9, "b"), Event(1, 1.5, 1, "c")]
    with pytest.raises(ValueError, match="worker 1 is busy with 'a' until 2, but starts 'c' at 1.5"):
        check(events, [[], [], []])


def test_check_finds_a_long_event_around_short_ones():
    with pytest.raises(ValueError, match="worker 0 is busy with 'long' until 9, but starts 'b' at 3"):
        check([Event(0, 0, 9, "long"), Event(0, 3, 1, "b")], [[], []])


def test_check_finds_what_starts_too_early():
    with pytest.raises(ValueError, match="'b' starts at 1, but 'a', which it needs, ends at 2"):
        check([Event(0, 0, 2, "a"), Event(1, 1, 1, "b")], [[], [0]])


def test_check_wants_needs_for_every_event():
    with pytest.raises(ValueError, match="one entry per event, got 0 for 1 events"):
        check([Event(0, 0, 2, "a")], [])


def test_bad_tasks():
    with pytest.raises(ValueError, match="workers must be >= 1, got 0"):
        list_schedule([1], [[]], 0)
    with pytest.raises(ValueError, match=r"needs\[1\] must only hold numbers from 0 to 0, got 1"):
        list_schedule([1, 1], [[], [1]], 1)


def test_makespan():
    assert makespan([]) == 0
    assert makespan([Event(0, 1, 4, "a"), Event(1, 2, 1, "b")]) == 5
