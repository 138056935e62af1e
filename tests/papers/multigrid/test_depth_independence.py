import numpy as np
import pytest
from rings import more

from bppsa_nb.papers.multigrid import figure_04_depth_independence as depth_independence

CONVOLUTION = (2, 3, 4, 1)


@pytest.mark.parametrize("weights", depth_independence.WEIGHTS)
@pytest.mark.parametrize("activation", ["tanh", more("relu")])
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
