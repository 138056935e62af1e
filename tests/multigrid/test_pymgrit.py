"""Side by side with PyMGRIT: the same problem and options give the same residuals, cycle by cycle."""

from pathlib import Path

import numpy as np
import pytest
from pymgrit_golden import CASES, problem

from bppsa_nb import multigrid

GOLDEN = Path(__file__).parents[1] / "golden" / "pymgrit.npz"


def check(case, expected):
    activation, depth, *options = case
    how = dict(zip(("coarsening", "levels", "cycle", "nested_iteration", "relaxation"), options, strict=True))
    weights, biases, h, u0 = problem(depth)
    net = multigrid.ResidualNetwork(weights, biases, h, activation)
    found = multigrid.solve(net, u0, **how, initial=np.zeros((depth + 1, *u0.shape)))
    # PyMGRIT's history leaves out residuals that are zero, as the last one may be.
    expected = np.append(expected, np.zeros(found.cycles - len(expected)))
    np.testing.assert_allclose(found.residuals, expected, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_residuals_of_every_cycle_are_pymgrits(every):
    with np.load(GOLDEN, allow_pickle=False) as histories:
        assert len(histories.files) == len(CASES)
        for case in CASES[::every]:
            check(case, histories["-".join(map(str, case))])
