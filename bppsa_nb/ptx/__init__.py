"""Running compiled CUDA kernels on a CPU, from their PTX, every access watched: what `ptx.run` finds, a GPU would do.

`parse.py` reads PTX, `lanes.py` makes Python of basic blocks, `instructions.py` and `arithmetic.py` know what instructions
mean, `memory.py` and `races.py` watch, `machine.py` runs, `report.py` tells. NumPy only. Its times are never speeds.
"""

from .device import device
from .launch import assert_clean, empty, run
from .report import Finding, Report

__all__ = ["Finding", "Report", "assert_clean", "device", "empty", "run"]
