import pandas as pd
import pytest

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, provenance, published
from bppsa_nb.papers.bppsa import epochs, table_6


def seconds():
    """Give a table in which this machine takes twice as long as the paper's."""
    printed = published.table("table_6")
    ours = printed.assign(**{name: 2 * printed[name] for name in ("forward", "baseline", "forward_overhead", "bppsa")})
    table = pd.concat([printed.assign(source="paper"), ours.assign(source="here")], ignore_index=True)
    table["T"] = table["features"].map({"S": 259, "M": 517, "L": 1034})
    table.attrs = {"machine_of_the_paper": printed.attrs["gpu"]}
    return table


def test_without_a_recording_figure_9_s_measurement_is_made(monkeypatch):
    monkeypatch.setattr(experiments, "recordings", lambda name: [("cpu", "paper"), ("another", "quick")])
    monkeypatch.setattr(epochs, "measure_gru", lambda *args: args)
    assert table_6.measure("quick", 1, 2) == ("quick", 1, 2)


def test_this_machine_s_recording_of_figure_9_serves_both(tmp_path, monkeypatch):
    table = seconds()
    table.attrs["backend"] = "cpu"
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    experiments.record(table, "figure_09", "quick", 0)
    origin = experiments.table("figure_09").attrs["provenance"]
    measured = experiments.run("table_6", "quick", 0, progress=False)
    pd.testing.assert_frame_equal(measured, experiments.table("figure_09"))
    assert measured.attrs["recorded_on"] == origin["date"]
    assert (measured.attrs["provenance"]["name"], measured.attrs["provenance"]["backend"]) == ("table_6", "cpu")
    labels = [text.get_text() for text in table_6.plot(measured).legends[0].get_texts()]
    assert f"this machine, {origin['date']}" in labels


def test_another_machine_s_reference_of_figure_9_is_not_taken_for_this_one_s(tmp_path, monkeypatch, committed):
    table = seconds()
    table.attrs["backend"] = "cpu"
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    describe = provenance.describe
    with monkeypatch.context() as patch, experiments.references():
        patch.setattr(provenance, "describe", lambda *args: describe(*args) | {"cpu": "Abacus"})
        experiments.record(table, "figure_09", "quick", 0)
    monkeypatch.setattr(epochs, "measure_gru", lambda *args: args)
    assert table_6.measure("quick", 1, 2) == ("quick", 1, 2)


def test_both_machines_are_drawn_for_every_batch_size():
    fig = table_6.plot(seconds())
    above, below = fig.axes[:3], fig.axes[3:]
    assert [ax.get_title() for ax in above] == ["B = 16", "B = 32", "B = 64"]
    assert all(len(ax.lines) == 2 * 4 for ax in above) and all(len(ax.lines) == 2 * 2 + 1 for ax in below)
    forward_here = above[0].lines[4]
    assert forward_here.get_xdata().tolist() == ["S", "M", "L"]
    assert forward_here.get_ydata() == pytest.approx([2 * 1.66, 2 * 3.21, 2 * 5.78])
    overall, backward = below[2].lines[:2]
    assert overall.get_ydata() == pytest.approx([1 / 0.82, 1.82 / 1.2, 3.19 / 2.33])
    assert backward.get_ydata() == pytest.approx([0.48 / 0.2, 0.96 / 0.02, 1.55 / 0.2])
