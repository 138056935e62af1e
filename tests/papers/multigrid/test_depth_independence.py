import numpy as np
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.multigrid import figure_04_depth_independence as depth_independence
from bppsa_nb.papers.progress import Progress

CONVOLUTION = (2, 3, 4, 1)


@pytest.mark.parametrize("weights", depth_independence.WEIGHTS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_cycles_differ_by_at_most_one_over_depth(weights, activation):
    counts = {"states": [], "gradients": []}
    for N in (64, 256, 1024):
        point = {"weights": weights, "activation": activation, "N": N, "backend": "numpy"}
        rows = depth_independence.histories(point, CONVOLUTION, np.random.default_rng(0))
        for solved, found in counts.items():
            history = [row for row in rows if row["solved"] == solved]
            assert [row["cycle"] for row in history] == list(range(1, history[0]["cycles"] + 1))
            assert history[-1]["residual"] <= depth_independence.TOL < history[-2]["residual"]
            assert history[0]["factor"] < 0.1 and history[0]["error"] < 1e-8
            found.append(history[0]["cycles"])
    assert all(max(found) - min(found) <= 1 for found in counts.values()), counts


def test_smooth_weights_are_the_same_functions_of_time_at_every_depth():
    make = depth_independence.network
    coarse, fine = (make("smooth", "tanh", N, CONVOLUTION, np.random.default_rng(1))[0] for N in (64, 256))
    np.testing.assert_allclose(fine.weights[::4], coarse.weights, atol=1e-12)
    assert np.abs(np.diff(fine.weights, axis=0)).max() < 0.1
    assert fine.h * len(fine) == coarse.h * len(coarse) == depth_independence.T


def test_what_the_words_say_is_what_the_table_holds():
    table = experiments.table("depth_independence")
    for weights, rows in table.groupby("weights"):
        assert set(rows["cycles"]) == {6 if weights == "smooth" else 7}
        least, most = (0.005, 0.015) if weights == "smooth" else (0.02, 0.04)
        assert rows["factor"].between(least, most).all()
    said = depth_independence.alt(table)
    for cycles, weights in ((6, "dense, smooth weights"), (7, "dense, independent weights")):
        assert f"{cycles} cycles with {weights}, each of which leaves" in said
    slower = depth_independence.alt(table.assign(cycles=table["cycles"] + table["N"].eq(64)))
    assert "7 to 8 cycles with convolutions" in slower


def test_plot_has_a_panel_per_kind_of_weights_and_activation(monkeypatch):
    monkeypatch.setattr(depth_independence, "DEPTHS", {"quick": (8, 16)})
    monkeypatch.setattr(depth_independence, "CONVOLUTION", {"quick": CONVOLUTION})
    table = depth_independence.measure("quick", np.random.default_rng(0), Progress(show=False))
    assert set(table.groupby(["weights", "activation"])["N"].nunique()) == {2}
    fig = depth_independence.plot(table)
    assert len(fig.axes) == 6
    words = fig.axes[0].texts[0].get_text()
    panel = table[(table["weights"] == "smooth") & (table["activation"] == "tanh") & (table["solved"] == "states")]
    least, most = panel["cycles"].min(), panel["cycles"].max()
    count = f"{least}" if least == most else f"{least} to {most}"
    assert words.startswith(f"states: {count} cycles, factor {panel['factor'].min():.3f} to")
