"""PyTorch's threads, lent to our loops.

They wait for their next task by spinning, for milliseconds, and would keep a core from ours as long. PyTorch takes them
from OpenMP's library, as whoever else calls it.
"""

import ctypes
import sys
from contextlib import contextmanager, nullcontext

import torch

from bppsa_nb.machine import workers

_CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _find():
    """Return OpenMP's library as PyTorch has loaded it, or None where that is not to be found."""
    if sys.platform == "linux" and "ATen parallel backend: OpenMP" in torch.__config__.parallel_info():
        library = ctypes.CDLL(None)
        if hasattr(library, "GOMP_parallel_start"):
            return library
    return None


_openmp = _find()


@contextmanager
def _team(task):
    """Have PyTorch's other threads call a function beside a block, and wait for them."""
    called = _CALLED(lambda _: task())
    _openmp.GOMP_parallel_start(called, None, torch.get_num_threads())
    try:
        yield
    finally:
        _openmp.GOMP_parallel_end()


def lent():
    """Return a context in which our loops run on PyTorch's threads, if it has more than one."""
    return workers.lent(_team) if _openmp and torch.get_num_threads() > 1 else nullcontext()
