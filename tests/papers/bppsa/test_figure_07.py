import numpy as np
import pandas
import pytest

from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import figure_07
from bppsa_nb.papers.progress import Progress


@pytest.fixture(scope="module")
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_07, "SCALES", {"quick": {"T": 12, "iterations": 21}})
        return figure_07.measure("quick", np.random.default_rng(0), Progress(show=False))


def test_both_methods_learn_the_same(tiny):
    found = figure_07.differences(tiny)
    assert found["gradient"].max() <= 1e-5 and found["loss"].max() <= 1e-5
    assert tiny.groupby("backend")["loss_linear"].nunique().eq(21).all()


def test_backends_train_the_same_model_on_the_same_samples(tiny):
    numpy, cpu = (tiny.loc[tiny["backend"] == name, "loss_linear"].to_numpy() for name in ("numpy", "cpu"))
    np.testing.assert_allclose(cpu, numpy, rtol=1e-5)


def test_every_parameter_is_compared_and_every_iteration_timed(tiny):
    compared = {name.removeprefix("difference_") for name in tiny if name.startswith("difference_")}
    assert compared == set(RNN(1, 2, 3).params)
    assert (tiny.filter(like="seconds_") > 0).all().all()
    assert tiny.loc[tiny["fixed_loss_linear"].notna(), "iteration"].unique().tolist() == [0, 10, 20]


def test_a_wrong_gradient_is_seen_at_once(monkeypatch):
    right = RNN.backward

    def wrong(self, activations, grad_logits, method, backend):
        grads = right(self, activations, grad_logits, method=method, backend=backend)
        if method == "blelloch":
            grads["weight_hh_l0"] *= 1.001
        return grads

    monkeypatch.setattr(RNN, "backward", wrong)
    rows = figure_07.train({"backend": "numpy", "T": 12, "iterations": 3}, seed=0)
    table = pandas.DataFrame(rows).assign(backend="numpy")
    assert figure_07.differences(table)["gradient"].to_numpy() == pytest.approx(1e-3, rel=1e-2)
    assert figure_07.differences(table)["loss"].max() <= 1e-5  # the loss curve alone would not tell


def test_plot_draws_losses_and_differences(tiny):
    fig = figure_07.plot(tiny)
    fastest = backends.resolve("auto")
    titles = ["Per iteration", f"Per second (backend {fastest})", "BPPSA against BPTT"]
    assert [ax.get_title() for ax in fig.axes] == titles
