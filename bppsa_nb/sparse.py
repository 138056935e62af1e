"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from bppsa_nb.machine import dispatch as _dispatch

__getattr__, __dir__, __all__ = _dispatch.names(__name__)
