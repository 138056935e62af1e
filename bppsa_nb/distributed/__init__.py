"""A chain spread over MPI ranks: ranks reduce their segments to one map each, scan these, and replay."""

from bppsa_nb.machine import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.names(
    __name__,
    {
        "distributed.solver": ["Solution", "solve"],
        "machine.ranks": ["partition"],
    },
)
