
import numpy as np
import pytest
from measuring import measure

from bppsa_nb.papers.multigrid import layer_parallel_training as experiment
from bppsa_nb.papers.multigrid.recording import record


@pytest.fixture(scope="module")
def table():
    return measure(experiment, TIMES={1: 1, 16: 1}, EPOCHS={"quick": 1})


def test_splits_share_no_digit():
    training, unseen = experiment.digits.Digits("train"), experiment.digits.Digits("test")
    assert (len(training), len(unseen)) == (1347, 450)
    every = np.concatenate([training.x, unseen.x])
    assert every.dtype == np.float32 and every.min() == -1 and every.max() == 1
    from sklearn.datasets import load_digits

    np.testing.assert_array_equal(np.sort(every, axis=0), np.sort(load_digits().data / 8 - 1, axis=0))
    assert set(np.unique(unseen.y)) == set(range(10))


@pytest.mark.outer
def test_runs_of_a_seed_begin_alike_and_both_learn(table):
    assert table.attrs["data"] == "real" and len(table) == 2 * 3 * 2
    first = table[table["epoch"] == 0].pivot(index=["T", "seed"], columns="method", values="loss")
    assert (first["serial"] == first["multigrid"]).all() and (first["serial"] == first["adaptive"]).all()
    last = table[(table["epoch"] == 1) & (table["T"] == 1)].set_index("method")["accuracy"]
    assert (last > 0.6).all()
    later = table[(table["epoch"] == 1) & (table["T"] == 16)].pivot(index="seed", columns="method", values="loss")
    assert (later["serial"] != later["multigrid"]).all()


def test_errors_fall_with_cycles_and_rise_with_time(table):
    rows = table[table["error_two cycles"].notna()]
    assert set(rows["method"]) == {"multigrid"} and set(rows["epoch"]) == {0, 1}
    errors = rows.groupby("T")[[f"error_{name}" for name in experiment.SOLVERS]].mean()
    one, two, three = (errors[f"error_{name} cycle{'s' * (name != 'one')}"] for name in ("one", "two", "three"))
    assert one[1] > 5 * two[1] > 25 * three[1] > 0
    assert two[16] > 20 * two[1]


def test_gradients_of_many_cycles_have_no_error(monkeypatch):
    monkeypatch.setattr(experiment, "SOLVERS", {"many": {"cycles": 8}})
    digits = experiment.digits.Digits("train")
    model = experiment.digits.network(16, 1, 0)
    assert experiment.gradient_errors(model, *digits.batch(np.arange(8)), "numpy")["error_many"] < 1e-5
    assert model.solver is None


def test_images_have_a_network_too():
    class Two:
        def batch(self, indices):
            return np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32), np.array([0, 1])

    model = experiment.new(Two(), 1, 0)
    assert model.state_shape == (experiment.CHANNELS, 8, 8)
    assert model.forward(Two().batch(None)[0], "numpy").logits.shape == (2, 10)


def test_a_second_axis_counts_steps_of_cycles(table):
    fig = experiment.plot(table)
    (steps,) = fig.axes[-1].child_axes
    fig.draw_without_rendering()
    one, two = (record(64, cycles=cycles).span() for cycles in (1, 2))
    assert steps.get_ylim()[1] == pytest.approx(one + (fig.axes[-1].get_ylim()[1] - 1) * (two - one))


def test_it_takes_more_cycles_where_time_is_longer_and_the_error_stays(table):
    counts, rows = experiment.counts(table), table[table["method"] == "adaptive"]
    assert counts.index.tolist() == [1, 16] and counts.columns.tolist() == [0, 1]
    assert (counts.loc[16] > 1 + counts.loc[1]).all()
    assert rows["forward"].between(1, 8).all() and table["forward"].notna().sum() == len(rows)
    errors = table["error_as many as it takes"].dropna()
    assert errors.max() < 0.6
