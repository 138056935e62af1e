import numpy as np
import pandas as pd
import pytest
from measuring import measure

from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import retraining
from bppsa_nb.sparse import Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.trainer import Trainer

PRUNINGS = [("class_blind", 0.5), ("class_uniform", 0.8), ("class_distribution", 0.8)]


def tiny(network, seed):
    operators = [Conv2d("conv", 3, 4, 5, stride=3), ReLU("relu"), MaxPool2d("pool", 2), Flatten("flatten")]
    return Network((3, 32, 32), [*operators, Linear("fc", 100, 10)], init="he", rng=seed)


@pytest.fixture
def small(monkeypatch):
    """Make every network a tiny one, and every data set small."""
    monkeypatch.setattr(retraining, "new", tiny)
    monkeypatch.setattr(retraining, "IMAGES", {"train": 40, "test": 20})
    monkeypatch.setattr(retraining, "EPOCHS", {"quick": {"LeNet5": 2}, "paper": {"LeNet5": 2, "VGG11": 4}})
    monkeypatch.setattr(retraining, "fetched", lambda name, split: Images(split=split, num_samples=40))


def run(network="LeNet5", prunings=PRUNINGS, epochs=2, count=40):
    training, unseen = Images(num_samples=count), Images(split="test", num_samples=30)
    return pd.DataFrame(retraining.stages(network, training, unseen, epochs, prunings, 0))


@pytest.fixture
def seen(monkeypatch):
    """Watch every step: optimizer, share of weights that are zero before, parameters after, learning rate, labels."""
    steps = []
    right = Trainer.step

    def step(self, x, y):
        before = [np.mean(param == 0) for param in self.model.params.values() if param.ndim > 1]
        loss = right(self, x, y)
        after = {name: param.copy() for name, param in self.model.params.items()}
        steps.append((self.optimizer, before, after, self.optimizer.lr, y))
        return loss

    monkeypatch.setattr(Trainer, "step", step)
    return steps


def test_shares_are_what_was_asked_for_and_stay_through_retraining(small):
    table = run()
    assert table["stage"].tolist() == ["trained"] + ["pruned", "retrained"] * 3
    assert table["rate"].tolist() == [0, 0.5, 0.5, 0.8, 0.8, 0.8, 0.8]
    assert table["pruned"].to_numpy() == pytest.approx(table["rate"], abs=1e-3)
    uniform = table[table["scheme"] == "class_uniform"]
    for column in ("pruned_least", "pruned_most"):
        assert uniform[column].to_numpy() == pytest.approx(0.8, abs=2e-3)
    blind = table[table["scheme"] == "class_blind"]
    assert (blind["pruned_most"] > 0.51).all() and (blind["pruned_least"] < 0.49).all()


def test_retraining_takes_as_many_iterations_as_training(small, seen):
    table = run()
    assert table["iterations"].tolist() == [6, 0, 6, 0, 6, 0, 6]  # two epochs of 40 images, 16 at a time
    assert len(seen) == 4 * 6 and len({id(optimizer) for optimizer, *_ in seen}) == 4
    assert [before for _, before, *_ in seen[:6]] == [[0, 0]] * 6
    for _, before, *_ in seen[12:18]:
        assert before == pytest.approx([0.8, 0.8], abs=2e-3)
    orders = [np.concatenate([labels for *_, labels in seen[start : start + 6]]).tolist() for start in (0, 6, 12)]
    assert orders[0] != orders[1] == orders[2] and sorted(orders[0]) == sorted(orders[1])


def test_every_way_of_pruning_begins_where_training_ended(small, seen, monkeypatch):
    starts = []
    right = retraining.prune
    copy = lambda params: {name: param.copy() for name, param in params.items()}  # noqa: E731
    monkeypatch.setattr(retraining, "prune", lambda params, *how: (starts.append(copy(params)), right(params, *how))[1])
    run()
    trained = seen[5][2]
    assert len(starts) == 2 * len(PRUNINGS)  # to look at, and to retrain
    for start in starts:
        for name, param in trained.items():
            np.testing.assert_array_equal(start[name], param)


