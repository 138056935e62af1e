"""Numba's compiler as all of the package calls it: it says once that it is at work, and keeps what it compiled."""

import os
import sys
import warnings
from pathlib import Path

import numba
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock as lock
from numba.core.sigutils import normalize_signature

from bppsa_nb.machine import content
from bppsa_nb.machine.ranks import rank_and_size

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
            digest = content.digest(self._py_func, *how)
        except content.Unknown:
            return False
        name = f"{self._name_of_files()}-{digest[:32]}"
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
            content.forget_old(Path(self.cache_path), f"{self._name_of_files()}-*")


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
