"""Which layers each level of the hierarchy visits, and how they form blocks (Figure 2)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from bppsa_nb.machine.arguments import Size, checked

Coarsening = Annotated[int, ">= 2"]


@dataclass(frozen=True, eq=False)
class Grid:
    """One level: a chain of n steps between n + 1 of the network's points."""

    layers: np.ndarray  # (n,), whose parameters each step uses: injection takes those of the layer that it starts at
    gaps: np.ndarray  # (n,), how many layers each step stands for: its size is gap times h (Eq. 25: H = c h)
    # (blocks + 1,), the C-points among the level's points, first and last included; the F-points between two of them
    # are a block. The coarsest level is a single block.
    bounds: np.ndarray

    def __len__(self):
        return len(self.layers)

    @property
    def points(self):
        """np.ndarray of int [shape=(n + 1,)]: the level's points among those of the network."""
        return np.append(0, np.cumsum(self.gaps))

    def reversed(self):
        """Return the grid that goes from the last point to the first, as gradients do."""
        return Grid(self.layers[::-1], self.gaps[::-1], len(self) - self.bounds[::-1])


def hierarchy(depth, coarsening, levels):
    """Build the grids, finest first.

    Every c-th point and the last one are C-points, and the points of the next level (Eq. 23). Where c does not divide
    the number of steps, the last block is shorter, and so is the coarse step that stands for it.
    """
    grids, points = [], np.arange(depth + 1)
    for level in range(levels):
        steps = len(points) - 1
        bounds = np.append(np.arange(0, steps, min(coarsening, steps) if level < levels - 1 else steps), steps)
        grids.append(Grid(points[:-1], np.diff(points), bounds))
        points = points[bounds]
    return grids


def check_levels(depth, coarsening, levels):
    """Return coarsening c, at least 2, and levels, not too many; None levels leave at most c steps on the coarsest."""
    most, fewest, steps = 1, 1, depth
    while steps > 1:
        fewest += steps > coarsening
        steps, most = -(-steps // coarsening), most + 1
    if levels is None:
        return coarsening, fewest
    if levels > most:
        why = f"for {depth} layers and coarsening={coarsening}: level {most} has a single step"
        raise ValueError(f"levels must be at most {most} {why}; got {levels}")
    return coarsening, levels


@checked
def partition(depth: Size, ranks: Size, coarsening: Coarsening = 4, levels: Size | None = None) -> list[slice]:
    """Split layers into contiguous parts, one for each rank (Section III-D of the multigrid paper).

    Each part ends at the end of a block of the second coarsest level: `coarsening` steps, which are one step of the
    coarsest. So ranks communicate only in C-relaxations and in the serial solution on the coarsest level.

    Parameters
    ----------
    depth
        How many layers the network has.
    ranks
        At most as many as there are steps on the coarsest level.
    coarsening, levels
        As in `solve`.

    Returns
    -------
    list of slice
        Which layers each rank holds.
    """
    coarsening, levels = check_levels(depth, coarsening, levels)
    unit = coarsening ** (levels - 1)
    steps = -(-depth // unit)
    if ranks > steps:
        most = f"the {steps} steps that {levels} levels leave on the coarsest for {depth} layers"
        raise ValueError(f"ranks must be at most {most}, got {ranks}; take fewer levels")
    ends = [min(depth, unit * (steps * r // ranks)) for r in range(ranks + 1)]
    return [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