def test_vgg11_is_pruned_in_steps_that_keep_the_same_share_each(small, seen, monkeypatch):
    monkeypatch.setattr(retraining, "GRADUAL", 1 / 3)
    table = run("VGG11", [("class_uniform", 0.97)], epochs=4)
    assert table["iterations"].tolist() == [12, 0, 12]
    assert {optimizer.momentum for optimizer, *_ in seen} == {0.9}
    first, second = np.array([rate for *_, rate, _ in seen]).reshape(2, 12) / [[0.005], [0.01]]
    assert (np.diff(first) < 0).all() and first[[0, 6]] == pytest.approx([1, 0.5]) and 0 < first[-1] < 0.02
    # A third of twelve iterations for the steps before the last: one each. Then it falls as in training.
    assert second[:5] == pytest.approx(1) and (np.diff(second[4:]) < 0).all() and second[8] == pytest.approx(0.5)
    shares = [before[1] for _, before, *_ in seen[12:]]
    parts = [shares.count(share) for share in sorted(set(shares))]
    assert parts == [1, 1, 1, 1, 8] and shares == sorted(shares)
    assert sorted(set(shares)) == pytest.approx([1 - 0.03 ** (k / 5) for k in range(1, 6)], abs=2e-3)
    assert table["pruned"].tolist()[1:] == pytest.approx([0.97, 0.97], abs=1e-3)
    epochs = [np.concatenate([labels for *_, labels in seen[start : start + 3]]) for start in range(0, 24, 3)]
    assert all(sorted(labels) == sorted(epochs[0]) for labels in epochs)  # steps go on where the last one ended


@pytest.mark.outer
def test_pruning_costs_accuracy_and_retraining_gives_it_back():
    settings = {"LeNet5": {"B": 8, "lr": 0.01, "retraining_lr": 0.01, "steps": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retraining, "SETTINGS", settings)
        training, unseen = Images(num_samples=1000), Images(split="test", num_samples=200)
        rows = retraining.stages("LeNet5", training, unseen, 1, [("class_blind", 0.9)], 0)
    trained, pruned, retrained = (row["accuracy"] for row in rows)
    assert trained > 0.4 and pruned < trained - 0.1 and retrained > pruned + 0.1
    assert rows[1]["loss"] > rows[2]["loss"]


def test_a_wrong_gradient_of_the_scan_is_seen(small, monkeypatch):
    assert run()["difference"].dropna().max() <= 1e-5
    right = Network.backward

    def wrong(self, activations, grad_logits, method="auto", *args, **kwargs):
        grads = right(self, activations, grad_logits, method, *args, **kwargs)
        if method == "linear":
            grads["conv.bias"] *= 1.001
        return grads

    monkeypatch.setattr(Network, "backward", wrong)
    found = run()
    assert found["difference"].isna().tolist() == (found["stage"] != "retrained").tolist()
    assert found["difference"].dropna().to_numpy() == pytest.approx(1e-3, rel=1e-2)


def test_measure(small, monkeypatch):
    monkeypatch.setattr(retraining, "COPIES", {"LeNet5": {"quick": 1, "paper": 2}, "VGG11": {"paper": 1}})
    recorded = measure(retraining, "paper")
    ways = len(retraining.RATES["paper"]) * 3
    sizes = recorded.groupby(["network", "copy"]).size()
    assert sizes.to_dict() == {("LeNet5", 0): 1 + 2 * ways, ("LeNet5", 1): 1 + 2 * ways, ("VGG11", 0): 3}
    assert recorded.attrs["data"] == "stand-in" and recorded["images"].unique().tolist() == ["stand-in"]
    one, other = (part["loss"].to_numpy() for _, part in recorded[recorded["network"] == "LeNet5"].groupby("copy"))
    assert (one != other).any()

    monkeypatch.setattr(experiments, "table", lambda *name: {("retraining", "paper"): recorded}[name])
    table = measure(retraining)
    assert table.columns.tolist() == recorded.columns.tolist()
    fresh, taken = table[table["network"] == "LeNet5"], table[table["network"] == "VGG11"]
    assert len(fresh) == 1 + 2 * 3 * len(retraining.RATES["quick"])
    pd.testing.assert_frame_equal(
        taken.reset_index(drop=True), recorded[recorded["network"] == "VGG11"].reset_index(drop=True)
    )
