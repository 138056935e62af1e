"""Find the module that computes the same on another backend."""

import functools
from importlib import import_module
from importlib.util import find_spec


@functools.cache
def implementation(module, backend, otherwise=None):
    """Return the form of a module that computes on a backend, with the same functions under the same names.

    Parameters
    ----------
    module : str
        What NumPy computes, such as ``"bppsa_nb.chains.structured"``. Its counterparts are named after it:
        ``"bppsa_nb.chains.structured_cpu"``, compiled, and ``"bppsa_nb.chains.structured_cuda"``.
    backend : {"numpy", "cpu", "cuda"}
    otherwise : {"numpy", "cpu", "cuda"}, optional
        The backend to take where the module has no counterpart for that one.

    Returns
    -------
    module
    """
    name = module if backend == "numpy" else f"{module}_{backend}"
    if otherwise is not None and find_spec(name) is None:
        return implementation(module, otherwise)
    return import_module(name)
