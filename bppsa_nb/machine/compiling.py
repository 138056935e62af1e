"""Numba's compiler as all of the package calls it: it says once that it is at work, and keeps what it compiled.

Compiled code is found again by content: by all that it depends on, so that a change of any of it compiles anew. That is
the code of a function and of all that it calls, the values of names that they use, the types of arguments, options and
versions. Time stamps of files do not count, and a folder may be moved.
"""

import functools
import hashlib
import os
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import llvmlite
import numba
import numpy as np
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock as lock
from numba.core.sigutils import normalize_signature
from numba.core.typing.templates import builtin_registry

from bppsa_nb.machine import files
from bppsa_nb.machine.process import rank_and_size

_PLAIN = bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype
_VERSIONS = sys.version, np.__version__, numba.__version__, llvmlite.__version__, llvmlite.binding.llvm_version_info
_LONG = 60 * 24 * 3600  # seconds


class Unknown(Exception):
    """What compiled code depends on cannot be told, so it is not kept."""


def digest(*values, with_lines=False):
    """Return what tells values from all others, and versions: 64 letters; functions by all that their code is made of.

    Raises `Unknown` for what cannot be told. `with_lines` counts the places of lines in files, too, which PTX names.
    """
    texts = _of_value((_VERSIONS, values), {}, with_lines)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def kept(make, *values, with_lines=False):
    """Return the text that the cache folder keeps for values, under their `digest`, or make and keep it."""
    try:
        path = files.cache_folder() / "compiled" / digest(*values, with_lines=with_lines)
    except (FileNotFoundError, Unknown):  # no home folder; no values that can be told
        return make()
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    text = make()
    with suppress(OSError):  # a full disk, a folder of somebody else's: made the next time, too
        with files.atomic_write(path, "w") as file:
            file.write(text)
        forget_old(path.parent, "*")
    return text


def forget_old(folder, names):
    """Remove files that were written long ago, most of them for code that has changed since; some are made again."""
    for path in folder.glob(names):
        with suppress(OSError):  # somebody else's, or removed meanwhile
            if path.stat().st_mtime < time.time() - _LONG:
                path.unlink()


def _of_value(value, known, with_lines):
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of a dispatcher, of an intrinsic
    module = getattr(value, "__module__", None) or type(value).__module__
    if isinstance(value, _PLAIN):
        yield f"{type(value)} {value!r}"
    elif isinstance(function, FunctionType) and not _versioned(function.__module__ or ""):
        met = function in known
        yield f"function {known.setdefault(function, len(known))}"
        yield from _of_value(getattr(value, "targetoptions", None), known, with_lines)
        if not met:
            yield from _of_code(function, known, with_lines)
            for each in _overloads(len(builtin_registry.globals)).get(function, ()):
                yield from _of_value(each, known, with_lines)
    elif isinstance(value, (tuple, list)):
        yield f"{type(value)} of {len(value)}"
        for entry in value:
            yield from _of_value(entry, known, with_lines)
    elif isinstance(value, dict):
        yield from _of_value(list(value.items()), known, with_lines)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(text for entry in value for text in _of_value(entry, known, with_lines))
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, type) and hasattr(value, "_fields"):  # of a named tuple
        yield f"{module} {value.__qualname__} {value._fields}"
    elif isinstance(value, ModuleType) and _versioned(value.__name__):
        yield value.__name__
    elif isinstance(value, np.ufunc):  # which Numba knows by its name, or not at all
        yield f"ufunc {value.__name__}"
    elif _versioned(module) and hasattr(value, "__qualname__"):
        yield f"{module} {value.__qualname__}"
    elif module.startswith(("numba", "llvmlite")) and " at 0x" not in repr(value):  # which is another in each process
        yield repr(value)
    else:
        raise Unknown(value)


