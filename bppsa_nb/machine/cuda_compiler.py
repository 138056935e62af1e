"""The CUDA compiler, which no other module names: kernels and launchers take `cuda` from here, and `types`.

``BPPSA_NB_CUDA`` chooses it by name before this module is imported: numba-cuda, as long as it says nothing else, or
numba-cuda-mlir. ``ptx`` is numba-cuda, what it compiles being run on the CPU by warpwatch. Kernels of a learner's own
are numba-cuda's. Without numba-cuda, `cuda` is Numba's own, which decorates and no more.
"""

import os
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
from numba.core import config

from bppsa_nb.machine import compiling
from bppsa_nb.machine.checks import check_choice

GENERATION = 9, 0  # of the GPU that a compiler is told of where it asks for one and there is none


def _numba_cuda():
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        raise ValueError("NUMBA_ENABLE_CUDASIM must be unset: BPPSA_NB_CUDA=ptx runs kernels on the CPU, compiled")
    # Up to 0.30 it asks for np.row_stack when it compiles its first kernel; NumPy 2.5 has dropped that name.
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack  # noqa: NPY201
    config.reload_config()  # Numba has looked at the environment already
    from numba import cuda, types
    from numba.core.errors import NumbaError
    from numba.cuda import dispatcher

    asked, available = dispatcher.get_current_device, cuda.is_available  # which functions of a known signature ask
    dispatcher.get_current_device = lambda: asked() if available() else SimpleNamespace(compute_capability=GENERATION)
    return cuda, types, NumbaError


def _numba_cuda_mlir():
    if find_spec("numba_cuda_mlir") is None:
        said = "BPPSA_NB_CUDA: numba-cuda-mlir is missing: `pip install 'bppsa-nb[gpu,mlir]'` installs it"
        raise ModuleNotFoundError(said, name="numba_cuda_mlir")
    from numba_cuda_mlir import tools

    asked = tools.get_gpu_compute_capability

    def answer(as_type=str):
        if available():
            return asked(as_type)
        return GENERATION if as_type is tuple else tools.format_arch(GENERATION)

    tools.get_gpu_compute_capability = answer  # before what imports it by name; it is asked whatever `cc` says
    from numba_cuda_mlir import cuda, types
    from numba_cuda_mlir.numba_cuda.core.errors import NumbaError

    available = cuda.is_available
    return cuda, types, NumbaError


_COMPILERS = {"numba-cuda": _numba_cuda, "numba-cuda-mlir": _numba_cuda_mlir, "ptx": _numba_cuda}
NAME = os.environ.get("BPPSA_NB_CUDA") or "numba-cuda"
check_choice("BPPSA_NB_CUDA", NAME, _COMPILERS)
# Both warn of launches with fewer than 128 blocks; those are the nature of a scan's upper levels, and of small batches.
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
cuda, types, NumbaError = _COMPILERS[NAME]()
_PACKAGES = [sys.modules[name] for name in ("numba", "numba_cuda", "numba_cuda_mlir") if name in sys.modules]
_VERSIONS = [f"{package.__name__} {package.__version__}" for package in _PACKAGES]
_VERSIONS.append(os.environ.get("CUDA_HOME", ""))  # a system's own toolkit, which is no package
with suppress(metadata.PackageNotFoundError):
    _VERSIONS.append(f"cuda-toolkit {metadata.version('cuda-toolkit')}")  # an older one refuses a newer one's PTX


def require():
    """Raise a ModuleNotFoundError where no compiler is installed."""
    if NAME != "numba-cuda-mlir" and "numba_cuda" not in sys.modules:  # which numba.cuda brings in if it is there
        said = "CUDA kernels need a compiler: `pip install 'bppsa-nb[gpu]'` brings it, not for macOS"
        raise ModuleNotFoundError(said, name="numba_cuda")


def compile_ptx(function, signature, generation=GENERATION, **options):
    """Compile a function for argument types and a generation of GPUs, with options of the compiler; return PTX."""

    def compiled():
        return cuda.compile_ptx(function, signature, cc=generation, **options)[0]

    return compiling.kept(compiled, function, str(signature), generation, options, _VERSIONS, with_lines=True)


with suppress(ModuleNotFoundError):
    from warpwatch import compilers

    compilers.keep = lambda *what: compiling.kept(*what, _VERSIONS, with_lines=True)  # PTX that runs on the CPU, too
