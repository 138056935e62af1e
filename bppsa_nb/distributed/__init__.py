"""A chain spread over MPI ranks: every rank reduces its run to one map, MPI scans the maps, every rank replays."""

from bppsa_nb.distributed.solver import Solution, solve

__all__ = ["Solution", "solve"]
