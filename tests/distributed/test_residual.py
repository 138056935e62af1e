"""Residual layers spread over MPI ranks, and trained there: the bits of one process, or one error on all ranks.

`residual_ranks.py` holds what every rank does.
"""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("residual_ranks.py")


@pytest.fixture
def on_ranks(rank_session, tmp_path):
    """Do one of the tasks on some ranks; return what every rank found."""
    return lambda ranks, task: rank_session.found(ranks, PROGRAM, task, tmp_path)


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_trains_as_one_process_does(on_ranks, ranks):
    assert on_ranks(ranks, "training") == [[]] * ranks


def test_ctrl_c_on_one_rank_stops_all_after_the_same_iteration(on_ranks):
    assert on_ranks(3, "stopped") == [[0, 16, 2]] * 3


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.full)])
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks):
    assert on_ranks(ranks, "refused") == [[]] * ranks
