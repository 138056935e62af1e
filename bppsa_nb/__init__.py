"""Back-propagation as a parallel scan: BPPSA, re-implemented to be read, changed and measured."""

import os as _os

from bppsa_nb.machine import dispatch as _dispatch

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _dispatch.names(__name__)

if _os.environ.get("BPPSA_NB_CUDA") == "ptx":
    from bppsa_nb.machine.process import explained as _explained

    with _explained():
        from warpwatch import virtual as _virtual
    _virtual.turn_on()
