"""Layer-parallel training: the layers of a residual network solved by nonlinear multigrid (FAS, MGRIT)."""

from bppsa_nb.machine import dispatch as _dispatch

__getattr__, __dir__, __all__ = _dispatch.names(__name__)
