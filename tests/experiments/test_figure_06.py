import numpy as np
import pandas
import pytest

from bppsa_nb import files
from bppsa_nb.datasets import digits_on_photos, openml
from bppsa_nb.datasets.images import Images
from bppsa_nb.experiments import figure_06
from bppsa_nb.experiments.progress import Progress
from bppsa_nb.sparse import LeNet5, Network


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
    assert found["loss"].max() <= 1e-5
    assert tiny["loss_ordinary"].nunique() == 11
    assert tiny.attrs["data"] == "stand-in" and tiny["images"].unique().tolist() == ["stand-in"]


def test_every_parameter_is_compared_and_every_iteration_timed(tiny):
    compared = {name.removeprefix("difference_") for name in tiny if name.startswith("difference_")}
    assert compared == set(LeNet5().params)
    assert (tiny[["seconds_ordinary", "seconds_blelloch"]] > 0).all().all()
    looks = tiny[tiny["test_loss_ordinary"].notna()]
    assert looks["iteration"].tolist() == [0, 10]
    for name in ("training_loss", "test_loss", "accuracy"):
        np.testing.assert_allclose(looks[f"{name}_blelloch"], looks[f"{name}_ordinary"], rtol=1e-5)


def test_reversed_batches_change_nothing_but_rounding(tiny):
    assert 0 < figure_06.differences(tiny)["reversed"].max() <= 1e-5


def test_it_learns(shortcut, monkeypatch):
    monkeypatch.setattr(figure_06, "LOOK", 200)
    training, held_out = Images(num_samples=500), Images(split="test", num_samples=200)
    rows = pandas.DataFrame(figure_06.train(training, held_out, 16, 0, range(81), "numpy"))
    looks = rows[rows["iteration"] % 10 == 0]
    for name in ("training_loss", "test_loss"):
        assert looks[f"{name}_ordinary"].iloc[-1] < looks[f"{name}_ordinary"].iloc[0] - 0.2
    assert looks["accuracy_ordinary"].iloc[-1] > 0.25


def test_a_wrong_gradient_is_seen_at_once(monkeypatch):
    right = Network.backward

    def wrong(self, activations, grad_logits, method="auto", *args, **kwargs):
        grads = right(self, activations, grad_logits, "ordinary")
        if method == "blelloch":
            grads["conv2.bias"] *= 1.001
        return grads

    monkeypatch.setattr(Network, "backward", wrong)
    images = Images(num_samples=20)
    rows = pandas.DataFrame(figure_06.train(images, images, 4, 0, range(3), "numpy")).assign(backend="numpy")
    assert figure_06.differences(rows)["gradient"].to_numpy() == pytest.approx(1e-3, rel=1e-2)


def test_every_image_is_seen_once_an_epoch_in_an_order_of_its_own(shortcut):
    seen = []

    class Watched(Images):
        def batch(self, indices):
            seen.append(np.asarray(indices))
            return super().batch(indices)

    images = Watched(num_samples=20)
    figure_06.train(images, Images(num_samples=3), 8, 5, range(6), "numpy")
    # Two batches warm up; six are trained on, and once more in reverse. Looks take all images at once.
    batches = [indices for indices in seen if len(indices) <= 8][2:]
    epochs = [np.concatenate(batches[start : start + 3]).tolist() for start in (0, 3, 6, 9)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs[2:] == epochs[:2]


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
