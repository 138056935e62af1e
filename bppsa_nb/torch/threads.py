"""PyTorch's threads, lent to our loops: while they wait, they spin for milliseconds, and take a core from others."""

import ctypes
import os
import sys
import threading
from contextlib import contextmanager, nullcontext

import torch

from bppsa_nb.machine import workers

_CALLED, _openmp = ctypes.CFUNCTYPE(None, ctypes.c_void_p), None  # OpenMP's library, as PyTorch has loaded it
if sys.platform == "linux" and "ATen parallel backend: OpenMP" in torch.__config__.parallel_info():
    _openmp = ctypes.CDLL(None)
    os.register_at_fork(after_in_child=lambda: globals().update(_openmp=None))  # the child has none of its threads


@contextmanager
def _team(task, count):
    """Have so many of PyTorch's other threads, at most, call a function beside a block, and wait for them."""
    free = threading.Semaphore(count)
    called = _CALLED(lambda _: task() if free.acquire(blocking=False) else None)
    # All of them are called: OpenMP ends those that a smaller team has no use for, and has to make them anew.
    _openmp.GOMP_parallel_start(called, None, torch.get_num_threads())
    try:
        yield
    finally:
        _openmp.GOMP_parallel_end()


def lent():
    """Return a context in which our loops run on PyTorch's threads; where it has one, on the thread that is here."""
    if torch.get_num_threads() == 1:
        return workers.lent(None)
    return workers.lent(_team) if hasattr(_openmp, "GOMP_parallel_start") else nullcontext()
