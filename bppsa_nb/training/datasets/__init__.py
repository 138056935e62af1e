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

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.cells.cell import Spans
from bppsa_nb.machine.arguments import checked
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.training.datasets.bitstream import Bitstream, Indices, Part, check_range, steps_of

__all__ = ["ArrayDataset", "Bitstream"]


@with_repr("x", "y")
class ArrayDataset:
    """A data set of arrays in memory: `x` [shape=(T, N, I)], all the inputs, time first, and their labels `y` (N,).

    `lengths` (N,), if given, say how many steps each sample has.
    """

    lengths: np.ndarray | None = None

    @checked
    def __init__(
        self, x: Annotated[ArrayLike, "float[T, N, I]"], y: Annotated[ArrayLike, "int[N]"],
        lengths: Annotated[ArrayLike, "int[N]"] | None = None,
    ):  # fmt: skip
        self.x: np.ndarray = x
        self.y: np.ndarray = y
        if lengths is not None:
            self.lengths = Spans.checked(lengths, None, x).lengths

    def __len__(self) -> int:
        return len(self.y)

    @checked
    def batch(self, indices: Indices, part: Part = (0, 1)) -> tuple[np.ndarray, ...]:
        """Return inputs (T, B, I) and labels (B,) of samples by number, and lengths (B,); see `Bitstream.batch`."""
        check_range(indices, len(self))
        steps = steps_of(part, len(self.x))
        batch = np.ascontiguousarray(self.x[steps, indices]), self.y[indices]
        return batch if self.lengths is None else (*batch, self.lengths[indices])
