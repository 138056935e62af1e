import pytest

from bppsa_nb.scan import steps
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import Traced, record, span_label, trace
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import multiply_adds
from bppsa_nb.schedule.events import scan_schedule as list_schedule

METHODS = [("linear", None), ("blelloch", None), ("hillis_steele", None), ("truncated", 1), ("truncated", 2)]


def labels(row):
    return [span_label(operand) for operand in row]


def test_seven_links_as_in_figure_1():
    run = trace(7, "blelloch")
    assert (run.steps, run.work, run.mm, run.mv) == (5, 11, 4, 7)
    assert [" ".join(labels(row)) for row in run.rows()] == [
        "0 1 2 3 4 5 6 7", "0 0:1 2 2:3 4 4:5 6 6:7", "0 0:1 2 0:3 4 4:5 6 4:7", "0 0:1 2 I 4 4:5 6 0:3 0:7",
        "0 I 2 0:1 4 0:3 6 0:5 0:7", "I 0 0:1 0:2 0:3 0:4 0:5 0:6 0:7",
    ]
    assert [level.moves for level in run.levels] == [
        [], [], [(3, 7)], [(3, 1), (1, 3), (7, 5)], [(1, 0), (0, 1), (3, 2), (5, 4), (7, 6)],
    ]


@pytest.mark.parametrize("n", range(20))
def test_rows_are_what_the_array_was(n):
    for method in ("blelloch", "hillis_steele"):
        log = []
        a = [Traced("matrix" if i else "vector", (i, i), log) for i in range(n + 1)]
        seen = [labels(a)]
        for _ in steps(a, method):
            seen.append(labels(a))
        assert [labels(row) for row in trace(n, method).rows()][: len(seen)] == seen


@pytest.mark.parametrize("method, k", METHODS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 20])
def test_every_change_of_a_row_is_a_product_or_a_move(method, k, n):
    run = trace(n, method, k)
    rows = run.rows()
    assert rows[-1] == run.result
    assert len(rows) - run.steps == 1 + (rows[-1] != rows[run.steps])
    for level, before, after in zip(run.levels, rows, rows[1:], strict=False):
        moved = {target: before[source] for source, target in level.moves}
        for position, operand in level.changes.items():
            assert after[position] is operand
            assert operand is IDENTITY or operand in level.products or operand is moved[position]
        for position, operand in enumerate(before):
            assert position in level.changes or after[position] is operand
        for product in level.products:  # drawn as lines from the row above
            assert product in after
            assert all(parent in before for parent in product.parents)


@pytest.mark.parametrize("n", [1, 3, 7, 15, 31, 1023, 4095])
def test_critical_path_of_the_full_tree(n):
    run, depth = trace(n, "blelloch"), n.bit_length()
    # One product per level, except the first of the down-sweep: it moves data.
    assert run.critical_path()[0] == max(1, 2 * depth - 2)
    length, chain = run.critical_path(multiply_adds(20))
    kinds = [product.product for product in chain]
    assert length == sum(multiply_adds(20)[kind] for kind in kinds)
    assert kinds == sorted(kinds)  # all matrix-matrix products come first
    assert kinds.count("mm") == depth - 1  # the last block, level after level
    for before, after in zip(chain, chain[1:], strict=False):
        assert before in after.parents


def test_critical_path_of_a_chain_is_all_of_it():
    run = trace(12, "linear")
    assert run.critical_path() == (12, run.products)
    assert run.critical_path({"mm": 1000, "mv": 3})[0] == 36
    assert trace(0, "blelloch").critical_path() == (0, [])


@pytest.mark.parametrize("method, k, length", [*((*each, None) for each in METHODS), ("chunked", None, 7)])
@pytest.mark.parametrize("workers", [1, 3, 10**4])
def test_list_schedule_of_a_run(method, k, length, workers):
    run, cost = trace(50, method, k, length), multiply_adds(3)
    events = list_schedule(run, workers, cost)
    timeline.check(events, run.needs)
    assert [event.label for event in events] == labels(run.products)
    assert [event.duration for event in events] == [cost[event.kind] for event in events]
    end, path, work = timeline.makespan(events), run.critical_path(cost)[0], run.mm * 27 + run.mv * 9
    assert max(path, work / workers) <= end <= path + work / workers
    assert workers > 1 or end == work
    assert workers < 10**4 or end == path


def test_equation_6_on_p_workers():
    run = trace(4096, "blelloch")
    for p in (4, 64, 1024, 4096):
        steps = timeline.makespan(list_schedule(run, p))
        assert 0.4 * (4096 / p + p.bit_length() - 1) <= steps <= 2 * (4096 / p + p.bit_length())


def test_rows_of_a_chunked_scan_show_products_where_their_last_factor_stood():
    run = trace(7, "chunked", length=3)
    assert [" ".join(labels(row)) for row in run.rows()] == [
        "0 1 2 3 4 5 6 7", "0 0:1 2 2:3 4 5 6 7", "0 0:1 2 2:3 2:4 5 6 7", "0 0:1 2 2:3 0:4 5 6 7",
        "0 0:1 0:2 2:3 0:4 0:5 6 7", "0 0:1 0:2 0:3 0:4 0:5 0:6 7", "0 0:1 0:2 0:3 0:4 0:5 0:6 0:7",
        "I 0 0:1 0:2 0:3 0:4 0:5 0:6 0:7",
    ]
    assert (run.steps, run.mm, run.mv) == (6, 2, 7)


def test_recording_any_levels():
    def halves(a):
        yield from ()

    run = record([Traced("vector", (0, 0), [])], halves([]), "nothing")
    assert (run.n, run.method, run.steps, run.work, run.rows()) == (0, "nothing", 0, 0, [run.inputs])
