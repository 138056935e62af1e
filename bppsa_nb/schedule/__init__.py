"""Out-of-order backprop: which gradient to compute when, on one device, with data- and with pipeline-parallelism."""

from bppsa_nb.machine import dispatch as _dispatch

__getattr__, __dir__, __all__ = _dispatch.names(__name__)
