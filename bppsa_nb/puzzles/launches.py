"""Launch what a learner wrote, on a GPU or, watched, on the CPU: what goes wrong is told by line, block and thread."""

import inspect
import re
import time
from pathlib import Path

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.cuda_compiler import NumbaError, cuda
from bppsa_nb.ptx.launch import launch as launch_watched
from bppsa_nb.puzzles.checker import Given, Wrong, said

SECONDS = 10  # that a launch may take on a GPU
STEPS = 1 << 14  # that one may take on the CPU, where a right one takes some dozens


def launch(kernel, blocks, threads, *arguments):
    """Launch a kernel on copies of host arrays, wait for it, and return what they hold then; `Wrong` if it fails.

    All arrays but the last one are only to be read.
    """
    if not isinstance(kernel, type(cuda.jit(lambda: None))) or kernel.targetoptions.get("device"):
        raise Wrong(f"{getattr(kernel, '__name__', kernel)!r} is a function and no kernel; write @cuda.jit above it")
    if inspect.isgeneratorfunction(kernel.py_func):
        raise Wrong("it has a yield, which makes it wait for one who asks; a kernel's threads run to the end, once")
    given, watched = Given(kernel.py_func, arguments), backends.emulated() or not backends.cuda_available()
    try:
        after = (_on_cpu if watched else _on_gpu)(kernel, blocks, threads, arguments)
    except (Wrong, ModuleNotFoundError):
        raise
    except Exception as error:
        raise Wrong(_told(error, kernel.py_func)) from error
    given.check(after[:-1])
    return after


def _on_gpu(kernel, blocks, threads, arguments):
    """Launch on a GPU, and wait for it no longer than a launch may take."""
    on_device = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in arguments]
    kernel[blocks, threads](*on_device)
    done, start = cuda.event(), time.monotonic()
    done.record()
    while not done.query():
        if time.monotonic() - start > SECONDS:
            raise Wrong(f"it has not ended after {SECONDS} seconds; restart the notebook: no GPU can be told to stop")
        time.sleep(0.001)
    return [each.copy_to_host() for each in on_device if hasattr(each, "copy_to_host")]


def _on_cpu(kernel, blocks, threads, arguments):
    """Run what a GPU would run, every access watched; what is found is `Wrong`, and a barrier the cause of the rest."""
    copies = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
    report = launch_watched(kernel, blocks, threads, copies, steps=STEPS)
    if report.findings:
        names = dict(zip(inspect.signature(kernel.py_func).parameters, copies, strict=True))
        raise Wrong(_found(min(report.findings, key=lambda found: found.kind != "barrier"), kernel.py_func, names))
    return [each for each in copies if isinstance(each, np.ndarray)]


def _found(found, function, arguments):
    """Say what was found, in lines of the learner's own."""
    first = function.__code__.co_firstlineno
    what = re.sub(r"(?<= line )\d+", lambda line: f"{int(line[0]) - first + 1} of yours", found.message)
    if found.kind == "endless":
        what = f"{what.replace('is here', 'still runs')}. Does every loop of yours end?"
    elif found.kind == "barrier":
        what += "; all threads of a block reach the same barriers"
    elif found.kind == "out of bounds" and found.array in arguments:
        what = f"{what.partition(':')[0]}, which is not there: {found.array} has shape {arguments[found.array].shape}"
    return f"{_where(found.file, found.line, function)}thread {found.thread} of block {found.block} {what}"


def _where(file, line, function):
    """Say which line of a learner's function it is, or nothing if it is none of them."""
    code = function.__code__
    own = Path(file).name == Path(code.co_filename).name and line in {number for *_, number in code.co_lines()}
    return f"line {line - code.co_firstlineno + 1} of yours: " if own else ""


def _told(error, function):
    """Say what a compiler, or the launch, says of a kernel, and of which line."""
    compiler = error if isinstance(error, NumbaError) else error.__cause__
    if not isinstance(compiler, NumbaError):
        return said(error, function)
    text, file = str(compiler), Path(function.__code__.co_filename).name
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")]
    if called := re.search("^ *>{3} (.*)", text, re.MULTILINE):
        lines = [f"there is no {called[1].strip()}"]
    at = re.search(rf'{re.escape(file)}", line (\d+)', text)
    return f"it does not compile: {_where(file, int(at[1]), function) if at else ''}{lines[0]}"
