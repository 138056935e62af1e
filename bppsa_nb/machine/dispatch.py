"""Find the module that computes the same on another backend, or that has a name: both load on first use."""

import functools
import sys
from importlib import import_module


@functools.cache
def implementation(module, backend):
    """Return the form of a module that computes on a backend, with the same functions under the same names.

    The module is what NumPy computes, such as ``"bppsa_nb.chains.runs"``. Its counterparts are named after it:
    ``"bppsa_nb.chains.runs_cpu"``, compiled, and ``"bppsa_nb.chains.runs_cuda"``.
    """
    return import_module(module if backend == "numpy" else f"{module}_{backend}")


def names(module, homes):
    """Return `__getattr__`, `__dir__` and `__all__` of a module, whose ``__name__`` is given (PEP 562).

    So importing it stays quick. `homes` are modules, seen from the package's top, and those of their names that it has.
    """
    home = {name: place for place, names in homes.items() for name in names}
    public = sorted(home)

    def __getattr__(name):
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(f"bppsa_nb.{home[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    def __dir__():
        return sorted([*vars(sys.modules[module]), *public])

    return __getattr__, __dir__, public
