from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_finds_the_same_bits(rank_session, ranks):
    assert rank_session.found(ranks, PROGRAM) == [[]] * ranks
