"""Patterns as operands: what products of sparse matrices would cost, counted without numbers."""

from typing import NamedTuple

from bppsa_nb.machine.reprs import with_repr


class Cost(NamedTuple):
    """What a product of patterns costs; its kind is "mm" or "mv", its entries are those that are stored."""

    kind: str
    multiply_adds: int
    entries: int


@with_repr("structure")
class Pattern:
    """Where an operand may be non-zero: a `CSRPattern`, or None for a gradient, taken as dense.

    Multiplying patterns counts what the numbers would cost: every product appends a `Cost` to `costs`.
    """

    def __init__(self, structure, costs):
        self.structure = structure
        self.costs = costs

    def __matmul__(self, other):
        if other.structure is None:
            self.costs.append(Cost("mv", self.structure.nnz, self.structure.shape[0]))
            return Pattern(None, self.costs)
        plan = self.structure.times(other.structure)
        self.costs.append(Cost("mm", plan.multiply_adds, plan.pattern.nnz))
        return Pattern(plan.pattern, self.costs)
