"""What `Trainer.fit` records."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb.machine.reprs import repr_of


@dataclass(frozen=True)
class History:
    """What `Trainer.fit` recorded, one entry per iteration.

    Attributes
    ----------
    loss : np.ndarray [shape=(iterations,)]
        Mean loss of the iteration's batch, before its update.
    seconds : np.ndarray [shape=(iterations,)]
        Wall-clock time of the iteration, making the batch included.
    """

    loss: np.ndarray
    seconds: np.ndarray

    def __repr__(self):
        last = {"last_loss": float(f"{self.loss[-1]:.6g}")} if len(self.loss) else {}
        return repr_of(self, iterations=len(self.loss), **last)
