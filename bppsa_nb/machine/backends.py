"""Which of the three backends can run here."""

import ctypes
import functools
import os
import sys

from bppsa_nb.machine.checks import check_choice

BACKENDS = ("numpy", "cpu", "cuda")


class UnavailableError(RuntimeError):
    """A backend cannot run here; the message says what it needs."""


@functools.cache  # as Numba, too, looks at its environment once
def compiles():
    """Tell whether Numba compiles; with ``NUMBA_DISABLE_JIT=1`` it runs them as Python, which not all of ours are."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def simulated():
    """Tell whether Numba's CUDA simulator stands in for a GPU (``NUMBA_ENABLE_CUDASIM=1``)."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def emulated():
    """Tell whether kernels run on the CPU, from their PTX (`bppsa_nb.ptx.device`)."""
    there = sys.modules.get("bppsa_nb.ptx.device")
    return there is not None and there.on()


def stand_in():
    """Tell whether something stands in for a GPU: launches are done when they return, and nothing is recorded."""
    return simulated() or emulated()


@functools.cache
def _driver_found():
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


@functools.cache
def _device_found():
    # Asking the driver library first keeps Numba out of processes that will never use a GPU.
    if not _driver_found():
        return False
    from bppsa_nb.machine.cuda_compiler import cuda

    return cuda.is_available()


def cuda_available():
    """Tell whether CUDA kernels can run: on a device, or on what stands in for one."""
    return stand_in() or _device_found()


def use_simulator_without_gpu():
    """Turn Numba's CUDA simulator on where there is no GPU, for notebooks that teach kernels; say what kernels run on.

    If there is no GPU and Numba is imported already, there is a RuntimeError: the simulator must be chosen before.
    """
    if not simulated() and not _driver_found():
        if "numba" in sys.modules:
            advice = "restart the kernel (or Python) and call this first"
            raise RuntimeError(f"Numba is imported already, so it is too late to choose its CUDA simulator; {advice}")
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    return "Numba's simulator (no GPU was found)" if simulated() else "the GPU"


def resolve(backend):
    """Turn a ``backend`` argument into the backend that will run, one of `BACKENDS`.

    ``"auto"`` is a GPU where there is one, and the compiled CPU code elsewhere, or NumPy where Numba must not compile;
    the simulator is never chosen by itself. Other names are a ValueError; "cuda" without a usable GPU is an
    UnavailableError, as is compiled code where Numba must not compile.
    """
    check_choice("backend", backend, (*BACKENDS, "auto"))
    if backend == "auto":
        if not compiles():
            return "numpy"
        return "cuda" if not simulated() and _device_found() else "cpu"
    if backend != "numpy" and not compiles() and not (backend == "cuda" and simulated()):
        said = f"NUMBA_DISABLE_JIT={os.environ['NUMBA_DISABLE_JIT']} forbids: unset it before Python starts"
        raise UnavailableError(f"backend={backend!r} is compiled by Numba, which {said}, or use backend='numpy'")
    if backend == "cuda" and not cuda_available():
        raise UnavailableError(
            "backend='cuda' needs an NVIDIA GPU with its driver, and `pip install 'bppsa-nb[gpu]'`; neither was "
            "found. To step through the kernels without a GPU, set NUMBA_ENABLE_CUDASIM=1 before Python starts; "
            "to compute here, use backend='cpu'."
        )
    return backend
