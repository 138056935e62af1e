import pytest

from bppsa_nb.papers.bppsa import chunked_timeline
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import multiply_adds


@pytest.mark.parametrize("n, length", [(1, 1), (7, 3), (12, 4), (13, 4), (20, 5), (20, 1), (20, 30)])
def test_every_chunk_is_one_worker_s_and_phases_follow_the_gradient(n, length):
    run = trace(n, "chunked", length=length)
    events = chunked_timeline.chunks(run, length)
    timeline.check(events, run.needs)
    count = max(n - 1, 0) // length + 1
    assert {event.worker for event in events} == set(range(count))
    assert timeline.makespan(events) <= run.steps
    phases = [event.kind for event in events]
    # A chunk is gone through with matrices only between the first and the last one.
    assert phases.count("multiply") == max(count - 2, 0) * (length - 1)
    assert phases.count("sweep") == n - (count - 1) * length
    assert phases.count("sweep") + phases.count("cross") + phases.count("replay") == n
    if length > 1:
        assert phases.count("cross") == max(count - 2, 0)
        assert {event.worker for event in events if event.kind == "replay"} == set(range(1, count))


def test_products_cost_what_they_are_said_to():
    run = trace(20, "chunked", length=5)
    ends = [event.end for event in chunked_timeline.chunks(run, 5, multiply_adds(3)) if event.kind == "multiply"]
    assert max(ends) == 4 * 27
