"""What this machine is called, and which versions run on it."""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine import backends

_PACKAGES = ("numpy", "numba", "numba-cuda", "scipy")


def gpu_name():
    """Name the GPU that the cuda backend uses here, None without one (what stands in for one is none)."""
    if backends.resolve("auto") != "cuda":
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
