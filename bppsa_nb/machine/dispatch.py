"""Find the module that computes the same on another backend."""

import functools
from importlib import import_module
from importlib.util import find_spec


@functools.cache
def implementation(module, backend, otherwise=None):
    """Return the form of a module that computes on a backend, with the same functions under the same names.

    The module is what NumPy computes, such as ``"bppsa_nb.chains.runs"``. Its counterparts are named after it:
    ``"bppsa_nb.chains.runs_cpu"``, compiled, and ``"bppsa_nb.chains.runs_cuda"``. Where there is none for
    the backend, that of `otherwise` is taken, if given.
    """
    name = module if backend == "numpy" else f"{module}_{backend}"
    if otherwise is not None and find_spec(name) is None:
        return implementation(module, otherwise)
    return import_module(name)
