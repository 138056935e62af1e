import time

import numpy as np
import pandas
import pytest

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.papers.bppsa import epochs, figure_08, iterations, tables_4_5
from bppsa_nb.papers.progress import Progress

TIMED = pandas.DataFrame(
    [
        {"backend": "cpu", "T": 10, "B": 16, "method": "linear", "forward": 2.0, "backward": 4.0},
        {"backend": "cpu", "T": 10, "B": 16, "method": "blelloch", "forward": 2.0, "backward": 1.0},
        {"backend": "cpu", "T": 10, "B": 16, "method": "chunked", "forward": 2.0, "backward": 8.0},
    ]
).assign(backward_std=[0.125, 0.25, 0.5], rounds=3)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_every_method_is_timed_in_the_same_rounds(backend):
    point = {"backend": backend, "T": 5, "B": 2}
    rows = iterations.time_rnn(point, np.random.default_rng(0), seconds=0)
    assert [row["method"] for row in rows] == ["linear", "blelloch", "chunked"]
    assert [row["rounds"] for row in rows] == [3] * 3
    assert len({row["forward"] for row in rows}) == 1 and rows[0]["forward"] > 0
    assert all(row["backward"] > 0 and row["backward_std"] >= 0 for row in rows)


def test_every_method_is_charged_its_own_time(monkeypatch):
    # On a clock that only the passes move.
    now, seconds = [0.0], {"linear": 2, "blelloch": 4, "chunked": 8}
    forward, backward = RNN.forward, RNN.backward

    def slow_forward(*args, **kwargs):
        now[0] += 1
        return forward(*args, **kwargs)

    def slow_backward(*args, method, **kwargs):
        now[0] += seconds[method]
        return backward(*args, method=method, **kwargs)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(RNN, "forward", slow_forward)
    monkeypatch.setattr(RNN, "backward", slow_backward)
    rows = iterations.time_rnn({"backend": "numpy", "T": 3, "B": 2}, np.random.default_rng(0), seconds=0)
    assert {row["method"]: (row["forward"], row["backward"]) for row in rows} == {
        method: (1, each) for method, each in seconds.items()
    }


def test_speedups_are_ratios_of_times():
    (found,) = figure_08.speedups(TIMED).to_dict("records")
    assert (found["bp"], found["bppsa"], found["bppsa_std"]) == (4.0, 1.0, 0.25)
    assert found["backward"] == 4.0 and found["overall"] == (2 + 4) / (2 + 1)
    assert (found["chunked"], found["chunked_std"], found["backward_chunked"]) == (8.0, 0.5, 0.5)


def test_recordings_without_chunks_can_be_compared():
    (found,) = figure_08.speedups(TIMED[TIMED["method"] != "chunked"]).to_dict("records")
    assert found["backward"] == 4.0 and np.isnan(found["chunked"]) and np.isnan(found["backward_chunked"])


def test_an_epoch_is_32000_samples():
    (found,) = tables_4_5.epochs(TIMED).to_dict("records")
    expected = {"forward": 2.0, "baseline": 6.0, "bppsa": 3.0, "bppsa_spread": 0.25}
    assert found == {"T": 10, "B": 16} | {name: seconds * 2000 for name, seconds in expected.items()}
    (ratios,) = epochs.breakdown(tables_4_5.epochs(TIMED)).to_dict("records")
    assert (ratios["overall"], ratios["backward"]) == (2.0, 4.0)


def test_paper_scale_is_the_grid_of_tables_4_and_5():
    from bppsa_nb.papers import published

    assert list(iterations.RNN_LENGTHS["paper"]) == published.table("table_4")["T"].tolist()
    assert list(iterations.RNN_BATCHES) == published.table("table_5")["B"].tolist()
    assert iterations.RNN_LENGTH["paper"] == 1000 and iterations.RNN_BATCH == 16


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(iterations, "RNN_LENGTHS", {"quick": (2, 5)})
    monkeypatch.setattr(iterations, "RNN_LENGTH", {"quick": 5})
    monkeypatch.setattr(iterations, "RNN_BATCHES", (16, 2))
    monkeypatch.setattr(iterations, "RNN_SECONDS", {"quick": 0.0})


def test_figure_8_has_six_panels(tiny):
    table = figure_08.measure("quick", np.random.default_rng(0), Progress(show=False))
    # Sizes times methods; the size that both sweeps share comes once.
    assert table.groupby("backend").size().eq(3 * 3).all() and {"numpy", "cpu"} <= set(table["backend"])
    fig = figure_08.plot(table)
    titles = [ax.get_title() for ax in fig.axes]
    assert [title[:3] for title in titles] == ["(a)", "(b)", "(c)", "(d)", "(e)", "(f)"]
    assert [text.get_text() for text in fig.axes[5].get_xticklabels()] == ["1/16", "1/2"]
    speedups, bars = fig.axes[4].lines, fig.axes[5].patches
    assert len(speedups) == 2 * table["backend"].nunique() + 1  # levels and chunks, and the line at 1
    assert len(bars) == 2 * 3 * 2  # sizes, methods, forward and backward pass


def test_tables_4_and_5_hold_the_paper_s_rows_and_ours(tiny, monkeypatch):
    monkeypatch.setattr(tables_4_5, "LIMIT", {"quick": 30 * 16})
    table = tables_4_5.measure("quick", np.random.default_rng(0), Progress(show=False))
    assert (table["source"] == "paper").sum() == 16
    ours = table[table["source"] == "here"]
    assert ours[["table", "T", "B"]].values.tolist() == [["table_4", 10, 16], ["table_4", 30, 16]]
    fig = tables_4_5.plot(table)
    assert [ax.get_title() for ax in fig.axes] == ["Table 4", "Table 5", "", ""]
