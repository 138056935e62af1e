"""How a process reaches those that hold the layers before and after its own (Section III-D)."""

import math

import numpy as np

from bppsa_nb.machine.ranks import over_ranks
from bppsa_nb.multigrid.grids import check_levels


def connect(comm, backward=False):
    """Return the neighbors for a ``comm`` argument; `backward` if values go from the last rank to the first."""
    return Alone(backward) if comm is None else over_ranks("residual").Neighbors(comm, backward)


class Alone:
    """All layers are here.

    A solution is found within ``with neighbors:``, so that an error in a rank's arguments can be known to all ranks.
    `is_first` says whether the values that all others follow from are here; `seconds` were spent in communication so
    far, waiting for other ranks included.
    """

    def __init__(self, backward=False):
        self.backward, self.is_first = backward, True

    seconds = 0.0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        pass

    def agree(self, net, first, initial, options):
        """Settle how many layers a block has, and how many levels there are: coarsening and levels, as integers.

        TypeError or ValueError is raised on all ranks if an argument is wrong on one, or differs between them, or
        blocks cross from rank to rank.
        """
        return check_levels(len(net), options.coarsening, options.levels)

    def norm(self, norms):
        """Return the norm of the whole residual from that at every C-point here, the same bits on all ranks."""
        return math.hypot(*np.sort(norms))  # in an order that does not depend on the number of ranks

    def shift(self, level):
        """Hand the last value on, and take that of the layers before as the first."""

    def receive(self, level):
        """Wait for the first value."""

    def send(self, level):
        """Hand the last value on."""
