"""Whole trainings that can be stopped: eighty_epochs and four_hundred_epochs."""

import os

import numpy as np
import pytest

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import eighty_epochs, four_hundred_epochs, whole_trainings
from bppsa_nb.papers.claims import gru, rnn
from bppsa_nb.papers.claims.claim import MISSED, REPRODUCED
from bppsa_nb.papers.progress import Progress
from bppsa_nb.training.datasets import audio, instruments
from bppsa_nb.training.trainer import Trainer

pytestmark = pytest.mark.outer
SIZES = {
    eighty_epochs: {"T": 12, "SAMPLES": 48, "EPOCHS": 4, "EVERY": 5, "SEEDS": 2, "RATE": 1e-2},
    four_hundred_epochs: {"EPOCHS": 4, "EVERY": 2, "AT_ONCE": 1, "SEEDS": 2},
}


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    """Train for few epochs, here, not in other processes, on four clips of every instrument, in two recordings."""
    root, printed = tmp_path_factory.mktemp("project"), files.root() / "data" / "paper"
    (root / "data").mkdir()
    (root / "data" / "paper").symlink_to(printed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "root", lambda: root)
        # The sound itself for features: librosa compiles for long.
        patch.setattr(audio, "_from_librosa", lambda: None)
        patch.setattr(audio, "mfcc", lambda sound, features: np.resize(99 * sound, (features.frames, features.size)))
        patch.setattr(instruments, "clips", lambda _, progress: instruments.stand_in(count=44, progress=progress))
        for module, sizes in SIZES.items():
            for name, value in sizes.items():
                patch.setattr(module, name, value)
        yield


def measure(module, path=None):
    return module.measure("paper", None, Progress(path, {"name": "toy"}, show=False))


@pytest.fixture(scope="module")
def tables(small):
    return {module: measure(module) for module in SIZES}


@pytest.mark.parametrize("module, limit", [(eighty_epochs, 1e-5), (four_hundred_epochs, 1e-4)])
def test_every_method_trains_the_same_network_to_the_same_loss(tables, module, limit):
    table = tables[module]
    keys = [key for key in ("features", "seed", "method") if key in table]
    trainings = table.groupby(keys)
    iterations = {eighty_epochs: "[0, 5, 10]", four_hundred_epochs: "[0, 4]"}[module]  # 22 clips, two batches an epoch
    assert (trainings["iteration"].agg(list).map(str) == iterations).all() and table["seconds"].gt(0).all()
    bptt, control = (table[table["method"] == method] for method in ("linear", "nudged"))
    assert table["apart"].max() <= limit and bptt["apart"].eq(0).all() and control["apart"].gt(0).any()
    losses = trainings["loss"].first().unstack("method")
    assert np.nanmax(abs(losses.sub(losses["linear"], axis=0))) < 1e-5
    assert losses["linear"].round(4).is_unique  # networks and samples of their own


def test_methods_and_seeds_are_those_wanted(tables):
    three = ["chunked", "linear", "nudged"]
    eighty, table = tables.values()
    found = list(eighty.groupby(["seed", "method"]).groups)
    assert found == [(0, method) for method in ["blelloch", *three]] + [(1, method) for method in three]
    assert eighty["accuracy"].notna().sum() == 7 and eighty["accuracy"].max() <= 1
    found = {features: list(rows.groupby(["seed", "method"]).groups) for features, rows in table.groupby("features")}
    both = [(seed, method) for seed in (0, 1) for method in ("chunked", "linear")]
    assert found["M"] == found["L"] == sorted([*both, (0, "nudged")])
    assert found["S"] == sorted([*both, (0, "nudged"), (0, "blelloch")])
    assert table["accuracy"].between(0, 1).all() and table["epoch"].unique().tolist() == [2, 4]


