"""The CUDA compiler, which no other module names: kernels and launchers take `cuda` from here, and `types`.

``BPPSA_NB_CUDA`` chooses it by name before this module is imported: numba-cuda, as long as it says nothing else, or
numba-cuda-mlir, which has no simulator. Without numba-cuda, `cuda` is Numba's own, which serves the simulator. Kernels
of a learner's own are numba-cuda's.
"""

import os
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np

from bppsa_nb.machine.checks import check_choice

GENERATION = 9, 0  # of the GPU that a compiler is told of where it asks for one and there is none


def _numba_cuda():
    # Up to 0.30 it asks for np.row_stack when it compiles its first kernel; NumPy 2.5 has dropped that name.
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # noqa: NPY201
    if (looked := sys.modules.get("numba.cuda.core.config")) is not None:  # at the environment already
        looked.reload_config()
    from numba import cuda, types
    from numba.core import config
    from numba.core.errors import NumbaError

    if not config.ENABLE_CUDASIM:
        from numba.cuda import dispatcher

        asked = dispatcher.get_current_device  # which functions of a known signature do
        dispatcher.get_current_device = lambda: (
            asked() if cuda.is_available() else SimpleNamespace(compute_capability=GENERATION)
        )
    return cuda, types, NumbaError


def _numba_cuda_mlir():
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        raise ValueError("BPPSA_NB_CUDA: numba-cuda-mlir has no simulator; unset NUMBA_ENABLE_CUDASIM")
    if find_spec("numba_cuda_mlir") is None:
        said = "BPPSA_NB_CUDA: numba-cuda-mlir is missing: `pip install 'bppsa-nb[gpu,mlir]'` installs it"
        raise ModuleNotFoundError(said, name="numba_cuda_mlir")
    from numba_cuda_mlir import tools

    asked = tools.get_gpu_compute_capability

    def answer(as_type=str):
        if cuda.is_available():
            return asked(as_type)
        return GENERATION if as_type is tuple else tools.format_arch(GENERATION)

    tools.get_gpu_compute_capability = answer  # before what imports it by name; it is asked whatever `cc` says
    from numba_cuda_mlir import cuda, types
    from numba_cuda_mlir.numba_cuda.core.errors import NumbaError

    return cuda, types, NumbaError


_COMPILERS = {"numba-cuda": _numba_cuda, "numba-cuda-mlir": _numba_cuda_mlir}
NAME = os.environ.get("BPPSA_NB_CUDA") or "numba-cuda"
check_choice("BPPSA_NB_CUDA", NAME, _COMPILERS)
# Both warn of launches with fewer than 128 blocks; those are the nature of a scan's upper levels, and of small batches.
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
cuda, types, NumbaError = _COMPILERS[NAME]()


def installed():
    """Tell whether there is a compiler, and not only the simulator."""
    return NAME != "numba-cuda" or find_spec("numba_cuda") is not None


def compile_ptx(function, signature, generation=GENERATION, **options):
    """Compile a function for argument types and a generation of GPUs, with options of the compiler; return PTX."""
    return cuda.compile_ptx(function, signature, cc=generation, **options)[0]
