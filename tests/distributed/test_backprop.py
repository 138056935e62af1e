"""Gradients along a chain that is spread over MPI ranks: the same as one process finds, or one error on all ranks.

`ranks.py` holds what every rank does. Its comparisons are by the largest difference of the gradients at a point, over
samples and entries, relative to the largest gradient there: at every point, and along chains whose links about keep a
gradient's size, so that neither long sums nor other points hide a difference.
"""

import sys
from mmap import PAGESIZE
from pathlib import Path

import pytest
from on_mpi import Session, start

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4, 7))])
def test_any_number_of_ranks_finds_what_one_process_does(rank_session, ranks):
    assert rank_session.found(ranks, PROGRAM, "check") == [[]] * ranks


def test_a_rank_that_is_killed_ends_the_run(tmp_path):
    done = start(3, "-m", "mpi4py", PROGRAM, "killed", tmp_path / "never.json", seconds=60)
    assert done.returncode != 0
    assert not (tmp_path / "never.json").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.full
@pytest.mark.parametrize("T", [10000, 30000])
def test_a_rank_needs_memory_in_proportion_to_its_segment(T):
    with Session(4) as session:  # of its own: its ranks hold nothing that other tests left
        every = {ranks: session.found(ranks, PROGRAM, "memory", T) for ranks in (1, 2, 4)}
    for ranks, here in every.items():
        gradients = 4 * T * 16 * 20 / ranks
        assert len(here) == ranks
        for rank, found in enumerate(here):
            assert len(found) == 4
            # Of an array, the first and the last page may be there before; each gradient has a byte: is it finite?
            for name, extra in found.items():
                assert gradients - 2 * PAGESIZE <= extra < 1.15 * gradients + 2**20, (ranks, rank, name, extra)
