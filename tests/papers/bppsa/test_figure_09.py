import time

import numpy as np
import pandas
import pytest

from bppsa_nb.cells import gru
from bppsa_nb.chains.structured import jacobians_T
from bppsa_nb.machine import backends
from bppsa_nb.papers import published
from bppsa_nb.papers.bppsa import epochs, figure_09, iterations
from bppsa_nb.papers.progress import Progress
from bppsa_nb.training.datasets.audio import Features

needs_simulator = pytest.mark.skipif(not backends.simulated(), reason="needs NUMBA_ENABLE_CUDASIM=1")
CUDA = [pytest.mark.simulator, needs_simulator]
SMALL = {"S": Features(2, 1024, 33075), "M": Features(3, 1024, 26460), "L": Features(2, 1024, 13230)}


@pytest.mark.parametrize(
    "backend",
    ["numpy", "cpu", pytest.param("cuda", marks=CUDA), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_what_is_assembled_is_what_the_scan_takes(backend):
    rng = np.random.default_rng(0)
    model = gru.GRU(3, 5, 2, rng=rng)
    activations = model.forward(rng.standard_normal((6, 2, 3), np.float32), backend="numpy")
    saved = model.params["weight_hh_l0"], activations.hidden[0], activations.gates[0]
    found = iterations.assembly(*saved, backend)()
    if backend == "cuda":
        mats, exps = (array.copy_to_host() for array in found)
        found = mats * np.exp2(exps)[..., None, None]
    np.testing.assert_allclose(found, jacobians_T(gru.chain(*saved)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_parts_are_timed_in_the_same_rounds(backend, monkeypatch):
    monkeypatch.setattr(iterations, "FEATURES", SMALL)
    (row,) = iterations.time_gru({"features": "S", "B": 2}, np.random.default_rng(0), backend, seconds=0)
    assert row["rounds"] == 3
    whole = ("baseline", "forward_overhead", "bppsa", "chunked")
    assert 0 < row["forward"] < min(row[name] for name in whole)
    assert all(row[f"{name}_spread"] >= 0 for name in ("forward", *whole))


def test_every_part_is_charged_to_what_needs_it(monkeypatch):
    # On a clock that only the parts move: the forward pass by 1, BPTT by 2, BPPSA by 4 or 16, the assembly by 8.
    now = [0.0]

    def moves_by(find_seconds, function):
        def moving(*args, **kwargs):
            now[0] += find_seconds(kwargs)
            return function(*args, **kwargs)

        return moving

    monkeypatch.setattr(iterations, "FEATURES", SMALL)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(gru.GRU, "forward", moves_by(lambda _: 1, gru.GRU.forward))
    by_method = {"linear": 2, "blelloch": 4, "chunked": 16}
    monkeypatch.setattr(gru.GRU, "backward", moves_by(lambda given: by_method[given["method"]], gru.GRU.backward))
    assembly = iterations.assembly
    monkeypatch.setattr(iterations, "assembly", lambda *args: moves_by(lambda _: 8, assembly(*args)))
    (row,) = iterations.time_gru({"features": "M", "B": 2}, np.random.default_rng(0), "numpy", seconds=0)
    seconds = {"forward": 1, "baseline": 1 + 2, "forward_overhead": 1 + 8, "bppsa": 1 + 4, "chunked": 1 + 16}
    assert row == seconds | {f"{name}_spread": 0 for name in seconds} | {"rounds": 3}


def test_columns_come_apart_as_appendix_g_says():
    table = pandas.DataFrame({"forward": [4.0], "baseline": [10.0], "forward_overhead": [5.0], "bppsa": [7.0]})
    (found,) = figure_09.breakdown(table).to_dict("records")
    assert (found["fp"], found["fo"], found["bp"], found["bppsa_alone"]) == (4, 1, 6, 2)
    assert (found["overall"], found["backward"], found["overhead"]) == (10 / 7, 3, 0.25)
    assert "chunked_alone" not in found
    (found,) = figure_09.breakdown(table.assign(chunked=12.0)).to_dict("records")
    assert (found["chunked_alone"], found["backward_chunked"]) == (8, 0.75)


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "FEATURES", SMALL)
        patch.setattr(epochs, "GRU_SECONDS", {"quick": 0.0})
        seconds = {"forward": 1.0, "baseline": 3.0, "forward_overhead": 1.5, "bppsa": 2.0, "chunked": 4.5}
        row = seconds | {f"{name}_spread": 0.25 for name in seconds} | {"rounds": 3}
        patch.setattr(epochs, "time_gru", lambda *args, **kwargs: [row])
        yield figure_09.measure("quick", np.random.default_rng(0), Progress(show=False))


def test_the_paper_s_rows_come_first_and_an_epoch_is_irmas(tiny):
    printed = published.table("table_6")
    assert tiny.iloc[:9][printed.columns].equals(printed)
    ours = tiny[tiny["source"] == "here"].set_index(["features", "B"])
    assert sorted(ours.index) == sorted(zip(printed["features"], printed["B"], strict=True))
    assert ours.loc[("L", 64), "forward"] == pytest.approx(6705 / 64)
    assert ours.loc[("S", 16), "bppsa"] == pytest.approx(2 * 6705 / 16)
    assert ours.loc[("S", 16), "bppsa_spread"] == pytest.approx(0.25 * 6705 / 16)
    assert ours["rounds"].eq(3).all()


def test_bars_are_normalized_by_the_baseline(tiny):
    fig = figure_09.plot(tiny)
    assert [ax.get_title() for ax in fig.axes] == ["NVIDIA V100, from Table 6 of the paper", "This machine"]
    for ax, parts in zip(fig.axes, (2 + 3, 2 + 3 + 2), strict=True):
        assert len(ax.patches) == 9 * parts
        tops = [bar.get_y() + bar.get_height() for bar in ax.patches[9:18]]  # of BP, on top of FP
        assert tops == pytest.approx([1] * 9)
    assert [text.get_text() for text in fig.axes[1].texts] == ["0.67"] * 9 + ["1.5"] * 9
    labels = [text.get_text() for text in fig.axes[0].get_xticklabels()]
    assert labels[:4] == ["S\nB = 16", "M\nB = 16", "L\nB = 16", "S\nB = 32"]
