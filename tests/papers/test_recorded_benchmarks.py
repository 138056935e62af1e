"""Experiments that draw what `benchmarks/run.py` recorded."""

import numpy as np
import pytest

from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.bppsa import against_pytorch, whole_steps
from bppsa_nb.papers.ooo import kernel_issue

pytestmark = pytest.mark.usefixtures("project")
EXPERIMENTS = {"grid": against_pytorch, "kernel_issue": kernel_issue, "whole": whole_steps}


def record(name, rows, gpu=None, scale="paper", data="synthetic"):
    with pytest.MonkeyPatch.context() as patch:
        about = {"cpu": "Abacus", "cores": 2, "date": "2001-02-03", "gpu": gpu, "device": gpu or "cpu"}
        about |= {"versions": {}, "commit": None, "dirty": None}
        patch.setattr(provenance, "describe", lambda *args: {"name": name, "scale": scale, "seed": 0} | about)
        experiments.record(rows, name, scale, 0, {"backend": "cuda" if gpu else "cpu", "torch": "9.9", "data": data})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_a_recording_the_error_says_how_to_make_one(name):
    record(name, [{"name": "ours"}], scale="quick")  # a first look is not drawn
    with pytest.raises(FileNotFoundError, match=f"no recording of {name}; `python benchmarks/run.py` makes one"):
        EXPERIMENTS[name].measure("quick", None, None)


def test_recordings_of_all_machines_are_put_together():
    record("whole", [{"name": "ours"}])
    record("whole", [{"name": "ours"}], gpu="h200", data="real")
    table = whole_steps.measure("quick", None, None)
    assert table.attrs["data"] == "stand-in"  # what is real on one machine only does not pass for real
    assert table["machine"].tolist() == ["Abacus, 2 cores, PyTorch 9.9, 2001-02-03", "h200, PyTorch 9.9, 2001-02-03"]
    assert table["backend"].tolist() == ["cpu", "cuda"]


def test_issue_and_run_are_drawn_in_pairs():
    ends = {f"{part}{end}": s for part, s in (("issue", 2e-6), ("run", 5e-6)) for end in ("", "_low", "_high")}
    rows = [{"cell": cell, "name": name, **ends} for cell in ("RNN", "GRU") for name in ("torch", "graph")]
    record("kernel_issue", rows, gpu="h200")
    fig = kernel_issue.plot(kernel_issue.measure("quick", None, None))
    rnn, gru = fig.axes
    assert "h200" in fig.subfigs[0].get_suptitle() and gru.get_title().startswith("GRU")
    assert sorted(text.get_text() for text in rnn.texts) == ["2", "2", "5", "5"]
    np.testing.assert_allclose(sorted(bar.get_width() for bar in gru.patches), [2, 2, 5, 5])
