"""The command `warpwatch check`: run one kernel on the CPU, every access watched, with arguments that are made up."""

import inspect
import re
import runpy
import sys
from math import prod
from pathlib import Path

import numpy as np

from warpwatch import control, virtual
from warpwatch.launch import Arguments, empty, launch

WRONG = (ValueError, TypeError, ArithmeticError, OSError, EOFError, MemoryError)  # what comes of a wrong argument
MOST = 1 << 28  # numbers of an array
_ARGUMENT = re.compile(r"(\w+)(?::(\w+)(?:\[(\d+(?:,\d+)*)\])?)?(?:=(.+))?")


def run(arguments):
    """Check a kernel as the command line says; print the report, or what is wrong in a line; return the exit status."""
    try:
        report = _report(arguments)
    except (*WRONG, ImportError) as error:
        print("warpwatch check:", " ".join(str(error).split())[:600], file=sys.stderr)
        return 2
    print(report)
    return int(bool(report.findings))


def _report(arguments):
    rng, given = np.random.default_rng(0), {}
    for text in arguments.arguments:
        try:
            name, value = _argument(text, rng)
        except WRONG as error:
            raise ValueError(f"argument {text}: {error}") from error
        if name in given:
            raise ValueError(f"argument {text}: its name is given twice")
        given[name] = value
    file, _, name = arguments.kernel.rpartition(":")
    if file.endswith(".py") and not arguments.entry:
        kernel = _kernel(Path(file), name)
        takes = list(inspect.signature(kernel.py_func).parameters)
        if takes != list(given):
            raise ValueError(f"kernel {name} takes {', '.join(takes)}, in this order; got {', '.join(given)}")
    elif arguments.kernel.endswith(".ptx"):
        kernel = Path(arguments.kernel)
    else:
        raise ValueError(f"a kernel is FILE.py:NAME, or FILE.ptx with --entry, not {arguments.kernel}")
    control.check()
    values = Arguments(list(given.values()), list(given))
    return launch(kernel, arguments.grid, arguments.block, values, shared=arguments.shared, entry=arguments.entry)


def _argument(text, rng):
    """Return an argument's name, and the array or number."""
    found = _ARGUMENT.fullmatch(text)
    if not found or not found[3] and found[4] in (None, "empty"):
        raise ValueError("expected x:float32[64,3], out:float32[64]=empty, x=file.npy, n=1000 or the like")
    name, kind, sizes, value = found.groups()
    if kind is None and value.endswith(".npy"):
        return name, np.array(np.lib.format.open_memmap(value, "r"))
    if kind is None:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    dtype, shape = np.dtype(kind), tuple(map(int, sizes.split(","))) if sizes else ()
    if dtype.kind not in "biufc" or prod(shape) > MOST:
        raise ValueError(f"an array needs a type of numbers, and at most {MOST} of them")
    if value == "empty":
        return name, empty(shape, dtype)
    if value is None:
        made = rng.random(shape) * {"b": 2, "i": 10, "u": 10}.get(dtype.kind, 1)
        return name, (made if dtype.kind in "fc" else np.floor(made)).astype(dtype)
    made = np.full(shape, int(value) if dtype.kind == "b" else value, dtype)
    return name, made if sizes else made[()]


def _kernel(file, name):
    """Return a kernel from a file of Python, which is run as if it was imported."""
    sys.path.insert(0, str(file.parent.resolve()))  # what stands beside it can be imported
    try:
        with virtual.device():  # which signatures ask for when they are read
            found = runpy.run_path(str(file), run_name=file.stem)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"importing {file}: {error}", name=error.name) from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"importing {file} raises {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    kernels = {key: value for key, value in found.items() if hasattr(value, "py_func")}
    if name not in kernels:
        raise ValueError(f"{file} has no kernel {name!r}; those decorated with cuda.jit are {', '.join(kernels)}")
    return kernels[name]
