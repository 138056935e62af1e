"""Figures 8 and 9, Tables 4 to 6: iterations that are timed, and epochs made of them."""

import time

import numpy as np
import pytest
from measuring import measure
from rings import on_gpu

from bppsa_nb.cells import gru
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains.runs import jacobians_T
from bppsa_nb.machine import backends
from bppsa_nb.papers import experiment, tables, words
from bppsa_nb.papers.bppsa import epochs, figure_08, figure_09, iterations
from bppsa_nb.training.datasets.audio import Features

SMALL = {"S": Features(2, 1024, 33075), "M": Features(3, 1024, 26460), "L": Features(2, 1024, 13230)}
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


def test_paper_scale_is_the_grid_of_tables_4_and_5():
    assert list(iterations.RNN_LENGTHS["paper"]) == tables.published("table_4")["T"].tolist()
    assert list(iterations.RNN_BATCHES) == tables.published("table_5")["B"].tolist()
    assert iterations.RNN_LENGTH == 1000 and iterations.RNN_BATCH == 16


def test_lengths_and_batches_are_swept(monkeypatch):
    monkeypatch.setitem(iterations.RNN_LENGTHS, "quick", (2, 1000))
    monkeypatch.setattr(iterations, "RNN_BATCHES", (32, 16, 2, 1))
    monkeypatch.setitem(iterations.RNN_SECONDS, "quick", 0.0)
    table = measure(figure_08, LIMIT={"quick": 1000 * 16})  # B = 32 is too much
    sizes = table[table["method"] == "linear"].groupby("backend")[["T", "B"]].agg(list)
    assert {"numpy", "cpu"} <= set(sizes.index) and len(table) == 3 * 4 * len(sizes)
    # The size that both sweeps share comes once.
    assert all(row == {"T": [2, 1000, 1000, 1000], "B": [16, 16, 2, 1]} for row in sizes.to_dict("records"))
    axes = figure_08.plot(table).axes
    assert [text.get_text() for text in axes[5].get_xticklabels()] == ["1/16", "1/2", "1/1"]


@pytest.mark.parametrize("module", [figure_08, figure_09])
def test_claims_about_epochs_quote_the_printed_tables(module):
    printed = {}
    for name, size in (("table_4", "at T = {T}, B = {B}"), ("table_5", "at T = {T}, B = {B}"),
                       ("table_6", "of the GRU on {features}, B = {B}")):
        printed |= epochs.by_size(epochs.breakdown(tables.published(name)), size)
    claims = [claim for claim in module.FIGURE.claims if claim.where.startswith("Table")]
    assert claims
    for claim in claims:
        said, _ = words.fill(claim.found.replace(".3g", "g"), {"epochs": printed})
        assert claim.number == f"{said} (V100)"
        assert claim.holds({"epochs": printed, "printed": printed}) == experiment.REPRODUCED


def test_the_paper_s_rows_come_first_and_an_epoch_is_irmas(monkeypatch):
    monkeypatch.setattr(figure_09, "FEATURES", SMALL)
    row = SECONDS | {f"{name}_spread": 0.25 for name in SECONDS} | {"rounds": 3}
    monkeypatch.setattr(figure_09, "time_gated", lambda *args, **kwargs: [row])
    table, printed = measure(figure_09), tables.published("table_6")
    assert table.iloc[:9][printed.columns].equals(printed)
    ours = table[table["source"] == "here"].set_index(["features", "B"])
    assert sorted(ours.index) == sorted(zip(printed["features"], printed["B"], strict=True))
    assert ours.loc[("L", 64), "forward"] == pytest.approx(6705 / 64)
    lstm = table[table["source"] == "here, LSTM"].set_index(["features", "B"])
    assert lstm.drop(columns="source").equals(ours.drop(columns="source")) or backends.resolve("auto") == "cuda"
    found = ours.loc[("S", 16), ["bppsa", "bppsa_spread", "rounds"]].tolist()
    assert found == pytest.approx([2 * 6705 / 16, 0.25 * 6705 / 16, 3])