def _of_code(function, known, with_lines):
    """Yield texts of a function's code, and of all that it, or a function inside it, takes from around it."""
    named = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    named = {name: cell.cell_contents for name, cell in named.items()}
    yield from _of_value((function.__defaults__, function.__kwdefaults__), known, with_lines)
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield repr((code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars))
        if with_lines:
            yield repr((code.co_filename, *code.co_lines()))
        yield from _of_value([each for each in code.co_consts if not isinstance(each, CodeType)], known, with_lines)
        named |= {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, used in sorted(named.items()):
        yield name
        if isinstance(used, ModuleType) and not _versioned(used.__name__):  # all of it that may be meant
            attributes = {name for code in codes for name in code.co_names} & {*vars(used)}
            used = {attribute: getattr(used, attribute) for attribute in sorted(attributes)}
        yield from _of_value(used, known, with_lines)


@functools.cache
def _overloads(_):
    """Return what compiled code runs in place of functions that Python runs, with options; anew when there are more."""
    found = {}
    for function, kind in builtin_registry.globals:
        if isinstance(function, FunctionType):
            templates = [each for each in getattr(kind, "templates", ()) if hasattr(each, "_overload_func")]
            found.setdefault(function, []).extend((each._overload_func, each._jit_options) for each in templates)
    return found


def _versioned(module):
    """Tell whether a version tells what is in a module."""
    return module.startswith("numba") or module.partition(".")[0] in (*sys.stdlib_module_names, "numpy", "llvmlite")


# A forked child has no thread that could give the compiler's lock back, so a fork waits for the one that has it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

inline = numba.njit(inline="always")  # for what is so short that it costs less to compile where it is used


def njit(**options):
    """Return `numba.njit` with these options; ``cache=True`` keeps what is compiled where that is possible."""
    kept = options.pop("cache", False)

    def decorate(function):
        dispatcher = numba.njit(**options)(function)
        if kept:
            dispatcher._cache = _cache(function, options)  # what Numba's own cache=True does
        return dispatcher

    return decorate


# Loops, as most of them are compiled. Without the "numpy" error model every division would carry a branch
# (ZeroDivisionError), and its loop would not vectorize. "contract" allows fused multiply-adds and nothing else: NaN and
# infinity keep their meaning.
compiled = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
# What becomes a part of such loops, and is called from nowhere else.
INSIDE = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
INSIDE |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def cfunc(signature, **options):
    """Return `numba.cfunc` with this signature; what is compiled is kept where that is possible."""

    def decorate(function):
        compiled = CFunc(function, normalize_signature(signature), locals={}, options=options)
        compiled._cache = _cache(function, options)
        compiled.compile()
        return compiled

    return decorate


class _Cache(FunctionCache):
    """Numba's files, under names by content: no edit is missed, and no two processes write different code to one."""

    options = None

    def _find(self, signature, codegen):
        """Choose the files of a signature; tell whether there can be any."""
        how = str(signature), self.options, numba.config.OPT, numba.config.BOUNDSCHECK, codegen.magic_tuple()
        try:
            found = digest(self._py_func, *how)
        except Unknown:
            return False
        name = f"{self._name_of_files()}-{found[:32]}"
        self._cache_file = IndexDataCacheFile(self.cache_path, name, source_stamp=None)
        return True

    def _name_of_files(self):
        return self._impl.filename_base.rpartition("-")[0]  # without the line where the function is

    def _index_key(self, signature, codegen):
        return signature

    def load_overload(self, signature, context):
        context.refresh()
        if not self._find(signature, context.codegen()):
            return None
        try:
            return super().load_overload(signature, context)
        except Exception:  # a damaged file shows itself in many ways: it is made anew
            self.flush()
            return None

    def save_overload(self, signature, compiled):
        if self._find(signature, compiled.codegen):
            super().save_overload(signature, compiled)
            forget_old(Path(self.cache_path), f"{self._name_of_files()}-*")


def _cache(function, options):
    try:
        cache = _Cache(function)
    except RuntimeError as error:  # neither the package's folder nor the user's can be written
        warnings.warn(f"every process compiles anew: {error}; NUMBA_CACHE_DIR can name a folder", RuntimeWarning, 2)
        return NullCache()
    cache.options = options
    return cache


class _Compiles(event.Listener):
    """Says that something is compiled, at the first function of this package, where somebody waits for it."""

    said = False

    def on_start(self, happens):
        module = happens.data["dispatcher"].py_func.__module__ or ""  # None, where exec made the function
        if not self.said and module.startswith("bppsa_nb."):
            self.said = True
            if _watched():
                print("bppsa_nb: compiling, once", file=sys.stderr, flush=True)

    def on_end(self, happens):
        pass


def _watched():
    """Tell whether messages reach a terminal, a notebook, or what mpiexec shows of its ranks."""
    rank, size = rank_and_size()
    return rank == 0 and sys.stderr is not None and (size > 1 or sys.stderr.isatty() or "ipykernel" in sys.modules)


event.register("numba:compile", _Compiles())
