import numpy as np
import pandas
import pytest

from bppsa_nb.machine import files
from bppsa_nb.papers.bppsa import figure_06
from bppsa_nb.papers.progress import Progress
from bppsa_nb.sparse import LeNet5, Network
from bppsa_nb.training.datasets import digits_on_photos, openml
from bppsa_nb.training.datasets.images import Images
from bppsa_nb.training.loss import cross_entropy
from bppsa_nb.training.optimizers import SGD


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_06, "ITERATIONS", 10)
        patch.setattr(figure_06, "BATCHES", {"quick": 2})
        patch.setattr(figure_06, "LOOK", 50)
        return figure_06.measure("quick", np.random.default_rng(0), Progress(show=False))


@pytest.fixture
def shortcut(monkeypatch):
    """Let BPPSA be BP, so that tests of anything else are quick."""
    right = Network.backward

    def backward(self, activations, grad_logits, method="auto", *args, **kwargs):
        return right(self, activations, grad_logits, "ordinary")

    monkeypatch.setattr(Network, "backward", backward)


def test_both_methods_learn_the_same(tiny):
    found = figure_06.differences(tiny)
    assert 0 < found["gradient"].max() <= 1e-5
    assert 0 < found["loss"].max() <= 1e-5
    assert tiny["loss_ordinary"].nunique() == 11
    assert tiny.attrs["data"] == "stand-in" and tiny["images"].unique().tolist() == ["stand-in"]


def test_every_parameter_is_compared_and_every_iteration_timed(tiny):
    compared = {name.removeprefix("difference_") for name in tiny if name.startswith("difference_")}
    assert compared == set(LeNet5().params)
    assert (tiny[["seconds_ordinary", "seconds_blelloch"]] > 0).all().all()
    looks = tiny[tiny["test_loss_ordinary"].notna()]
    assert looks["iteration"].tolist() == [0, 10]
    for name in ("training_loss", "test_loss"):
        np.testing.assert_allclose(looks[f"{name}_blelloch"], looks[f"{name}_ordinary"], rtol=1e-5)


def test_disturbed_gradients_change_nothing_but_rounding(tiny):
    assert 0 < figure_06.differences(tiny)["disturbed"].max() <= 1e-5


def test_gradients_are_disturbed_by_as_much_as_they_differ(shortcut):
    images = Images(num_samples=20)
    rows = figure_06.train(images, images, 4, 1e-3, 0, range(3), "numpy")
    assert all(row["loss_disturbed"] == row["loss_ordinary"] for row in rows)  # here they do not differ
    model, again = (Network((3, 32, 32), LeNet5().operators, init="he", rng=0) for _ in range(2))
    row = {"iteration": 0} | {f"difference_{name}": 0.25 for name in model.params} | {"difference_fc1.weight": 0}
    batch = images.batch(np.arange(4))
    figure_06._disturb(model, SGD(1), lambda iteration: batch, [row], "numpy", np.random.default_rng(0))
    activations = again.forward(batch[0])
    grads = again.backward(activations, cross_entropy(activations.logits, batch[1])[1])
    for name, grad in grads.items():
        found = abs(again.params[name] - model.params[name] - grad).max() / abs(grad).max()
        assert found < 1e-5 if name == "fc1.weight" else 0.1 < found < 0.2501, name


def test_it_learns(shortcut, monkeypatch):
    monkeypatch.setattr(figure_06, "LOOK", 200)
    training, held_out = Images(num_samples=500), Images(split="test", num_samples=200)
    rows = pandas.DataFrame(figure_06.train(training, held_out, 32, 0.01, 0, range(61), "numpy"))
    looks = rows[rows["iteration"] % 10 == 0]
    for name in ("training_loss", "test_loss"):
        assert looks[f"{name}_ordinary"].iloc[-1] < looks[f"{name}_ordinary"].iloc[0] - 0.3


def test_only_training_images_are_trained_on(shortcut):
    training, held_out = Images(num_samples=30), Images(split="test", num_samples=12)
    row, *_ = figure_06.train(training, held_out, 4, 0.01, 1, range(1), "numpy")
    model = Network((3, 32, 32), LeNet5().operators, init="he", rng=1)
    for name, data in (("training_loss", training), ("test_loss", held_out)):
        x, y = data.batch(np.arange(len(data)))
        assert row[f"{name}_ordinary"] == cross_entropy(model.forward(x).logits, y)[0]


def test_a_wrong_gradient_is_seen_at_once(monkeypatch):
    right = Network.backward

    def wrong(self, activations, grad_logits, method="auto", *args, **kwargs):
        grads = right(self, activations, grad_logits, "ordinary")
        if method == "blelloch":
            grads["conv2.bias"] *= 1.001
        return grads

    monkeypatch.setattr(Network, "backward", wrong)
    images = Images(num_samples=20)
    rows = pandas.DataFrame(figure_06.train(images, images, 4, 1e-3, 0, range(3), "numpy")).assign(backend="numpy")
    assert figure_06.differences(rows)["gradient"].to_numpy() == pytest.approx(1e-3, rel=1e-2)


def test_every_image_is_seen_once_an_epoch_in_an_order_of_its_own(shortcut):
    seen = []

    class Watched(Images):
        def batch(self, indices):
            seen.append(np.asarray(indices))
            return super().batch(indices)

    images = Watched(num_samples=20)
    figure_06.train(images, Images(num_samples=3), 8, 1e-3, 5, range(6), "numpy")
    assert [len(indices) for indices in seen[:3]] == [20, 8, 8]  # the fixed images; two batches warm up
    epochs = [np.concatenate(seen[start : start + 3]).tolist() for start in (3, 6, 9, 12)]
    assert len(seen) == 15 and all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs[2:] == epochs[:2]  # once more, disturbed


@pytest.mark.parametrize("fetched", [True, False])
def test_the_paper_s_scale_takes_cifar10_if_it_is_here(shortcut, tmp_path, monkeypatch, capsys, fetched):
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    monkeypatch.setattr(figure_06, "EPOCHS", 2)
    monkeypatch.setattr(figure_06, "BATCHES", {"paper": 8})
    monkeypatch.setattr(digits_on_photos, "COUNTS", {"train": 10, "test": 5})
    if fetched:
        rng = np.random.default_rng(0)
        arrays = rng.integers(256, size=(30, 3072)), rng.integers(10, size=30)
        monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda *args, **kwargs: arrays)
        small = openml.Set("CIFAR-10", "CIFAR_10", (3, 32, 32), 20, "0.7 GB")
        monkeypatch.setitem(openml.SETS, "cifar10", small)
        monkeypatch.setattr(openml, "TEST", 10)
        openml.fetch("cifar10")
    table = figure_06.measure("paper", np.random.default_rng(0), Progress(show=False))
    assert table.attrs["data"] == ("real" if fetched else "stand-in")
    assert table["images"].unique().tolist() == ["CIFAR-10" if fetched else "stand-in"]
    assert table["iteration"].tolist() == list(range(2 * 3 + 1 if fetched else 2 * 2 + 1))
    assert ("CIFAR-10 is not in" in capsys.readouterr().out) is not fetched


def test_plot_draws_losses_and_differences(tiny):
    fig = figure_06.plot(tiny)
    assert [ax.get_title() for ax in fig.axes] == ["Training loss", "Test loss", "BPPSA against BP"]
    left, middle, right = fig.axes
    assert left.get_ylim() == middle.get_ylim() and right.get_yscale() == "log"
    assert left.get_ylabel() == "loss, stand-in, B = 2"
    np.testing.assert_allclose(*(line.get_ydata() for line in left.lines), rtol=1e-5)
