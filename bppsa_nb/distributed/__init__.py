"""A chain spread over MPI ranks: ranks reduce their segments to one map each, scan these, and replay."""

from bppsa_nb.machine import dispatch as _dispatch

__getattr__, __dir__, __all__ = _dispatch.names(__name__)
