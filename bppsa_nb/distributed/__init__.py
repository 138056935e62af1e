"""A chain spread over MPI ranks: every rank reduces its run to one map, MPI scans the maps, every rank replays."""

from importlib import import_module as _import_module

_HOME = {"Solution": "distributed.solver", "partition": "machine.parts", "solve": "distributed.solver"}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562), and the scans with them.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.distributed' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