@pytest.mark.parametrize(
    "module, stops, again, watched",
    [
        # In the middle of an epoch: in the first method, in the second, with the second seed. An epoch is three
        # iterations, kept after each: of those that were begun, one or two were done again.
        (eighty_epochs, (7, 20, 64), 7 * 12 + 1 + 1 + 2, 7), (four_hundred_epochs, (3, 30), 16 * 8 + 1, 16 * 2),
    ],
)
def test_trainings_that_were_stopped_go_on(tables, tmp_path, monkeypatch, module, stops, again, watched):
    path, iterate, evaluate = tmp_path / "toy.partial.json", Trainer._iterate, Trainer.evaluate
    done, seen = [], []

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
    for after in stops:
        stop(after)
        with pytest.raises(KeyboardInterrupt):
            measure(module, path)
    stop(None)
    monkeypatch.setattr(Trainer, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(module, path)
    columns = tables[module].columns.drop(["seconds"])
    assert measure(module, path)[columns].equals(tables[module][columns])
    assert len(seen) == watched  # what was watched is kept, too
    assert again - 1 <= len(done) <= again + 1 and (module is four_hundred_epochs or done.count("blelloch") <= 12 + 2)


@pytest.mark.parametrize("module, data", [(eighty_epochs, "synthetic"), (four_hundred_epochs, "stand-in")])
def test_the_quick_scale_collects_what_was_recorded_and_from_what_data(tables, module, data):
    table, name = tables[module], module.__name__.rpartition(".")[2]
    assert table.attrs.get("data", "synthetic") == data
    experiments.record(table, name, "paper", 0)
    collected = module.measure("quick", None, None)
    assert collected.attrs["collected"] and collected.attrs["data"] == data  # a stand-in's does not pass for real
    assert collected["machine"].nunique() == 1 and collected[list(table)].equals(table)


def test_differences_are_from_bptt_on_the_same_features_and_from_the_same_seed(tables):
    table = tables[four_hundred_epochs]
    compared = whole_trainings.differences(table)
    assert set(compared["method"]) == {"nudged", "chunked", "blelloch"} and compared["mean"].max() <= 1e-4
    both = table["features"].eq("M") & table["seed"].eq(1) & table["method"].eq("linear")
    changed = table.assign(loss=table["loss"].where(~both, 2 * table["loss"]))
    far = whole_trainings.differences(changed).query("mean > 0.1")
    assert set(zip(far["features"], far["seed"], far["method"], strict=True)) == {("M", 1, "chunked")}


def test_bppsa_is_held_against_the_control_on_seeds_that_have_both(tables):
    table = tables[four_hundred_epochs]
    ratios = whole_trainings.against_the_control(table[table["features"] == "S"])
    other = table["seed"].eq(1) & table["method"].eq("chunked")
    far = table.assign(loss=table["loss"].where(~other, 100 * table["loss"]))
    assert whole_trainings.against_the_control(far[far["features"] == "S"]) == ratios


def test_a_training_ends_with_whoever_started_it():
    four_hundred_epochs._end_with(os.getpid())
    four_hundred_epochs._end_with(os.getppid())
    with pytest.raises(RuntimeError, match="was killed"):
        four_hundred_epochs._end_with(2**22 + 1)  # beyond the largest number of a process


@pytest.mark.parametrize("apart, found", [(1.9, REPRODUCED), (2.1, MISSED)])
@pytest.mark.parametrize(
    "module, claims, method, said",
    [
        (eighty_epochs, rnn, "blelloch", "{}× for BPPSA, by levels"),
        (eighty_epochs, rnn, "chunked", "{}× for BPPSA, by chunks"),
        (four_hundred_epochs, gru, "chunked", "M: {}× for BPPSA, by chunks ("),
    ],
)
def test_bppsa_must_stay_as_near_to_bptt_as_bptt_with_a_bit_changed(tables, module, claims, method, said, apart, found):
    table = tables[module]
    keys = [key for key in ("features", "seed", "iteration") if key in table]
    bptt = table[table["method"] == "linear"].set_index(keys)["loss"]
    losses = bptt.loc[list(zip(*(table[key] for key in keys), strict=True))].to_numpy()
    by = table["method"].map({"linear": 0.0}).fillna(1e-3)
    far = (table["method"] == method) & (table["features"].eq("M") if "features" in table else True)
    (claim,) = [claim for claim in claims.claims() if claim.experiment == module.__name__.rpartition(".")[2]]
    ours, judged = claim.check(table.assign(loss=losses * (1 + by.where(~far, apart * 1e-3))))
    assert judged == found and said.format(apart) in ours
