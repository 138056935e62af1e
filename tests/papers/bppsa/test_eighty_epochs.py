import numpy as np
import pytest

from bppsa_nb.papers.bppsa import eighty_epochs, whole_trainings
from bppsa_nb.papers.claims import rnn
from bppsa_nb.papers.claims.claim import MISSED, REPRODUCED
from bppsa_nb.papers.progress import Progress
from bppsa_nb.training.trainer import Trainer


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"T": 12, "SAMPLES": 48, "EPOCHS": 4, "EVERY": 5, "SEEDS": 2, "RATE": 1e-2}
    for name, value in sizes.items():
        monkeypatch.setattr(eighty_epochs, name, value)


def measure(path=None):
    return eighty_epochs.measure("paper", None, Progress(path, {"name": "toy"}, show=False))


def test_every_method_trains_the_same_network_to_the_same_loss():
    table = measure()
    rows = table.groupby(["seed", "method"])
    three = ["chunked", "linear", "nudged"]
    assert list(rows.groups) == [(0, method) for method in ["blelloch", *three]] + [(1, method) for method in three]
    assert (rows["iteration"].agg(list).map(str) == "[0, 5, 10]").all() and (table["seconds"] > 0).all()
    assert table["apart"].max() <= 1e-5 and (table.loc[table["method"] == "linear", "apart"] == 0).all()
    first = rows["loss"].first()
    assert first[0].nunique() == 4 or np.ptp(first[0]) < 1e-6
    assert abs(first[0, "linear"] - first[1, "linear"]) > 1e-4  # another network, other samples
    assert table.loc[table["method"] == "nudged", "apart"].max() > 0
    assert table["accuracy"].notna().sum() == 7 and table["accuracy"].max() <= 1


def test_a_training_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    whole, path, iterate = measure(), tmp_path / "toy.partial.json", Trainer._iterate
    done = []

    def stop(after):
        def counted(self, *arguments):
            if len(done) == after:
                raise KeyboardInterrupt
            done.append(self.method)
            iterate(self, *arguments)

        monkeypatch.setattr(Trainer, "_iterate", counted)

    for after in (7, 20, 64):  # in the middle of an epoch: in the first method, in the second, with the second seed
        stop(after)
        with pytest.raises(KeyboardInterrupt):
            measure(path)
    stop(None)
    columns = ["seed", "method", "iteration", "loss", "apart", "accuracy"]
    assert measure(path)[columns].equals(whole[columns])
    # An epoch is three iterations, kept after each: of those that were begun, one or two were done again.
    assert len(done) == 7 * 12 + 1 + 1 + 2 and done.count("blelloch") <= 12 + 2


def test_words_and_figure():
    table = measure()
    eighty_epochs.T = 1000  # as the paper's table has it; the fixture puts it back
    assert "on the paper's V100, 53.33 s by BPTT (cuDNN) and 29.29 s by BPPSA (Table 4)" in eighty_epochs.caption(table)
    assert "lines by BPTT, with marks by BPPSA on them" in eighty_epochs.alt(table)
    left, middle, right = eighty_epochs.plot(table).axes
    assert [len(ax.lines) for ax in (left, middle, right)] == [5, 3, 3] and len(right.collections) == 2
    said = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in (left, right)]
    linear, nudged, *bppsa = whole_trainings.METHODS.values()
    assert said == [[linear, *bppsa], [*bppsa[::-1], nudged]]
    assert eighty_epochs.ends(table)["epoch"].gt(0).all()


@pytest.mark.parametrize("method, apart, found", [("blelloch", 1.9, REPRODUCED), ("chunked", 2.1, MISSED)])
def test_bppsa_must_stay_as_near_to_bptt_as_bptt_with_a_bit_changed(method, apart, found):
    table = measure()
    bptt = table[table["method"] == "linear"].set_index(["seed", "iteration"])["loss"]
    for name, by in {"nudged": 1e-3, "chunked": 1e-3, "blelloch": 1e-3, method: apart * 1e-3}.items():
        chosen = table["method"] == name
        keys = list(zip(table.loc[chosen, "seed"], table.loc[chosen, "iteration"], strict=True))
        table.loc[chosen, "loss"] = (bptt.loc[keys] * (1 + by)).to_numpy()
    (claim,) = [claim for claim in rnn.claims() if claim.experiment == "eighty_epochs"]
    ours, judged = claim.check(table)
    assert judged == found and f"{apart}× for {whole_trainings.METHODS[method]}" in ours
