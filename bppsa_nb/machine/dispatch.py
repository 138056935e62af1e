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


def names(module):
    """Return `__getattr__`, `__dir__` and `__all__` of a module, whose ``__name__`` is given (PEP 562).

    So importing it stays quick. Where its names are says the stub beside it, by which editors complete, too: in lines
    such as ``from bppsa_nb.chains.backprop import backprop as backprop``.
    """
    spec = sys.modules[module].__spec__
    stub = spec.loader.get_data(f"{spec.origin.rpartition('.')[0]}.pyi").decode()  # in a zip, too
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    home = {name: place for _, place, _, name, *_ in lines}
    public = sorted(home)

    def __getattr__(name):
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def __dir__():
        return sorted([*vars(sys.modules[module]), *public])

    return __getattr__, __dir__, public
