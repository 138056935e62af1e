"""Which of the three backends can run here, what this machine is called, and which versions run on it."""

import ctypes
import functools
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine.checks import check_choice

BACKENDS = ("numpy", "cpu", "cuda")
_NAMES = (*BACKENDS, "auto")


class UnavailableError(RuntimeError):
    """A backend cannot run here; the message says what it needs."""


@functools.cache  # as Numba, too, looks at its environment once
def compiles():
    """Tell whether Numba compiles; with ``NUMBA_DISABLE_JIT=1`` it runs them as Python, which not all of ours are."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def emulated():
    """Return the device that runs kernels on the CPU, from their PTX, where one is on (`warpwatch.device`)."""
    there = sys.modules.get("warpwatch.virtual")
    return there and there.current()


@functools.cache
def _device_found():
    # Asking the driver library first keeps Numba out of processes that will never use a GPU.
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(name)
            break
    else:
        return False
    from bppsa_nb.machine.cuda_compiler import cuda

    return cuda.is_available()


def cuda_available():
    """Tell whether CUDA kernels can run: on a GPU, or on what stands in for one."""
    return bool(emulated()) or _device_found()


def resolve(backend):
    """Turn a ``backend`` argument into the backend that will run, one of `BACKENDS`.

    ``"auto"`` is a GPU where there is one, and the compiled CPU code elsewhere, or NumPy where Numba must not compile;
    what stands in for one is never chosen by itself. Other names are a ValueError; "cuda" without a usable GPU is an
    UnavailableError, as is compiled code where Numba must not compile.
    """
    if type(backend) is not str or backend not in _NAMES:
        check_choice("backend", backend, _NAMES)
    if backend == "auto":
        if not compiles():
            return "numpy"
        return "cuda" if not emulated() and _device_found() else "cpu"
    if backend != "numpy" and not compiles():
        said = f"NUMBA_DISABLE_JIT={os.environ['NUMBA_DISABLE_JIT']} forbids: unset it before Python starts"
        raise UnavailableError(f"backend={backend!r} is compiled by Numba, which {said}, or use backend='numpy'")
    if backend == "cuda" and not cuda_available():
        raise UnavailableError(
            "backend='cuda' needs an NVIDIA GPU with its driver, and `pip install 'bppsa-nb[gpu]'`; neither was "
            "found. `with warpwatch.device():`, or BPPSA_NB_CUDA=ptx in the environment, runs kernels on the CPU to "
            "check them; to compute here, use backend='cpu'."
        )
    return backend


def cuda_only(backend):
    """Return the backend of arrays on a GPU; raise ValueError if it was to be another."""
    if backend not in ("auto", "cuda"):
        raise ValueError(f"backend must be 'cuda' or 'auto' for arrays in a GPU's memory, got {backend!r}")
    return "cuda"


_PACKAGES = ("numpy", "numba", "numba-cuda", "scipy")


def gpu_name():
    """Name the GPU that the cuda backend uses here, None without one (what stands in for one is none)."""
    if resolve("auto") != "cuda":
        return None
    from bppsa_nb.machine.cuda_compiler import cuda

    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else name


def cpu_name():
    """Name the processor's model; the host's name appears nowhere."""
    if sys.platform == "linux":
        said = Path("/proc/cpuinfo").read_text(errors="replace")
        if described := re.search(r"^model name\s*:\s*(.+)$", said, re.MULTILINE):
            return " ".join(described[1].split())
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def cores():
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def versions():
    """Return Python's version and the packages', None for what is not installed, by name; nothing is imported."""
    known = {"bppsa-nb": bppsa_nb.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            known[package] = None
    return known
