"""What a kernel was compiled to, kept in the user's cache folder: compiling takes seconds, and tests have hundreds.

A text is found again by all that it depends on: the code of the kernel and of what it calls, the values of names that
they use, the types of its arguments, options and versions. So a change of any of them compiles anew.
"""

import hashlib
import sys
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType

import numpy as np

from bppsa_nb.machine import files

_PLAIN = bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype


class Unknown(Exception):
    """What a kernel depends on cannot be told, so it is not kept."""


def kept(compile_ptx, function, types, *how):
    """Return what was kept of a kernel for argument types, or compile and keep it; `how` are options and versions."""
    try:
        parts = [*reached(function, {}), str(types), repr(how), sys.version, np.__version__]
        path = files.cache_folder() / "ptx" / hashlib.sha256("\0".join(parts).encode()).hexdigest()
    except (Unknown, FileNotFoundError):
        return compile_ptx()
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    text = compile_ptx()
    with suppress(OSError):  # a full disk, a folder of somebody else's: compiled the next time, too
        with files.atomic_write(path, "w") as file:
            file.write(text)
    return text


def _versioned(module):
    """Tell whether a module's version tells what is in it."""
    return module.startswith("numba") or module.partition(".")[0] in (*sys.stdlib_module_names, "numpy")


def reached(value, known):
    """Yield texts of a value that code uses; of functions, of all that they use in turn."""
    function, module = getattr(value, "py_func", value), getattr(value, "__module__", None) or type(value).__module__
    if isinstance(value, _PLAIN):
        yield f"{type(value)} {value!r}"
    elif isinstance(function, FunctionType) and not _versioned(function.__module__ or ""):
        met = function in known
        yield f"function {known.setdefault(function, len(known))} {getattr(value, 'targetoptions', None)}"
        if not met:
            inside = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            named = {name: cell.cell_contents for name, cell in inside.items()}
            yield from reached(function.__code__, known)
            names = {*_names(function.__code__)} & {*function.__globals__}
            for name, used in sorted((named | {n: function.__globals__[n] for n in names}).items()):
                yield name
                yield from reached(used, known)
    elif isinstance(value, CodeType):
        yield repr((value.co_filename, value.co_code, *value.co_lines(), value.co_names, value.co_varnames))
        for constant in value.co_consts:
            yield from reached(constant, known)
    elif isinstance(value, tuple):
        yield f"tuple of {len(value)}"
        for entry in value:
            yield from reached(entry, known)
    elif isinstance(value, ModuleType):
        if not _versioned(value.__name__):
            raise Unknown(value)
        yield value.__name__
    elif _versioned(module) and (callable(value) or module.startswith("numba")):
        yield repr(value)
    else:
        raise Unknown(value)


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
