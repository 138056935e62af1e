"""Figures 8 and 9, Tables 4 to 6: iterations that are timed, and epochs made of them."""

import time

import numpy as np
import pandas as pd
import pytest
from measuring import measure
from rings import on_gpu

from bppsa_nb.cells import gru
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains.structured import jacobians_T
from bppsa_nb.machine import backends, files
from bppsa_nb.papers import experiments, published
from bppsa_nb.papers.bppsa import epochs, figure_08, figure_09, iterations, table_6, tables_4_5
from bppsa_nb.training.datasets.audio import Features

SMALL = {"S": Features(2, 1024, 33075), "M": Features(3, 1024, 26460), "L": Features(2, 1024, 13230)}
TIMED = pd.DataFrame({"method": iterations.METHODS, "forward": 2.0, "backward": [4.0, 1.0, 8.0], "rounds": 3}).assign(
    backend="cpu", T=10, B=16, backward_std=[0.125, 0.25, 0.5]
)
SECONDS = {"forward": 1.0, "baseline": 3.0, "forward_overhead": 1.5, "bppsa": 2.0, "chunked": 4.5}


@pytest.mark.parametrize("backend", ["numpy", "cpu", on_gpu("cuda")])
def test_what_is_assembled_is_what_the_scan_takes(backend):
    rng = np.random.default_rng(0)
    model = gru.GRU(3, 3, 2, rng=rng)
    activations = model.forward(rng.standard_normal((6, 2, 3), np.float32), backend="numpy")
    found = iterations.assembly(model, activations, backend)()
    if backend == "cuda":
        mats, exps = (array.copy_to_host() for array in found)
        found = mats * np.exp2(exps)[..., None, None]
    np.testing.assert_allclose(found, jacobians_T(model.chain(activations, backend="numpy")), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_all_is_timed_in_the_same_rounds(backend, monkeypatch):
    rng = np.random.default_rng(0)
    rows = iterations.time_rnn({"backend": backend, "T": 5, "B": 2}, rng, seconds=0)
    assert [(row["method"], row["rounds"]) for row in rows] == [(method, 3) for method in iterations.METHODS]
    assert len({row["forward"] for row in rows}) == 1 and rows[0]["forward"] > 0
    assert all(row["backward"] > 0 and row["backward_std"] >= 0 for row in rows)
    monkeypatch.setattr(iterations, "FEATURES", SMALL)
    (row,) = iterations.time_gated({"cell": "GRU", "features": "S", "B": 2}, rng, backend, seconds=0)
    assert row["rounds"] == 3 and all(row[f"{name}_spread"] >= 0 for name in SECONDS)
    assert 0 < row["forward"] < min(row[name] for name in SECONDS if name != "forward")


def test_every_part_is_charged_to_what_needs_it(monkeypatch):
    # On a clock that only the parts move: the forward pass by 1, BPTT by 2, BPPSA by 4 or 16, the assembly by 8.
    now, by_method = [0.0], {"linear": 2, "blelloch": 4, "chunked": 16}

    def moves_by(find_seconds, function):
        def moving(*args, **kwargs):
            now[0] += find_seconds(kwargs)
            return function(*args, **kwargs)

        return moving

    monkeypatch.setattr(iterations, "FEATURES", SMALL)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for model in (RNN, gru.GRU):
        monkeypatch.setattr(model, "forward", moves_by(lambda _: 1, model.forward))
        monkeypatch.setattr(model, "backward", moves_by(lambda given: by_method[given["method"]], model.backward))
    assembly, rng = iterations.assembly, np.random.default_rng(0)
    monkeypatch.setattr(iterations, "assembly", lambda *args: moves_by(lambda _: 8, assembly(*args)))
    rows = iterations.time_rnn({"backend": "numpy", "T": 3, "B": 2}, rng, seconds=0)
    assert {row["method"]: (row["forward"], row["backward"]) for row in rows} == {
        method: (1, each) for method, each in by_method.items()
    }
    (row,) = iterations.time_gated({"cell": "GRU", "features": "M", "B": 2}, rng, "numpy", seconds=0)
    seconds = {"forward": 1, "baseline": 1 + 2, "forward_overhead": 1 + 8, "bppsa": 1 + 4, "chunked": 1 + 16}
    assert row == seconds | {f"{name}_spread": 0 for name in seconds} | {"rounds": 3}


def test_speedups_are_ratios_of_times():
    (found,) = iterations.speedups(TIMED).to_dict("records")
    assert (found["bp"], found["bppsa"], found["bppsa_std"]) == (4.0, 1.0, 0.25)
    assert found["backward"] == 4.0 and found["overall"] == (2 + 4) / (2 + 1)
    assert (found["chunked"], found["chunked_std"], found["backward_chunked"]) == (8.0, 0.5, 0.5)
    (found,) = iterations.speedups(TIMED[TIMED["method"] != "chunked"]).to_dict("records")  # an older recording
    assert found["backward"] == 4.0 and np.isnan(found["chunked"]) and np.isnan(found["backward_chunked"])


def test_an_epoch_is_32000_samples():
    (found,) = tables_4_5.epochs(TIMED).to_dict("records")
    expected = {"forward": 2.0, "baseline": 6.0, "bppsa": 3.0, "bppsa_spread": 0.25}
    assert found == {"T": 10, "B": 16} | {name: seconds * 2000 for name, seconds in expected.items()}
    (ratios,) = epochs.breakdown(tables_4_5.epochs(TIMED)).to_dict("records")
    assert (ratios["overall"], ratios["backward"]) == (2.0, 4.0)


def test_columns_come_apart_as_appendix_g_says():
    table = pd.DataFrame({"forward": [4.0], "baseline": [10.0], "forward_overhead": [5.0], "bppsa": [7.0]})
    (found,) = epochs.breakdown(table).to_dict("records")
    assert (found["fp"], found["fo"], found["bp"], found["bppsa_alone"]) == (4, 1, 6, 2)
    assert (found["overall"], found["backward"], found["overhead"]) == (10 / 7, 3, 0.25)
    assert "chunked_alone" not in found
    (found,) = epochs.breakdown(table.assign(chunked=12.0)).to_dict("records")
    assert (found["chunked_alone"], found["backward_chunked"]) == (8, 0.75)


def test_paper_scale_is_the_grid_of_tables_4_and_5():
    assert list(iterations.RNN_LENGTHS["paper"]) == published.table("table_4")["T"].tolist()
    assert list(iterations.RNN_BATCHES) == published.table("table_5")["B"].tolist()
    assert iterations.RNN_LENGTH["paper"] == 1000 and iterations.RNN_BATCH == 16


def test_lengths_and_batches_are_swept_and_tables_4_and_5_hold_the_paper_s_rows_too(monkeypatch):
    for name, value in {"LENGTHS": {"quick": (2, 5)}, "LENGTH": {"quick": 5}, "BATCHES": (16, 2)}.items():
        monkeypatch.setattr(iterations, f"RNN_{name}", value)
    monkeypatch.setitem(iterations.RNN_SECONDS, "quick", 0.0)
    table = measure(figure_08)
    # Sizes times methods; the size that both sweeps share comes once.
    assert table.groupby("backend").size().eq(3 * 3).all() and {"numpy", "cpu"} <= set(table["backend"])
    ticks = [text.get_text() for text in figure_08.plot(table).axes[5].get_xticklabels()]
    assert ticks == ["1/16", "1/2"]
    table = measure(tables_4_5, LIMIT={"quick": 30 * 16})
    ours = table[table["source"] == "here"]
    assert (table["source"] == "paper").sum() == 16
    assert ours[["table", "T", "B"]].values.tolist() == [["table_4", 10, 16], ["table_4", 30, 16]]


def test_the_paper_s_rows_come_first_and_an_epoch_is_irmas(monkeypatch):
    monkeypatch.setattr(epochs, "FEATURES", SMALL)
    row = SECONDS | {f"{name}_spread": 0.25 for name in SECONDS} | {"rounds": 3}
    monkeypatch.setattr(epochs, "time_gated", lambda *args, **kwargs: [row])
    table, printed = measure(figure_09), published.table("table_6")
    assert table.iloc[:9][printed.columns].equals(printed)
    ours = table[table["source"] == "here"].set_index(["features", "B"])
    assert sorted(ours.index) == sorted(zip(printed["features"], printed["B"], strict=True))
    assert ours.loc[("L", 64), "forward"] == pytest.approx(6705 / 64)
    lstm = table[table["source"] == "here, LSTM"].set_index(["features", "B"])
    assert lstm.drop(columns="source").equals(ours.drop(columns="source")) or backends.resolve("auto") == "cuda"
    found = ours.loc[("S", 16), ["bppsa", "bppsa_spread", "rounds"]].tolist()
    assert found == pytest.approx([2 * 6705 / 16, 0.25 * 6705 / 16, 3])


@pytest.fixture
def figure_9s():
    """Give Figure 9's table, in which this machine takes twice as long as the paper's."""
    printed = published.table("table_6")
    ours = printed.assign(**{name: 2 * printed[name] for name in SECONDS if name in printed}, source="here")
    table = pd.concat([printed.assign(source="paper"), ours], ignore_index=True)
    table["T"] = table["features"].map({"S": 259, "M": 517, "L": 1034})
    table.attrs = {"machine_of_the_paper": printed.attrs["gpu"], "backend": "cpu"}
    return table


def test_this_machine_s_recording_of_figure_9_is_table_6_s_too(figure_9s, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    experiments.record(figure_9s, "figure_09", "quick", 0)
    origin = experiments.table("figure_09").attrs["provenance"]
    measured = experiments.run("table_6", "quick", 0, progress=False)
    pd.testing.assert_frame_equal(measured, experiments.table("figure_09"))
    assert measured.attrs["recorded_on"] == origin["date"]
    assert (measured.attrs["provenance"]["name"], measured.attrs["provenance"]["backend"]) == ("table_6", "cpu")
    labels = [text.get_text() for text in table_6.plot(measured).legends[0].get_texts()]
    assert f"this machine, {origin['date']}" in labels


@pytest.mark.parametrize("there", ["none", "another machine's"])
def test_otherwise_table_6_measures(figure_9s, there, tmp_path, monkeypatch, committed, describe_as):
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    if there != "none":
        describe_as(cpu="Abacus")
        with experiments.references():
            experiments.record(figure_9s, "figure_09", "quick", 0)
        describe_as()
    monkeypatch.setattr(epochs, "measure_gru", lambda *args: args)
    assert table_6.measure("quick", 1, 2) == ("quick", 1, 2)
