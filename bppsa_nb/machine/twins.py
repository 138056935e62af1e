"""One way to a twin: the module that computes the same on another backend."""

from importlib import import_module


def twin(module, backend):
    """Return the form of a module that computes on a backend, with the same functions under the same names.

    Parameters
    ----------
    module : str
        What NumPy computes, such as ``"bppsa_nb.chains.structured"``. Its twins are named after it:
        ``"bppsa_nb.chains.structured_cpu"``, compiled, and ``"bppsa_nb.chains.structured_cuda"``.
    backend : {"numpy", "cpu", "cuda"}

    Returns
    -------
    module
    """
    return import_module(module if backend == "numpy" else f"{module}_{backend}")
