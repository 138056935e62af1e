"""Running compiled CUDA kernels on a CPU, from their PTX, every access watched: what `ptx.run` finds, a GPU would do.

`parse.py` reads PTX, `blocks.py` makes basic blocks of it and `lanes.py` Python of those; `instructions.py`,
`arithmetic.py` and `warps.py` know what instructions mean; `machine.py` runs, `waiting.py` has who waits for whom,
`memory.py` and `races.py` watch, `report.py` tells. `launch.py` is what is called, by `device.py` for whole programs,
whose launches `streams.py` orders. NumPy only; Numba where a kernel of its is compiled. Its times are never speeds.
"""

from bppsa_nb.ptx.device import device, use_without_gpu
from bppsa_nb.ptx.launch import assert_clean, empty, run
from bppsa_nb.ptx.report import Finding, Report

__all__ = ["Finding", "Report", "assert_clean", "device", "empty", "run", "use_without_gpu"]
