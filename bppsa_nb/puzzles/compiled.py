"""Compile a kernel for a GPU where there is none: the simulator runs any Python, a GPU does not.

The simulator replaces the compiler for as long as a process lives, so the compiler has a process of its own.
"""

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from types import ModuleType

from numba import types

from bppsa_nb.machine import cuda_compiler

_FILE = "yours"


def why_not(kernel, *arguments):
    """Say why a kernel of the simulator cannot be compiled for a GPU; None if it can.

    `arguments` are their types, of `numba.types`, such as ``"float64[:, ::1]"``. Raises LookupError if that cannot be
    found out here: there is no compiler, or the source cannot be read.
    """
    if not cuda_compiler.installed():
        raise LookupError("`pip install 'bppsa-nb[gpu]'` brings a compiler")
    parts, values = {}, {}
    try:
        _collect(kernel.py_func, parts, values)
    except OSError as error:  # typed into a prompt, perhaps
        raise LookupError(f"its source cannot be read: {error}") from error
    asked = {"name": kernel.py_func.__name__, "parts": parts, "values": values, "arguments": arguments}
    command = [sys.executable, "-c", "from bppsa_nb.puzzles import compiled; compiled.main()"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, input=json.dumps(asked), env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LookupError((done.stderr.strip().splitlines() or ["the compiler died"])[-1])
    return json.loads(done.stdout)


def _collect(function, parts, values):
    """Collect the sources of a function and of those that it calls, by name, and what numbers and modules they use."""
    if function.__closure__:
        raise LookupError(f"it uses {', '.join(function.__code__.co_freevars)} of the function that it was made in")
    parts[function.__name__] = [textwrap.dedent(inspect.getsource(function)), None]
    for name in _used(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            values[name] = {"module": value.__name__}
        elif isinstance(value, bool | int | float | str):
            values[name] = {"value": value}
        elif isinstance(value, types.Type):
            values[name] = {"type": str(value)}
        elif callable(value) and name not in parts:
            called = getattr(value, "py_func", getattr(value, "fn", value))
            if inspect.isfunction(called):
                _collect(called, parts, values)
                parts[name] = [parts[called.__name__][0], called.__name__]
                continue
        if value is not None and name not in parts and name not in values:
            raise LookupError(f"it uses {name}, a {type(value).__name__}, which cannot be taken along")


def _used(code):
    inner = (each for each in code.co_consts if inspect.iscode(each))
    return {*code.co_names, *(name for each in inner for name in _used(each))}


def main():
    """Compile what comes as JSON, and print why it cannot be compiled, as JSON: the child of `why_not`."""
    cuda, asked = cuda_compiler.cuda, json.load(sys.stdin)
    names = {"cuda": cuda}
    for name, each in asked["values"].items():
        if "module" in each:
            exec(f"import {each['module']} as {name}", names)
        elif "type" in each:
            names[name] = eval(each["type"], vars(types))
        else:
            names[name] = each["value"]
    for name, (source, called) in asked["parts"].items():
        exec(compile(source, _FILE, "exec"), names)
        if name != asked["name"]:
            function = names[called or name]
            names[name] = function if hasattr(function, "py_func") else cuda.jit(device=True)(function)
    kernel = names[asked["name"]]
    arguments = tuple(eval(each, vars(types)) for each in asked["arguments"])
    why = None
    try:
        cuda_compiler.compile_ptx(kernel.py_func, types.void(*arguments))
    except (cuda_compiler.NumbaError, TypeError) as error:
        why = _told(str(error))
    print(json.dumps(why))


def _told(text):
    """Return what a compiler's message says, and of which line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if called := re.search("^ *>{3} (.*)", text, re.MULTILINE):
        return f"there is no {called[1].strip()}"
    said = next((line for line in lines if not line.startswith("Failed in")), text)
    line = re.search(rf'"{_FILE}", line (\d+)', text)
    return f"line {line[1]} of yours: {said}" if line else said
