"""Out-of-order backprop: which gradient to compute when, on one device, with data- and with pipeline-parallelism."""

from bppsa_nb.machine import dispatch as _dispatch

_NAMES = {
    "schedule.network": ["Assumptions", "Memory", "Network", "transfer_time"], "schedule.timeline": ["Timeline"],
    "schedule.execute": ["Executor"], "schedule.regions": ["Regions", "joint_regions"],
    "schedule.streams": ["TwoStreams"], "schedule.replication": ["data_parallel"], "schedule.search": ["optimum"],
    "schedule.pipelining": ["pipeline"], "schedule.layers": ["profile", "split"],
}  # fmt: skip
__getattr__, __dir__, __all__ = _dispatch.names(__name__, _NAMES)
