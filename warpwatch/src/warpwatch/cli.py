"""The command `warpwatch`: a program watched, or a kernel checked with arguments that are made up."""

import argparse
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from warpwatch import program, virtual
from warpwatch.launch import Arguments, check_planted, empty, launch

SAID = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WRONG = (ValueError, TypeError, ArithmeticError, OSError, EOFError, MemoryError)  # what comes of a wrong argument
MOST = 1 << 28  # numbers of an array
_ARGUMENT = re.compile(r"(\w+)(?::(\w+)(?:\[(\d+(?:,\d+)*)\])?)?(?:=(.+))?")


def main(arguments=None):
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("warpwatch", description="Watch CUDA kernels, on any machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    how, types = argparse.RawDescriptionHelpFormatter, {"size": size, "int": int}
    for name, said in SAID["commands"].items():
        one = commands.add_parser(name, formatter_class=how, **said)
        for argument, about in SAID[name].items():
            one.add_argument(argument, **about | {"type": types.get(about.get("type"))})
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"] and arguments[1:] and arguments[1] not in ("-h", "--help"):
        return watched(arguments[1:])  # none of which is an option of this command
    return checked(parser.parse_args(arguments))


def size(text):
    """Read the size of a grid or block, such as 4 or 4,2."""
    return tuple(map(int, text.split(","))) if "," in text else int(text)


def watched(command):
    """Run a command and tell what was found; return the exit status."""
    check_planted()
    if command[0].endswith(".py") or command[0].startswith("-"):
        command = [sys.executable, *command]
    try:
        watch = program.Watch().own()
        if sys.platform == "linux":
            from warpwatch import cudart  # which needs sockets and memory as Linux has them

            cudart.prepare(command, watch)
        process = subprocess.Popen(command, env=os.environ)
    except (ValueError, OSError) as error:
        print(f"warpwatch: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while process.returncode is None:
        with suppress(KeyboardInterrupt):  # which the program gets as well, and may take its time
            process.wait()
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode  # as shells say it
    found = program.tell(watch)
    return status or int(found > 0)


def checked(arguments):
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
    check_planted()
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


if __name__ == "__main__":
    sys.exit(main())
