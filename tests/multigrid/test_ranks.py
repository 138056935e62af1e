from pathlib import Path

import numpy as np
import pytest

from bppsa_nb import multigrid

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_finds_the_same_bits(rank_session, ranks):
    assert rank_session.found(ranks, PROGRAM) == [[]] * ranks


def test_a_communicator_is_one_of_mpi4py_s():
    net = multigrid.ResidualNetwork(np.zeros((4, 2, 2)), np.zeros((4, 2)), 0.25)
    for wrong in "world", 4, object():
        with pytest.raises(TypeError, match=r"comm must be an mpi4py\.MPI\.Intracomm, such as .*, or None, got"):
            multigrid.solve(net, np.zeros((1, 2)), comm=wrong)
    assert multigrid.solve(net, np.zeros((1, 2)), backend="numpy", comm=None).communication == 0
