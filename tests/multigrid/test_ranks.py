import json
import re
from pathlib import Path

import numpy as np
import pytest

from bppsa_nb import multigrid


@pytest.fixture(scope="module")
def on_ranks(rank_session, tmp_path_factory):
    """Run `ranks.py` on some ranks, once; return what every rank found."""
    folder, known = tmp_path_factory.mktemp("ranks"), {}

    def found(ranks):
        if ranks not in known:
            path = folder / f"{ranks}.json"
            done = rank_session.run(ranks, Path(__file__).with_name("ranks.py"), path)
            assert done.returncode == 0, done.stderr
            known[ranks] = json.loads(path.read_text())
        return known[ranks]

    return found


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_finds_the_same_bits(on_ranks, ranks):
    every = on_ranks(ranks)
    assert len(every) == ranks
    assert [rank["differing"] for rank in every] == [[]] * ranks


# What the rank at fault says, and what the others do; None where all say the same.
REFUSALS = {
    "nan": ("ValueError: u0 must be finite, got nan", "rank LAST failed: ValueError: u0 must be finite, got nan"),
    "adjoint nan": (
        "ValueError: grad_output must be finite",
        "rank LAST failed: ValueError: grad_output must be finite",
    ),
    "nan state": ("ValueError: states must be finite", "rank LAST failed: ValueError: states must be finite"),
    "type": ("TypeError: u0 must have the model", "rank LAST failed: TypeError: u0 must have the model"),
    "option": ("ValueError: relaxation must be one of", "rank LAST failed: ValueError: relaxation must be one of"),
    "initial": ("ValueError: initial must have shape", "rank LAST failed: ValueError: initial must have shape"),
    "two at fault": ("ValueError: u0 must be finite, got nan", "^ValueError: u0 must be finite, got inf"),
    "h": (r"net must be the same .*: rank LAST has another .*h=0\.054", r"rank LAST has another .*h=0\.027"),
    "batch": (r"u0 or grad_output must be the same .* shape \(1, 5\)", r"rank LAST has another .* shape \(2, 5\)"),
    "u0": ("u0 or grad_output must be the same on all ranks: rank LAST has another", None),
    "some initial": ("whether initial is given must be the same .* it is False", "rank LAST has another .* it is True"),
    "cycles": ("cycles must be the same .* it is 2", "rank LAST has another .* it is 3"),
    "tol": ("tol must be the same .* it is 1e-08", "rank LAST has another .* it is 1e-09"),
    "skip_downcycle": ("skip_downcycle must be the same .* it is True", "rank LAST has another .* it is False"),
    "solver": ("the solver must be the same .* it is solve_adjoint", "rank LAST has another .* it is solve$"),
    "cut": (r"^ValueError: ranks must hold multiples of 3 layers, all but the last, .*; got \[1, 1", None),
    "levels": ("^ValueError: levels must be at most 5 for 37 layers", None),
    "overflow": ("^FloatingPointError: cycle 1 leaves the range of float64", None),
    "no communicator": ("^TypeError: comm must be an mpi4py.MPI.Intracomm, .* got 'COMM_WORLD'", None),
    "no rank": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", None),
    "left out": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", None),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks):
    every = [rank["refused"] for rank in on_ranks(ranks)]
    for rank, said in enumerate(every):
        assert said.keys() == REFUSALS.keys()
        for name, (at_fault, otherwise) in REFUSALS.items():
            expected = at_fault if rank == ranks - 1 or otherwise is None else otherwise
            assert re.search(expected.replace("LAST", str(ranks - 1)), said[name]), (rank, name, said[name])


def test_a_communicator_is_one_of_mpi4py_s():
    net = multigrid.ResidualNetwork(np.zeros((4, 2, 2)), np.zeros((4, 2)), 0.25)
    for wrong in "world", 4, object():
        with pytest.raises(TypeError, match=r"comm must be an mpi4py\.MPI\.Intracomm, such as .*, or None, got"):
            multigrid.solve(net, np.zeros((1, 2)), comm=wrong)
    assert multigrid.solve(net, np.zeros((1, 2)), backend="numpy", comm=None).communication == 0
