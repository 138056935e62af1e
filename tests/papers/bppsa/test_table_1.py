import pandas
import pytest
from measuring import measure

from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import table_1

SECONDS = {  # one thread, two threads
    "copy": (1.0, 1.0), "values": (2.0, 1.0), "pattern and values": (10.0, 8.0),
    "autograd": (400.0, 800.0), "autograd, stored": (500.0, 100.0),
}


def recording():
    """Times of a round number of seconds, longer for every operator."""
    rows = [
        {"operator": operator, "name": name, "threads": threads, "seconds": seconds * (i if "auto" in name else 1)}
        for i, operator in enumerate(table_1.OPERATORS, 1)
        for name, both in SECONDS.items()
        for threads, seconds in enumerate(both, 1)
    ]
    table = pandas.DataFrame(rows)
    table.attrs = {"torch": "9.9", "provenance": {"cpu": "Abacus", "cores": 2, "date": "2001-02-03"}}
    return table


def test_speedups_are_those_of_one_thread_and_reach_over_all():
    found = table_1.speedups(recording()).set_index("operator")
    assert list(found.index) == list(table_1.OPERATORS)
    first, last = found.iloc[0], found.iloc[2]
    assert (first["speedup_values"], first["speedup_values_low"], first["speedup_values_high"]) == (200, 100, 800)
    assert (first["speedup_pattern"], first["speedup_pattern_low"], first["speedup_pattern_high"]) == (40, 12.5, 100)
    assert last["speedup_values"] == 600


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(experiments, "table", lambda *name: recording())
    monkeypatch.setattr(experiments, "recordings", lambda name: [("cpu", "paper")])
    return measure(table_1, SECONDS={"quick": 0.0})


def test_values_are_counted_and_timed(table):
    assert table["operator"].tolist() == ["Convolution", "ReLU", "Max-pooling"]
    assert table["dense_mib"].tolist() == [768, 16384, 4096]
    assert (table[["copy", "fill", "over_copy"]] > 0).all(axis=None)


def test_the_figure_says_where_its_numbers_come_from(table):
    above, below = table_1.plot(table).axes
    assert "Abacus, 2 cores, PyTorch 9.9, 2001-02-03" in below.get_title()
    cells = {place: cell.get_text().get_text() for place, cell in above.tables[0].get_celld().items()}
    assert cells[1, 2] == "0.99157 / 0.99157" and cells[2, 5] == "1.2e6 / 4.0e2 / 8.0e1"


def test_the_recording_is_there_and_complete():
    found = table_1.speedups(experiments.table("jacobian_generation", "paper"))
    assert found["operator"].tolist() == list(table_1.OPERATORS)
    assert not found.isna().any(axis=None) and (found.drop(columns="operator") > 1).all(axis=None)


def test_without_a_recording_the_error_says_how_to_make_one(monkeypatch):
    monkeypatch.setattr(experiments, "recordings", lambda name: [])
    with pytest.raises(FileNotFoundError, match="benchmarks/jacobians.py"):
        measure(table_1, SECONDS={"quick": 0.0})


@pytest.mark.parametrize("value, text", [(8300, "8.3e3"), (1.2e6, "1.2e6"), (150000, "1.5e5"), (7.04, "7.0e0")])
def test_numbers_are_written_as_in_the_paper(value, text):
    assert table_1.scientific(value) == text
