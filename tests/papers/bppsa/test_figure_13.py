import numpy as np
import pandas
import pytest

from bppsa_nb.cells.gru import GRU
from bppsa_nb.machine import files
from bppsa_nb.papers.bppsa import figure_13
from bppsa_nb.papers.progress import Progress
from bppsa_nb.training.datasets import ArrayDataset, instruments


def clips(count, seed):
    """Give something to learn: class c has more in coefficient c."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((7, count, 12)).astype(np.float32), np.arange(count) % 11
    x[:, np.arange(count), y] += 3
    return ArrayDataset(x, y)


def train(iterations=31, rate=0.1, backend="numpy"):
    return figure_13.train(clips(44, 0), clips(33, 1), rate, 5, range(iterations), 10, backend)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_both_methods_learn_the_same(backend):
    rows = pandas.DataFrame(train(backend=backend))
    looks = rows[rows["iteration"] % 10 == 0]
    for name in ("loss", "training_loss", "accuracy"):
        np.testing.assert_allclose(looks[f"{name}_blelloch"], looks[f"{name}_linear"], rtol=1e-5)
    assert looks["accuracy_linear"].iloc[-1] > 3 * figure_13.CHANCE
    assert looks["training_loss_linear"].is_monotonic_decreasing
    assert rows.filter(like="difference_").max(axis=None) <= figure_13.LIMIT
    compared = {name.removeprefix("difference_") for name in rows if name.startswith("difference_")}
    assert compared == set(GRU(2, 2, 2).params)


def test_every_clip_is_seen_once_an_epoch_in_an_order_of_its_own():
    seen = []

    class Watched(ArrayDataset):
        def batch(self, indices):
            seen.append(indices)
            return super().batch(indices)

    training = clips(40, 0)
    training = Watched(training.x, training.y)
    figure_13.train(training, clips(11, 1), 0.1, 5, range(6), 100, "numpy")
    # Looking at the models takes all 40 at once. Two batches warm up; six are trained on, and once more in reverse.
    batches = [indices for indices in seen if len(indices) <= 16][2:]
    epochs = [np.concatenate(batches[start : start + 3]).tolist() for start in (0, 3, 6, 9)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1] and epochs[2:] == epochs[:2]


def test_reversed_batches_change_nothing_but_rounding():
    rows = train()
    differences = [abs(row["loss_reversed"] - row["loss_linear"]) / row["loss_linear"] for row in rows]
    assert 0 < max(differences) <= figure_13.LIMIT


def test_rows_are_condensed_without_losing_the_worst():
    fixed = {"training_loss": 2.0, "accuracy": 0.5}
    rows = [
        {"iteration": i, "loss_linear": 2.0, "loss_blelloch": 2.0, "loss_reversed": 2.0, "difference_a": 0.0}
        | {"difference_b": 0.0, "seconds_linear": 1.0, "seconds_blelloch": 3.0}
        for i in range(5)
    ]
    for i in (0, 2, 4):
        rows[i] |= {f"{name}_{method}": value + i for name, value in fixed.items() for method in figure_13.METHODS}
    rows[3] |= {"difference_b": 7.0, "loss_blelloch": 3.0, "loss_reversed": 1.5}
    first, second, last = figure_13.condense(rows, 2)
    assert [row["iteration"] for row in (first, second, last)] == [0, 2, 4]
    assert [row["gradient"] for row in (first, second, last)] == [0, 7, 0]
    assert (second["drift"], second["drift_reversed"]) == (0.5, 0.25)
    assert (second["seconds_linear"], second["seconds_blelloch"], last["seconds_blelloch"]) == (2, 6, 3)
    assert (second["training_loss_blelloch"], second["accuracy_linear"]) == (4.0, 2.5)


def test_a_wrong_gradient_is_seen_at_once(monkeypatch):
    right = GRU.backward

    def wrong(self, activations, grad_logits, method="auto", *args, **kwargs):
        grads = right(self, activations, grad_logits, method, *args, **kwargs)
        if method == "blelloch":
            grads["bias_hh_l0"] *= 1.001
        return grads

    monkeypatch.setattr(GRU, "backward", wrong)
    rows = figure_13.condense(train(iterations=3), 10)
    assert rows[0]["gradient"] == pytest.approx(1e-3, rel=1e-2)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Make four clips of every instrument, in two recordings."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "root", lambda: root)
        patch.setattr(instruments, "clips", lambda _, progress: instruments.stand_in(count=44, progress=progress))
        yield


def test_figure_13_trains_on_what_stands_in_for_audio(stand_in, monkeypatch):
    monkeypatch.setattr(figure_13, "ITERATIONS", {"S": 4})
    monkeypatch.setattr(figure_13, "EVERY", 2)
    table = figure_13.measure("quick", np.random.default_rng(0), Progress(show=False))
    assert table.attrs["data"] == "stand-in" and table["T"].unique().tolist() == [259]
    assert table["iteration"].tolist() == [0, 2, 4] and table["rate"].unique().tolist() == [3e-3]
    assert table["gradient"].max() <= figure_13.LIMIT and table["drift"].max() <= figure_13.LIMIT
    fig = figure_13.plot(table)
    titles = ["Loss per iteration", "Loss per second", "Held-out accuracy", "Differences"]
    assert [ax.get_title() for ax in fig.axes] == titles
    assert fig.axes[0].get_ylabel() == "S: T = 259"


def test_figure_13_at_the_paper_s_scale_counts_epochs(stand_in, monkeypatch):
    monkeypatch.setattr(figure_13, "ITERATIONS", {"S": 4})
    monkeypatch.setattr(figure_13, "EPOCHS", 2)
    table = figure_13.measure("paper", np.random.default_rng(0), Progress(show=False))
    assert table["iteration"].tolist() == [0, 2, 4] and table["rate"].unique().tolist() == [3e-4]
