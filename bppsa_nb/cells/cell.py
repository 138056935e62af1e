"""What a recurrent cell is: the equations of one hidden unit, of which every backend makes its loops over time."""

from collections.abc import Callable
from typing import NamedTuple

NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"  # of the parameters that a layer of any cell has


class Cell(NamedTuple):
    """A cell: its step, the step's derivatives, and how many numbers of each kind a hidden unit has.

    Weights [shape=(G H, I)] and [shape=(G H, H)] multiply inputs and states outside the cell. It begins at the sums of
    these products and the biases, and computes each unit by itself. Sums come in this order: what inputs add to each of
    the last `split` gates; whole sums of all other gates; what states add to the last `split`. A GRU's gates are r, z,
    n, and it needs both parts of n by themselves: its sums are N, R, Z, M.

    ``step(sums, before)`` takes a unit's sums and states, two tuples, and returns two more: the next states, and the
    `kept` others that going back needs. The first state is h, which weights and other layers read. A cell is
    `bounded` if no state can leave [-1, 1], or what it began within.

    ``back(grads, before, after, kept)`` takes the gradients of the loss at the next states, the states on both sides,
    and what was kept; it returns two tuples: the gradients at the sums, and those that go directly to the states
    before. The first of the latter is left out where h acts through sums only (`carry`).

    Whole sums may go through functions of their own, the `activations`, one for each gate but the last `split`: the
    step is given their results, and a GPU computes them side by side.

    A cell may have `vectors` of its own, parameters of one number for each unit, by name: the step is given them after
    the sums, and keeps those that `back` needs; `back` returns their gradients after those at the sums. GPU kernels do
    not support them.

    All are written in Python's operators and `bppsa_nb.machine.pointwise`: in NumPy they are given arrays, in compiled
    code numbers.
    """

    step: Callable
    back: Callable
    gates: int = 1  # G, blocks of H rows in both weights
    split: int = 0
    states: int = 1  # S
    kept: int = 0  # K
    carry: bool = False
    activations: tuple = ()
    bounded: bool = False
    vectors: tuple = ()

    def __repr__(self):
        numbers = ("gates", "split", "states", "kept", "carry")
        return f"Cell({', '.join(f'{name}={getattr(self, name)}' for name in numbers)})"

    @property
    def sums(self):
        """How many sums a unit has, and vectors."""
        return self.gates + self.split + len(self.vectors)

    @property
    def names(self):
        """The names of a layer's parameters."""
        return *NAMES, *self.vectors

    @property
    def carries(self):
        """How many of the states go on by themselves, too."""
        return self.states - (not self.carry)

    @property
    def weights(self):
        """How many weights of the size of all states together take as much work as the chain's."""
        return max(1, round(self.gates / self.states**2))

    def activate(self, sums):
        """Return what the step is given of the sums."""
        if not self.activations:
            return sums
        first, last = self.split, self.gates
        found = (function(x) for function, x in zip(self.activations, sums[first:last], strict=True))
        return *sums[:first], *found, *sums[last:]

    def tell_apart(self, sums):
        """Return the sums, or what belongs to each, of inputs and of states: two lists, by gates."""
        return [*sums[self.split : self.gates], *sums[: self.split]], list(sums[self.split : self.split + self.gates])
