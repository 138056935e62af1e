"""Back-propagation as a parallel scan: BPPSA, re-implemented to be read, changed and measured."""

import os as _os

from bppsa_nb.machine import dispatch as _dispatch

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _dispatch.names(__name__)

if (_compiler := _os.environ.get("BPPSA_NB_CUDA")) and not _compiler.startswith("numba-cuda"):
    from bppsa_nb.ptx.device import Device as _Device

    _Device(_compiler == "ptx-watch").turn_on()
