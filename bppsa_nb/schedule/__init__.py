"""Out-of-order backprop: which gradient to compute when, on one device, with data- and with pipeline-parallelism."""

from importlib import import_module as _import_module

_HOME = {
    "Assumptions": "network",
    "Executor": "execute",
    "Memory": "network",
    "Network": "network",
    "Regions": "regions",
    "Timeline": "timeline",
    "TwoStreams": "streams",
    "data_parallel": "replication",
    "joint_regions": "regions",
    "optimum": "search",
    "pipeline": "pipelining",
    "profile": "layers",
    "split": "layers",
    "transfer_time": "network",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562), and the compiled loops with them.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.schedule' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.schedule.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
