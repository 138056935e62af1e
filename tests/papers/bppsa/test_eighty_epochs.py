"""Whole trainings, which can be stopped and go on."""

import numpy as np
import pandas as pd
import pytest

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import eighty_epochs
from bppsa_nb.papers.progress import Progress
from bppsa_nb.training.datasets import audio, instruments
from bppsa_nb.training.trainer import Trainer

pytestmark = pytest.mark.outer
KEYS = ["features", "seed", "method"]
COURSES = {"RNN": eighty_epochs.Course(2, 0.5, 2, 1e-2)}
COURSES |= dict.fromkeys("SML", eighty_epochs.Course(4, 2, 2, eighty_epochs.curves.GRU_RATE))
SIZES = {"T": 12, "SAMPLES": 64, "LOOK": 2, "AT_ONCE": 1, "COURSES": COURSES}


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    """Train for few epochs, here, not in other processes, on four clips of every instrument, in two recordings."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "root", lambda: root)
        # The sound itself for features: librosa compiles for long.
        patch.setattr(audio, "_from_librosa", lambda: None)
        sizes = {name: (each.frames, each.size) for name, each in audio.FEATURES.items()}
        patch.setattr(audio, "mfcc", lambda sound, features: np.resize(99 * sound, sizes[features]))
        patch.setattr(instruments, "clips", lambda _, progress: instruments.stand_in(count=44, progress=progress))
        for name, value in SIZES.items():
            patch.setattr(eighty_epochs, name, value)
        yield


def measure(folder):
    return eighty_epochs.measure("paper", None, Progress(folder / "toy.partial.json", {"name": "toy"}, show=False))


@pytest.fixture(scope="module")
def table(small, tmp_path_factory):
    return measure(tmp_path_factory.mktemp("measured"))


def test_every_method_trains_the_same_network_to_the_same_loss(table):
    trainings = table.groupby(KEYS)
    # 64 samples are four batches, 22 clips two; a row is two iterations, or four.
    rows = trainings["iteration"].agg(list)
    assert all(each == ([0, 2, 4, 6] if name[0] == "RNN" else [0, 4]) for name, each in rows.items())
    assert table.groupby("features")["epoch"].max().to_dict() == {"RNN": 2, "S": 4, "M": 4, "L": 4}
    assert table["seconds"].gt(0).all() and table["apart"].max() <= 1e-4
    bptt, control = (table[table["method"] == method] for method in ("linear", "nudged"))
    assert bptt["apart"].eq(0).all() and control["apart"].gt(0).any()
    losses = trainings["loss"].first().unstack("method")
    assert np.nanmax(abs(losses.sub(losses["linear"], axis=0))) < 1e-5
    assert losses["linear"].round(4).is_unique  # networks and samples of their own
    looks = table["epoch"] % 2 == 0
    assert table.loc[looks, "accuracy"].between(0, 1).all() and table.loc[~looks, "accuracy"].isna().all()


def test_methods_and_seeds_are_those_wanted(table):
    found = {features: list(rows.groupby(["seed", "method"]).groups) for features, rows in table.groupby("features")}
    three, both = ["chunked", "linear", "nudged"], [(seed, by) for seed in (0, 1) for by in ("chunked", "linear")]
    assert found["RNN"] == [(0, method) for method in ["blelloch", *three]] + [(1, method) for method in three]
    assert found["M"] == found["L"] == sorted([*both, (0, "nudged")])
    assert found["S"] == sorted([*both, (0, "nudged"), (0, "blelloch")])


def test_a_training_ends_with_whoever_started_it(tmp_path):
    with pytest.raises(RuntimeError, match="whoever started this training was killed"):
        eighty_epochs.train(None, ("RNN", 0, "linear"), tmp_path, 2**22 + 1)  # beyond the largest number of a process


def test_trainings_that_were_stopped_go_on(table, tmp_path, monkeypatch):
    iterate, evaluate, done, seen = Trainer._iterate, Trainer.evaluate, [], []

    def stop(after):
        def counted(self, *arguments):
            if len(done) == after:
                raise KeyboardInterrupt
            done.append(self.method)
            iterate(self, *arguments)

        monkeypatch.setattr(Trainer, "_iterate", counted)

    def counting(*arguments):
        seen.append(arguments)
        return evaluate(*arguments)

    def stopped(*arguments):
        monkeypatch.setattr(Trainer, "evaluate", counting)
        raise KeyboardInterrupt  # between an epoch that was kept, and the look at it

    monkeypatch.setattr(Trainer, "evaluate", counting)
    # In the middle of an epoch: in the first training, and, one iteration done again, in the last one but one. What is
    # kept after each epoch is not done again, nor looked at again.
    for after in (3, 16 * 8 + 7 + 1 + 3):
        stop(after)
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path)
    stop(None)
    monkeypatch.setattr(Trainer, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    pd.testing.assert_frame_equal(measure(tmp_path).drop(columns="seconds"), table.drop(columns="seconds"))
    trainings, looks = 16 + 7, 16 * 2 + 7
    assert len(seen) == looks and trainings * 8 < len(done) <= trainings * 8 + 1 + 3


def test_the_quick_scale_collects_what_was_recorded_and_from_what_data(table):
    experiments.record(table, "eighty_epochs", "paper", 0)
    collected = eighty_epochs.measure("quick", None, None)
    assert collected.attrs["data"] == "stand-in"  # which does not pass for real
    assert collected["machine"].nunique() == 1 and collected[list(table)].equals(table)


def test_the_gru_s_trainings_may_have_been_recorded_apart(table):
    rnn, gru = (table[(table["features"] == "RNN") == which].reset_index(drop=True) for which in (True, False))
    experiments.record(rnn.drop(columns=["features", "T", "epoch"]), "eighty_epochs", "paper", 0)
    gru.attrs["data"] = "stand-in"
    experiments.record(gru, "four_hundred_epochs", "paper", 0)
    collected = eighty_epochs.measure("quick", None, None)
    same = ["features", "T", "seed", "method", "iteration", "loss", "accuracy"]
    pd.testing.assert_frame_equal(collected[same], table[same], check_dtype=False)
    assert collected.attrs["data"] == "stand-in"
