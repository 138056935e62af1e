"""What a step of training takes on many ranks: the cycles run over clocks that computing and messages advance.

Nothing here knows Algorithm 1: `bppsa_nb.multigrid.cycles` runs, as it does on every rank, over all clocks at once.
"""

import math
from dataclasses import dataclass

import numpy as np

from bppsa_nb.multigrid.cycles import Cycles, Options
from bppsa_nb.multigrid.grids import check_levels, hierarchy, partition


@dataclass(frozen=True)
class Costs:
    """Seconds that a rank takes for one layer, and a message for a state.

    Attributes
    ----------
    forward, adjoint : float
        A step of the network, and of its adjoint, on any level.
    gradient : float
        A layer's slopes and the gradients of its parameters, for which it waits for no other.
    message : float
        From rank to rank, for a state or a gradient; ranks receive while they send.
    latency : float
        Of a message without content. Collective calls are trees of such messages, log2(ranks) deep.
    """

    forward: float
    adjoint: float
    gradient: float
    message: float = 0.0
    latency: float = 0.0


def simulate(depth, ranks, costs, cycles=2, coarsening=4, levels=None, relaxation="FCF", cycle="V"):
    """Simulate one step of training as ``python -m bppsa_nb.multigrid`` does it.

    Parameters
    ----------
    depth, ranks : int
        Layers, and ranks that hold a part of `bppsa_nb.multigrid.partition` each.
    costs : Costs
    cycles : int
        As many forward as backward.
    coarsening, levels, relaxation, cycle
        As in `bppsa_nb.multigrid.solve`; ``levels=1`` is serial propagation, from rank to rank.

    Returns
    -------
    inference, training : np.ndarray [shape=(2, ranks)]
        Seconds until a rank has done its part of the step, and how many of them it computes; for the rest it waits.

    Raises
    ------
    TypeError, ValueError
        As `bppsa_nb.multigrid.solve` and `partition`.
    """
    coarsening, levels = check_levels(depth, coarsening, levels)
    options = Options(cycles, 0.0, coarsening, levels, relaxation, cycle, False, False)
    parts = partition(depth, ranks, coarsening, levels)
    owner = np.repeat(np.arange(ranks), [part.stop - part.start for part in parts])
    steps = [np.bincount(owner[grid.layers], minlength=ranks) for grid in hierarchy(depth, coarsening, levels)]
    clocks = _Clocks(ranks, costs)
    clocks.solve([costs.forward * each for each in steps], options)
    inference = np.stack([clocks.now, clocks.computed])
    clocks.together(costs.message, clocks.now[-1])  # the gradient of the loss, from the last rank to all
    clocks.turn()
    clocks.solve([costs.adjoint * each[::-1] for each in steps], options)
    clocks.turn()
    clocks.compute(costs.gradient * steps[0])
    return inference, np.stack([clocks.now, clocks.computed])


class _Clocks:
    """Clocks of all ranks, in the order in which values go; to the cycles, the links between them."""

    def __init__(self, ranks, costs):
        self.now, self.computed, self.costs = np.zeros(ranks), np.zeros(ranks), costs

    def solve(self, seconds, options):
        self.together(self.costs.latency, self.now.max())  # ranks agree on their arguments
        levels = [_Level(self, each) for each in seconds[:-1]] + [_Coarsest(self, seconds[-1])]
        Cycles(levels, options, self).run()

    def turn(self):
        self.now, self.computed = self.now[::-1], self.computed[::-1]

    def compute(self, seconds):
        self.now, self.computed = self.now + seconds, self.computed + seconds

    def together(self, message, start):
        self.now = np.maximum(self.now, start + math.ceil(math.log2(len(self.now))) * message)

    def norm(self, norms):
        self.together(self.costs.latency, self.now.max())
        return 1.0

    def shift(self, level):
        self.now[1:] = np.maximum(self.now[1:], self.now[:-1] + self.costs.message)

    def receive(self, level):
        """Messages of the coarsest level are in its relaxation."""

    def send(self, level):
        """Messages of the coarsest level are in its relaxation."""


class _Level:
    """A level of which only the time is known that a sweep takes on each rank."""

    def __init__(self, clocks, seconds):
        self.clocks, self.seconds = clocks, seconds

    def f_relax(self):
        self.clocks.compute(self.seconds)

    def restrict(self, coarse):
        self.clocks.compute(coarse.seconds)  # a coarse step for every block

    def c_relax(self):
        """Take no time: what blocks end with is there."""

    def correct(self, coarse):
        """Take no time."""

    def residuals(self):
        """Take no time."""


class _Coarsest(_Level):
    """The level that is solved from rank to rank."""

    def f_relax(self):
        now = self.clocks.now
        for rank, seconds in enumerate(self.seconds):
            if rank:
                now[rank] = max(now[rank], now[rank - 1] + self.clocks.costs.message)
            now[rank] += seconds
        self.clocks.computed = self.clocks.computed + self.seconds
