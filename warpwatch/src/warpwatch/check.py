"""The command `warpwatch check`: run one kernel on the CPU, every access watched, with arguments that are made up."""

import inspect
import re
import runpy
import sys
from math import prod
from pathlib import Path

import numpy as np

from warpwatch import compilers, control
from warpwatch.launch import Arguments, empty, launch

DESCRIPTION = """\
Run a CUDA kernel on the CPU, from the PTX that a GPU would get. Report races, accesses outside of arrays, reads of
memory that nothing has written, and barriers that not all threads reach. The exit status is 0 if nothing is found, 1 if
something is, and 2 if the call is wrong. FILE.py is imported; put its program under `if __name__ == "__main__":`."""
EPILOG = """\
give the arguments in the kernel's order, each like one of these
  x:float32[64,3]        an array of random numbers: floats from 0 to 1, integers from 0 to 9
  out:float32[64]=empty  an array that nothing has written yet, so reading it is reported
  x:float32[64]=0        an array of zeros, or of another number
  x=file.npy             an array saved by NumPy
  n=1000, a:float32=0.5  a number, of Numba's type for it or of the given type
example
  warpwatch check kernels.py:saxpy --grid 4 --block 256 n=1000 a=2.0 x:float32[1000] out:float32[1000]=empty"""
WRONG = (ValueError, TypeError, ArithmeticError, OSError, EOFError, MemoryError)  # what comes of a wrong argument
MOST = 1 << 28  # numbers of an array
_ARGUMENT = re.compile(r"(\w+)(?::(\w+)(?:\[(\d+(?:,\d+)*)\])?)?(?:=(.+))?")


def add_options(add):
    """Add the options of the command, by `add`, a parser's `add_argument`."""
    add("kernel", metavar="FILE.py:NAME | FILE.ptx", help="a function decorated with Numba's cuda.jit, or PTX")
    add("arguments", nargs="+", metavar="ARGUMENT", help="see below")
    add("--grid", type=size, required=True, metavar="X[,Y[,Z]]", help="blocks of the grid")
    add("--block", type=size, required=True, metavar="X[,Y[,Z]]", help="threads of a block")
    add("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory (default: %(default)s)")
    add("--entry", metavar="NAME", help="name of the kernel, if FILE.ptx has several")


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


def size(text):
    """Read the size of a grid or block, such as 4 or 4,2."""
    sizes = tuple(map(int, text.split(",")))
    return sizes if "," in text else sizes[0]


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
    if not compilers.present():
        raise ModuleNotFoundError(compilers.MISSING, name="numba_cuda")
    sys.path.insert(0, str(file.parent.resolve()))  # what stands beside it can be imported
    try:
        found = runpy.run_path(str(file), run_name=file.stem)
    except (Exception, SystemExit) as error:
        raise ValueError(f"importing {file} raises {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    kernels = {key: value for key, value in found.items() if hasattr(value, "py_func")}
    if name not in kernels:
        raise ValueError(f"{file} has no kernel {name!r}; those decorated with cuda.jit are {', '.join(kernels)}")
    return kernels[name]
