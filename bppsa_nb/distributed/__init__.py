"""A chain spread over MPI ranks: every rank reduces its run to one map, MPI scans the maps, every rank replays."""

from bppsa_nb.machine import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.names(
    __name__,
    {
        "distributed.solver": ["Solution", "solve"],
        "machine.ranks": ["partition"],
    },
)
