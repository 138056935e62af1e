"""Numba's compiler as all of the package calls it: it says once that it is at work, and keeps what it compiled."""

import sys
import warnings

import numba
from numba.core import event
from numba.core.caching import FunctionCache

from bppsa_nb import ranks


def njit(**options):
    """Return `numba.njit` with these options; ``cache=True`` keeps what is compiled where that is possible."""
    kept = options.pop("cache", False)

    def decorate(function):
        compiled = numba.njit(**options)(function)
        if kept:
            try:
                compiled._cache = _Cache(function)  # what Numba's own cache=True does
            except RuntimeError as error:  # no folder that can be written
                _cannot_keep(error)
        return compiled

    return decorate


class _Cache(FunctionCache):
    """Numba's cache, without which a program is slower, but not wrong: a full disk does not stop it."""

    def save_overload(self, signature, compiled):
        try:
            super().save_overload(signature, compiled)
        except OSError as error:
            _cannot_keep(error)


def _cannot_keep(error):
    warnings.warn(f"compiled code is not kept, so that every process compiles anew: {error}", RuntimeWarning, 4)


class _Says(event.Listener):
    """Says that something is compiled, at the first function of this package, where somebody waits for it."""

    said = False

    def on_start(self, happens):
        function = happens.data["dispatcher"].py_func
        if not self.said and function.__module__.startswith("bppsa_nb."):
            self.said = True
            if _watched():
                print("bppsa_nb: compiling, once", file=sys.stderr, flush=True)

    def on_end(self, happens):
        pass


def _watched():
    """Tell whether messages reach a terminal, a notebook, or what mpiexec shows of its ranks."""
    rank, size = ranks.place()
    return rank == 0 and (size > 1 or sys.stderr.isatty() or "ipykernel" in sys.modules)


event.register("numba:compile", _Says())
