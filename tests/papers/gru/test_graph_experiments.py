import numpy as np
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.gru import save_or_recompute
from bppsa_nb.papers.progress import Progress


def measure(name):
    return experiments.load(name).measure("quick", np.random.default_rng(0), Progress(show=False))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(save_or_recompute, "SIZES", {"quick": {"B": 2, "H": 8}})
    monkeypatch.setattr(save_or_recompute, "CHAIN", {"quick": {"B": 2, "H": 4}})
    monkeypatch.setattr(save_or_recompute, "LENGTHS", {"quick": (4, 9)})
    monkeypatch.setattr(save_or_recompute, "SECONDS", {"quick": 0.0})


def test_save_or_recompute_counts_what_it_times(tiny):
    table = measure("save_or_recompute")
    subsets = table[table["part"] == "subset"]
    assert len(subsets) == 32 and (table["seconds"] > 0).all() and (table["rounds"] == 3).all()
    named = subsets[subsets["name"] != "another"].set_index("name")[["kept", "kept_inputs", "products", "launches"]]
    assert named.T.to_dict("list") == {
        "nothing": [0, 3, 3, 8],
        "variant 3": [3, 0, 1, 1],
        "variant 4": [3, 1, 0, 4],
        "everything": [5, 0, 0, 0],
    }
    work = subsets.set_index("name")["work"]
    assert (work["nothing"], work["variant 3"], work["variant 4"], work["everything"]) == (3 * 8 + 8, 8 + 1, 4, 0)
    chain = table[table["part"] == "chain"].set_index(["T", "name"])[["steps", "held"]]
    assert chain.loc[4, "everything"].tolist() == [4, 24] and chain.loc[9, "everything"].tolist() == [9, 54]
    assert chain.loc[9, "h every √T steps"].tolist() == [18, 3 - 1 + 18]
    assert chain.loc[4, "nothing"].tolist() == [14, 7] and chain.loc[9, "nothing"].tolist() == [54, 7]


def test_calls_take_turns():
    ran = []
    found = save_or_recompute.quartiles([lambda: ran.append("a"), lambda: ran.append("b")], seconds=0)
    assert ran == ["a", "b"] * 4 and len(found) == 2  # once before, untimed
    for timed in found:
        assert timed["rounds"] == 3 and 0 <= timed["low"] <= timed["seconds"] <= timed["high"]
