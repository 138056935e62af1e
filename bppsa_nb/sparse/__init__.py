"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from importlib import import_module as _import_module

_HOME = {
    "CSRPattern": "pattern",
    "LeNet5": "models",
    "Network": "network",
    "PlannedProduct": "products",
    "VGG11": "models",
    "load_weights": "weights",
    "masks_of": "pruning",
    "prune": "pruning",
    "save_weights": "weights",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562): numbers of a pattern are asked for where Numba is not wanted.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.sparse' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.sparse.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
