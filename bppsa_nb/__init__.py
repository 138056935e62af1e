"""Back-propagation as a parallel scan: BPPSA, re-implemented to be read, changed and measured."""

from importlib import import_module as _import_module

__version__ = "0.1.0"

_HOME = {
    "backprop": "chains.backprop",
    "explain": "chains.plan",
    "BatchedCSR": "operands.batched",
    "StructuredChain": "chains.structured",
    "GRU": "cells.gru",
    "RNN": "cells.rnn",
    "SGD": "training.optimizers",
    "Adam": "training.optimizers",
    "Trainer": "training.trainer",
    "History": "training.history",
    "Bitstream": "training.datasets.bitstream",
    "Instruments": "training.datasets.audio",
    "Images": "training.datasets.images",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562), so that `import bppsa_nb` stays quick.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
