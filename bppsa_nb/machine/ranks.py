"""Which of several processes this is, which steps each of them holds, and what they run together."""

import os
from importlib import import_module

from bppsa_nb.machine.checks import check_count


def partition(steps: int, ranks: int) -> list[slice]:
    """Share out the steps of a chain or sequence among ranks: consecutive parts, as even as can be.

    Parameters
    ----------
    steps
        At least 0.
    ranks
        At least 1. Where there are more of them than steps, some parts are empty.

    Returns
    -------
    list of slice [length=ranks]

    Examples
    --------
    >>> partition(10, 4)
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    steps, ranks = check_count("steps", steps), check_count("ranks", ranks, 1)
    bounds = [steps * rank // ranks for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def rank_and_size():
    """Tell which of how many processes of mpiexec this is, without loading MPI; (0, 1) if mpiexec did not start it."""
    env = os.environ
    said = [env.get(f"PMI_{name}") or env.get(f"OMPI_COMM_WORLD_{name}") or "" for name in ("RANK", "SIZE")]
    return tuple(map(int, said)) if all(map(str.isdecimal, said)) else (0, 1)


def over_ranks(module):
    """Return a module of `bppsa_nb.distributed`: what runs where ``comm=`` was given. No other import goes up."""
    return import_module(f"bppsa_nb.distributed.{module}")
