"""Running compiled CUDA kernels on a CPU, from their PTX, every access watched: what `ptx.run` finds, a GPU would do.

`parse.py` and `blocks.py` read PTX, `lanes.py` makes Python of it, `instructions.py` and `arithmetic.py` know what it
means, `memory.py` and `races.py` watch, `machine.py` runs, `report.py` tells. NumPy only. Its times are never speeds.
"""

from .device import device
from .launch import assert_clean, empty, run
from .report import Finding, Report

__all__ = ["Finding", "Report", "assert_clean", "device", "empty", "run"]
