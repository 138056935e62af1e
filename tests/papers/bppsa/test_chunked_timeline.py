import pytest
from measuring import measure

from bppsa_nb.papers.bppsa import chunked_timeline
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import multiply_adds


@pytest.fixture(scope="module")
def table():
    return measure(chunked_timeline, LINKS=60, LENGTHS=(1, 5, 6, 30, 60), WORKERS=(1, 2, 3, 60))


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


def test_counts_are_those_of_equation_6(table):
    lengths = table[table["part"] == "length"].set_index(["method", "length"])
    assert lengths.loc[("chunked", 1), "steps"] == lengths["steps"].loc["linear"].item() == 60
    assert lengths.loc[("chunked", 6), "steps"] == 2 * 6 + 60 // 6 - 2  # the first and the last chunk are not crossed
    assert lengths.loc[("chunked", 30), "multiply_adds"] == 60 * 20**2  # two chunks: the loop's products alone
    workers = table[table["part"] == "workers"].set_index(["method", "p"])["multiply_adds"]
    assert workers["chunked", 1] == workers["chunked", 2] == 60 * 20**2 < workers["chunked", 3]
    lengths_of = table[(table["part"] == "workers") & (table["method"] == "chunked")].set_index("p")["length"]
    assert lengths_of.to_dict() == {1: 60, 2: 30, 3: 20, 60: 1}
    assert workers["blelloch", 60] == lengths["multiply_adds"].loc["blelloch"].item()
