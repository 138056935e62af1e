"""Back-propagation as a parallel scan: BPPSA, re-implemented to be read, changed and measured."""

import os as _os

from bppsa_nb.machine import dispatch as _dispatch

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _dispatch.names(
    __name__,
    {
        "chains.backprop": ["backprop"],
        "chains.plan": ["explain"],
        "chains.structured": ["StructuredChain"],
        "operands.batched": ["BatchedCSR"],
        "cells.rnn": ["RNN"], "cells.gru": ["GRU"], "cells.lstm": ["LSTM"], "cells.cell": ["Cell"],
        "cells.recurrent": ["Recurrent"], "cells.unroll": ["unroll"], "cells.check_cell": ["check_cell"],
        "training.trainer": ["History", "Trainer"],
        "training.optimizers": ["Adam", "SGD"],
        "training.datasets.bitstream": ["Bitstream"],
        "training.datasets.audio": ["Instruments"],
        "training.datasets.images": ["Images"],
    },
)  # fmt: skip

if (_compiler := _os.environ.get("BPPSA_NB_CUDA")) and not _compiler.startswith("numba-cuda"):
    from bppsa_nb.ptx.device import Device as _Device

    _Device(_compiler == "ptx-watch").turn_on()
