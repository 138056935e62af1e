"""Launch what a learner wrote: within a limit of time, and what goes wrong is told by thread, block and line."""

import inspect
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.cuda_compiler import NumbaError, cuda
from bppsa_nb.puzzles.checker import Given, Wrong, said

SECONDS = 10  # that a launch may take


def launch(kernel, blocks, threads, *arguments):
    """Launch a kernel on copies of host arrays, wait for it, and return what they hold then; `Wrong` if it fails.

    All arrays but the last one are only to be read.
    """
    if not hasattr(kernel, "py_func"):
        raise Wrong(f"{getattr(kernel, '__name__', kernel)!r} is a function and no kernel; write @cuda.jit above it")
    if inspect.isgeneratorfunction(kernel.py_func):
        raise Wrong("it has a yield, which makes it wait for one who asks; a kernel's threads run to the end, once")
    backends.resolve("cuda")
    given = Given(kernel.py_func, arguments)
    on_device = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in arguments]
    try:
        with _watched(kernel) if backends.simulated() else _timed():
            kernel[blocks, threads](*on_device)
    except NumbaError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise Wrong(f"it does not compile: {' '.join(lines[:2])}") from error
    except (Wrong, KeyboardInterrupt):
        raise
    except Exception as error:
        raise Wrong(_told_by_simulator(error, kernel)) from error
    after = [each.copy_to_host() for each in on_device if hasattr(each, "copy_to_host")]
    given.check(after[:-1])
    return after


def _told_by_simulator(error, kernel):
    """Say which thread of which block raised what, on which line."""
    text, where = str(error), ""
    if text.startswith("tid=") and " ctaid=" in text:
        thread, _, rest = text.removeprefix("tid=").partition(" ctaid=")
        block, _, text = rest.partition("]")
        where = f"thread ({thread.strip('[]')}) of block ({block.strip('[')}): "
    return where + said(error, kernel.py_func, text.lstrip(": "))


class Ended(Exception):
    """A thread of the simulator took longer than it may, or raised what ends a program."""


@contextmanager
def _timed():
    """Wait for a GPU no longer than a launch may take."""
    yield
    done, start = cuda.event(), time.monotonic()
    done.record()
    while not done.query():
        if time.monotonic() - start > SECONDS:
            raise Wrong(f"it has not ended after {SECONDS} seconds; restart the notebook: no GPU can be told to stop")
        time.sleep(0.001)


@contextmanager
def _watched(kernel):
    """Give the simulator's threads a limit of time, and see that all threads of a block reach the same barriers."""
    BlockThread = cuda.simulator.kernel.BlockThread
    code, stop, seen, waits = kernel.py_func.__code__, time.monotonic() + SECONDS, {}, BlockThread.syncthreads

    def trace(frame, event, raised):
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("numba", "numpy", "threading"):
            return None
        frame.f_trace_opcodes = True  # for a loop on one line
        if time.monotonic() > stop:
            raise Ended(f"still running after {SECONDS} seconds. Does every loop of yours end?")
        if event == "exception" and not issubclass(raised[0], (Exception, GeneratorExit)):  # which no thread tells of
            raise Ended(f"it raises {raised[0].__name__}; a kernel's threads run to the end")
        return trace

    def noted(thread):
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        line = frame.f_lineno - code.co_firstlineno + 1 if frame else 0
        seen.setdefault(tuple(thread.blockIdx), {}).setdefault(tuple(thread.threadIdx), []).append(line)
        waits(thread)

    before, BlockThread.syncthreads = threading.gettrace(), noted
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(before)
        BlockThread.syncthreads = waits
    count = int(np.prod(kernel.block_dim))
    for block, lines in sorted(seen.items()):
        lines = dict(sorted(lines.items()))  # they came as threads happened to run
        most = max(lines.values(), key=len)
        other = next((thread for thread, reached in lines.items() if reached != most), None)
        if other is None and len(lines) == count:
            continue
        what = f"thread {other} at {_lines(lines[other])}" if other is not None else "others at none"
        one = next(thread for thread, reached in lines.items() if reached == most)
        raise Wrong(f"block {block}: thread {one} waits at {_lines(most)}, {what}; all threads reach the same barriers")


def _lines(lines):
    several = "s of lines" if len(lines) > 1 else " of line"
    return f"the barrier{several} {', '.join(map(str, lines))}"
