"""Residual layers spread over MPI ranks, and trained there: the bits of one process, or one error on all ranks.

`residual_ranks.py` holds what every rank does.
"""

import json
import re
from pathlib import Path

import pytest


@pytest.fixture
def on_ranks(rank_session, tmp_path):
    """Do one of the tasks on some ranks; return what every rank found."""

    def found(ranks, task):
        done = rank_session.run(ranks, Path(__file__).with_name("residual_ranks.py"), task, tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / f"{task} {ranks}.json").read_text())

    return found


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_trains_as_one_process_does(on_ranks, ranks):
    assert on_ranks(ranks, "training") == [[]] * ranks


def test_ctrl_c_on_one_rank_stops_all_after_the_same_iteration(on_ranks):
    assert on_ranks(3, "stopped") == [[0, 16, 2]] * 3


# What the last rank says, which is at fault, and whether the others say the same.
SAME = "must be the same on all ranks: rank LAST has another than rank 0; here"
REFUSALS = {
    "x nan": ("^ValueError: x must be finite, got nan", False),
    "x": (f"^ValueError: x {SAME}", True),
    "parameters": (f"^ValueError: model.params {SAME}", True),
    "solver": (f"^ValueError: model.solver {SAME}", True),
    "logits": ("^FloatingPointError: the output of 'closing' overflows float64", True),
    "ranks": ("^ValueError: ranks must be at most the . steps? that 2 levels leave", True),
    "no communicator": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", True),
    "no gradient": ("^TypeError: grad_logits must be a numpy.ndarray, got NoneType", False),
    "two gradients": ("ValueError: grad_logits must be None on all ranks but rank LAST, which has the last", True),
    "gradient nan": ("^ValueError: grad_logits must be finite, got nan", False),
    "gradient": ("^FloatingPointError: ", True),
    "activations": ("^TypeError: activations must come from ResidualModel.forward, got NoneType", False),
    "all layers": (r"^ValueError: activations.states must have shape", False),
    "scan": ("^ValueError: method must be one of 'auto', 'multigrid', 'ordinary' with comm, got 'blelloch'", True),
    "methods": (f"^ValueError: method {SAME}", True),
    "sequence_ranks": ("^ValueError: sequence_ranks is for an RNN or a GRU, which have steps, got 1", True),
    "trainer's method": ("^ValueError: method must be one of .*'ordinary' with comm, got 'linear'", True),
    "trainer's forward": ("^ValueError: forward must be 'auto' for a ResidualModel", True),
    "optimizer": (f"^ValueError: optimizer {SAME}", True),
    "disk": ("^OSError: the disk is gone", False),
    "label": ("^ValueError: labels must be from 0 to 2, got", False),
    "labels": (f"^ValueError: y {SAME}", True),
    "fewer": ("^ValueError: dataset.batch must return labels of the 8 samples asked for, got 1", False),
    "evaluate": ("^OSError: the disk is gone", False),
    "unchanged": ("^nothing$", True),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks):
    every = on_ranks(ranks, "refused")
    for rank, said in enumerate(every):
        assert said.keys() == REFUSALS.keys()
        for name, (expected, same) in REFUSALS.items():
            expected = expected.replace("LAST", str(ranks - 1))
            if rank < ranks - 1 and not same:
                expected = f"^ValueError: aborted on all ranks because rank {ranks - 1} failed: {expected.lstrip('^')}"
            assert re.search(expected, said[name]), (rank, name, said[name])
