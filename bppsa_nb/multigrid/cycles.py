"""The cycles of nonlinear multigrid over layers (FAS, MGRIT; Algorithm 1), over anything that has levels.

Restriction and prolongation inject: a level's C-points are the next level's points. Two terms of the paper's equations
cancel then. The right-hand side of the coarse level is S = L_H(U_H) + R_H (Eq. 24); for a C-point u that is
(u - Φ_H(u')) + (Φ_h^c(u') - u), where u' is the C-point before it, Φ_H one coarse step and Φ_h^c the c fine steps of
the block between them: what the block gives, less what the coarse step gives. And the correction u + (V_H - u) (Eq. 16)
is the coarse solution itself.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.process import over_ranks
from bppsa_nb.multigrid.grids import Coarsening, check_levels

Tolerance = Annotated[float, ">= 0"]
Error = Annotated[float, "> 0"]
Relaxation = Literal["F", "FC", "FCF"]
Cycle = Literal["V", "F"]
RELAXATIONS, CYCLES = get_args(Relaxation), get_args(Cycle)
_PATIENCE = 10  # cycles without progress before giving up
_TOO_FAR = "coarse steps are too large for the network: take fewer levels, a smaller coarsening or a smaller h"


@checked
@dataclass(frozen=True)
class Options:
    """How to cycle; see `bppsa_nb.multigrid.solve`."""

    cycles: Size | None = None
    tol: Tolerance = 1e-9
    coarsening: Coarsening = 4
    levels: Size | None = None
    relaxation: Relaxation = "FCF"
    cycle: Cycle = "V"
    error: Error | None = None
    nested_iteration: bool = False
    skip_downcycle: bool = False

    def __post_init__(self):
        if self.cycles is not None and self.error is not None:
            raise ValueError(f"cycles and error both say when to stop, got {self.cycles} and {self.error}")
        if self.nested_iteration and self.skip_downcycle:
            raise ValueError("nested_iteration and skip_downcycle both start on the coarsest level; take one of them")


class GridLevel:
    """One level: the values at its points, what FAS adds to them, and what its blocks end with.

    Values start from `initial` (N + 1, batch, ...), at all points of the network. `ops` are
    `bppsa_nb.networks.residual_steps` or a counterpart; ``sweep(points, source, bounds, layers, sizes)`` fills
    F-points and returns what every block ends with.
    """

    def __init__(self, grid, h, initial, ops, sweep):
        self.ops, self._sweep = ops, sweep
        self.points, self.source, self.arrivals = ops.load(initial[grid.points]), None, None
        self._layers, self._sizes = ops.load(grid.layers), ops.load((h * grid.gaps).astype(initial.dtype))
        self._c_points, self._ends = ops.load(grid.bounds), ops.load(grid.bounds[1:])
        self._all = ops.load(np.arange(len(grid) + 1))

    def f_relax(self):
        """Propagate within every block (Figure 3), all of them at once."""
        self.arrivals = self._sweep(self.points, self.source, self._c_points, self._layers, self._sizes)

    def c_relax(self):
        """Write what every block ends with to the C-point there; valid after `f_relax`."""
        self.ops.put(self.points, self._ends, self.arrivals)

    def restrict(self, coarse):
        """Give the coarser level its points and its right-hand side (Eq. 23 and 24); valid after `f_relax`."""
        coarse.points = self.ops.take(self.points, self._c_points)
        coarse.source = self.ops.difference(self.arrivals, coarse.steps())

    def steps(self):
        """Return what one step gives, without a right-hand side, from every point but the last."""
        return self._sweep(self.points, None, self._all, self._layers, self._sizes)

    def correct(self, coarse):
        """Take the C-points from the coarser level (Eq. 16)."""
        self.ops.put(self.points, self._c_points, coarse.points)

    def corrections(self, coarse):
        """Return the norms of what `correct` changes, and of what it puts, at every C-point but the first."""
        changed = self.ops.difference(coarse.points[1:], self.ops.take(self.points, self._ends))
        return self.ops.norms(changed), self.ops.norms(coarse.points[1:])

    def residuals(self):
        """Return the norm of R_h (Eq. 19) at every C-point but the first; after `f_relax` it is zero elsewhere."""
        return self.ops.norms(self.ops.difference(self.arrivals, self.ops.take(self.points, self._ends)))

    @property
    def first(self):
        """np.ndarray [shape=(batch, ...)]: the value at the first point, which nothing here computes."""
        return self.ops.host(self.points[:1])[0]

    @first.setter
    def first(self, value):
        self.ops.put(self.points, self._all[:1], self.ops.load(value[None]))

    @property
    def last(self):
        """np.ndarray [shape=(batch, ...)]: the value at the last point."""
        return self.ops.host(self.points[-1:])[0]


class Cycles:
    """Cycles over levels, finest first; `neighbors` hold the layers before and after these."""

    def __init__(self, levels, options, neighbors):
        self.levels, self.options, self.neighbors = levels, options, neighbors
        self._begun, self._corrected = None, None  # for `error`: the residual before any cycle, the last correction

    def run(self):
        """Cycle until done; return the residual's norm after every cycle."""
        norms = []
        for _ in self._cycles():
            norms.append(self._residual())
            if not math.isfinite(norms[-1]):
                why = "the network itself does"
                why = why if len(self.levels) == 1 else f"either {why}, or {_TOO_FAR}"
                raise FloatingPointError(f"cycle {len(norms)} leaves the range of {self.levels[0].points.dtype}: {why}")
            if self._done(norms):
                break
            forever = self.options.cycles is None
            if forever and len(norms) > _PATIENCE and min(norms[-_PATIENCE:]) >= min(norms[:-_PATIENCE]):
                wanted = "tol" if self.options.error is None else "error"
                found = f"after {len(norms)} cycles the residual is {norms[-1]:.3g}, and the last {_PATIENCE} bring it"
                why = f"either that is rounding, in {self.levels[0].points.dtype}, and {wanted} is too small"
                said = f"{wanted}={getattr(self.options, wanted):g} is not reached: {found} no lower than"
                raise RuntimeError(f"{said} {min(norms):.3g}; {why}, or {_TOO_FAR}")
        return norms

    def _residual(self):
        return self.neighbors.norm(self.levels[0].residuals())

    def _done(self, norms):
        cycles, tol, error = self.options.cycles, self.options.tol, self.options.error
        if cycles is not None:
            return len(norms) == cycles
        if error is None or not norms[-1]:
            return norms[-1] <= tol
        if self._corrected is None:
            return False  # skip_downcycle's first half of a cycle
        # The correction estimates the error that was there; as much of it is left as is left of the residual.
        (changed, size), before = self._corrected, [self._begun, *norms][-2]
        return changed * (norms[-1] / before if before else 1) <= error * size

    def _cycles(self):
        """Do one cycle after the other, pausing after each."""
        if len(self.levels) == 1:
            self._solve_coarsest()
            yield
            return
        if self.options.nested_iteration or self.options.skip_downcycle:
            self._interpolate_up()
            if self.options.skip_downcycle:
                yield
        else:
            self.levels[0].f_relax()
        if self.options.error is not None:
            self._begun = self._residual()
        while True:
            self._visit(0, self.options.cycle)
            yield

    def _visit(self, i, cycle):
        """Reduce the residual on level i, which has been F-relaxed and is so again afterwards (Algorithm 1)."""
        fine, coarse = self.levels[i : i + 2]
        if self.options.relaxation == "FCF":
            self._cf_relax(fine)
        fine.restrict(coarse)
        if i + 2 == len(self.levels):
            self._solve_coarsest()
        else:
            coarse.f_relax()
            self._visit(i + 1, cycle)
            if cycle == "F":
                self._visit(i + 1, "V")
        if i == 0 and self.options.error is not None:
            self._corrected = [self.neighbors.norm(norms) for norms in fine.corrections(coarse)]
        fine.correct(coarse)
        fine.f_relax()
        if self.options.relaxation == "FC":
            self._cf_relax(fine)

    def _interpolate_up(self):
        """Solve on the coarsest level, as if it were the problem, and fill the finer ones from it."""
        self._solve_coarsest()
        for i in reversed(range(len(self.levels) - 1)):
            self.levels[i].correct(self.levels[i + 1])
            self.levels[i].f_relax()
            if self.options.nested_iteration and i:
                self._visit(i, "V")

    def _cf_relax(self, level):
        level.c_relax()
        self.neighbors.shift(level)
        level.f_relax()

    def _solve_coarsest(self):
        """Propagate from the first point to the last; the coarsest level is a single block."""
        coarsest = self.levels[-1]
        self.neighbors.receive(coarsest)
        coarsest.f_relax()
        coarsest.c_relax()
        self.neighbors.send(coarsest)


def connect(comm, backward=False):
    """Return what reaches layers on other ranks (Section III-D); `backward` if values go from the last to the first."""
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
