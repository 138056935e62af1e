"""Data sets: anything with a length and a way to ask for samples by their numbers.

The trainer asks for no more than two methods, so a data set may hold its samples, read them or compute them::

    len(dataset)            # the number of samples, N
    dataset.batch(indices)  # indices [shape=(B,)], integers in 0 ... N - 1
                            # -> x [shape=(T, B, I)], time first (images: [shape=(B, C, H, W)]), and labels y
                            #    [shape=(B,)], integers; where samples have a number of steps each, these
                            #    lengths come third, integers [shape=(B,)]

Where the steps of a sequence are spread over MPI ranks, each of them asks for its own part only:
``dataset.batch(indices, part=(i, n))`` returns the i-th of n parts of the steps, as
`bppsa_nb.distributed.partition` cuts them, and all the labels.
"""

import numpy as np

from bppsa_nb.cells.spans import Spans
from bppsa_nb.machine.checks import as_array, check_floats, check_integers
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.training.datasets.bitstream import Bitstream, check_indices, steps_of

__all__ = ["ArrayDataset", "Bitstream"]


@with_repr("x", "y")
class ArrayDataset:
    """A data set of arrays in memory: `x` [shape=(T, N, I)], all the inputs, time first, and their labels `y` (N,).

    `lengths` (N,), if given, say how many steps each sample has. TypeError or ValueError if `x` does not hold float32
    or float64, or `y` integers, or the shapes do not fit.
    """

    lengths = None

    def __init__(self, x, y, lengths=None):
        x, y = as_array("x", x), as_array("y", y)
        check_floats("x", x, ("T", "N", "I"))
        if y.shape != x.shape[1:2]:
            raise ValueError(f"y must have shape ({x.shape[1]},), one label per sample of x, got {y.shape}")
        check_integers("y", y)
        self.x, self.y = x, y
        if lengths is not None:
            self.lengths = Spans.checked(lengths, None, x).lengths

    def __len__(self):
        return len(self.y)

    def batch(self, indices, part=(0, 1)):
        """Return inputs (T, B, I) and labels (B,) of samples by number, and lengths (B,); see `Bitstream.batch`."""
        indices, steps = check_indices(indices, len(self)), steps_of(part, len(self.x))
        batch = np.ascontiguousarray(self.x[steps, indices]), self.y[indices]
        return batch if self.lengths is None else (*batch, self.lengths[indices])
