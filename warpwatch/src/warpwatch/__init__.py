"""Compiled CUDA kernels run on a CPU, from their PTX, every access watched: what `run` finds, a GPU would do.

`parse.py` reads PTX, `blocks.py` makes basic blocks of it and `lanes.py` Python of those; `instructions.py`,
`arithmetic.py` and `warps.py` know what instructions mean; `machine.py` runs, `waiting.py` has who waits for whom,
`memory.py` and `races.py` watch, `report.py` tells. `launch.py` is what is called, by `virtual.py` for whole programs,
whose launches `streams.py` orders; `host.py` and `cudart.py` stand in for drivers. Times here are never speeds.

PYTEST_DONT_REWRITE
"""

import os
from importlib import import_module

_PLACES = {"assert_clean": "launch", "empty": "launch", "run": "launch", "Finding": "report", "Report": "report",
           "device": "virtual", "use_without_gpu": "virtual"}  # fmt: skip
__all__ = sorted(_PLACES)
__version__ = "0.1.0"


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module 'warpwatch' has no attribute {name!r}")
    return getattr(import_module(f"warpwatch.{_PLACES[name]}"), name)


def __dir__():
    return __all__


if os.environ.get("WARPWATCH", "0") not in ("", "0"):
    import_module("warpwatch.program").begin_alone()
