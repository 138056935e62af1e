"""Watch a scan run: feed it operands that only remember, and count what it did.

Nothing here knows Algorithm 1. The scan itself runs, over `Traced` operands, and is looked at between two levels.
"""

from dataclasses import dataclass, field

from bppsa_nb.scan import check_count, steps
from bppsa_nb.scan.levels import Level
from bppsa_nb.scan.operator import IDENTITY

UNIT = {"mm": 1, "mv": 1}


@dataclass(eq=False, repr=False, slots=True)
class Traced:
    """An operand that multiplies nothing and remembers everything.

    It is a "matrix" or a "vector"; `span` holds the first and the last position of Equation 5's array that went into
    it, and `parents` are ``(a, b)`` for ``a ⋄ b``, empty for an input. Every product appends itself to the log.
    """

    kind: str
    span: tuple[int, int]
    log: list["Traced"]
    parents: tuple["Traced", ...] = ()

    def __matmul__(self, other):
        if other.span[1] + 1 != self.span[0] or self.kind == "vector":
            raise ValueError(f"{other!r} ⋄ {self!r} is not a product of neighbors in order")
        product = Traced(other.kind, (other.span[0], self.span[1]), self.log, (other, self))
        self.log.append(product)
        return product

    @property
    def product(self) -> str:
        """``"mm"`` for a matrix-matrix, ``"mv"`` for a matrix-vector product, ``""`` for an input."""
        return "" if not self.parents else "mv" if self.kind == "vector" else "mm"

    def __repr__(self):
        return f"{self.kind}[{span_label(self)}]"


@dataclass(frozen=True)
class TracedLevel:
    """What a level did: `products`, its ⋄; `moves` (source, target); `changes`, new operands by their places."""

    level: Level
    products: list[Traced] = field(repr=False)
    moves: list[tuple[int, int]] = field(repr=False)
    changes: dict[int, Traced] = field(repr=False)


class Trace:
    """A scan that ran.

    Attributes
    ----------
    n, method
        Links of the chain, and which scan.
    inputs, levels, result : list of Traced, of TracedLevel, of Traced
        The array before, of n + 1 operands; what happened to it; the exclusive scan, then the product of all.
    products : list of Traced
        Every ⋄ in the order of execution.
    needs : list of list of int
        Which products each of them waits for.
    steps, work : int
        How many levels: the step complexity with a worker for every ⋄ (Equation 6); and how many ⋄ (Equation 7).
    mm, mv : int
        How many ⋄ multiplied a matrix by a matrix, and by a gradient.
    """

    def __init__(self, n: int, method: str, inputs: list[Traced], levels: list[TracedLevel], result: list[Traced]):
        self.n, self.method, self.inputs, self.levels, self.result = n, method, inputs, levels, result
        self.products = [product for level in levels for product in level.products]
        number = {product: i for i, product in enumerate(self.products)}
        self.needs = [[number[parent] for parent in product.parents if parent.parents] for product in number]
        self.steps, self.work = len(levels), len(number)
        self.mm = sum(product.product == "mm" for product in number)
        self.mv = self.work - self.mm

    def __repr__(self):
        return f"Trace(n={self.n}, method={self.method!r}, steps={self.steps}, work={self.work})"

    def critical_path(self, cost: dict | list = UNIT) -> tuple[float, list[Traced]]:
        """Find the longest chain of products that wait for each other; moving data is free.

        `cost` says how long products take: a dict by kind, ``"mm"`` and ``"mv"``, or a list with one entry for each of
        `products`. Returns the time of the chain, which no number of workers beats, and its products, first to last.
        """
        costs = [cost[product.product] for product in self.products] if isinstance(cost, dict) else cost
        end, before = [], []
        for own, needs in zip(costs, self.needs, strict=True):
            last = max(needs, key=end.__getitem__, default=None)
            before.append(last)
            end.append(own + (0 if last is None else end[last]))
        chain, i = [], max(range(len(end)), key=end.__getitem__, default=None)
        length = 0 if i is None else end[i]
        while i is not None:
            chain.append(self.products[i])
            i = before[i]
        return length, chain[::-1]

    def rows(self) -> list[list]:
        """Replay the array: a list of its operands before the first level, and one after each.

        A linear scan keeps its running product outside of the array. Here it stands where its last factor stood; where
        only moves are missing, the result follows as a last row.
        """
        rows = [list(self.inputs)]
        for level in self.levels:
            row = rows[-1] + [None] * (max(level.changes, default=0) + 1 - len(rows[-1]))
            for position, operand in level.changes.items():
                row[position] = operand
            rows.append(row)
        return rows if rows[-1] == self.result else [*rows, list(self.result)]


def trace(n: int, method: str, levels: int | None = None, length: int | None = None) -> Trace:
    """Run a scan over the gradient at x_n and n transposed Jacobians, and return its `Trace`.

    Parameters and errors are those of `bppsa_nb.scan.steps`; `n` is an integer of at least 0.
    """
    check_count("n", n, 0, 2**31 - 1)
    log = []
    a = [Traced("matrix" if i else "vector", (i, i), log) for i in range(n + 1)]
    return record(a, steps(a, method, levels, length), method)


def record(a: list[Traced], levels, method: str) -> Trace:
    """Record levels, as :func:`bppsa_nb.scan.steps` returns them, while they run on a list of Traced: a Trace."""
    log, inputs, known, traced, seen = a[0].log, list(a), list(a), [], 0
    for level in levels:
        products, seen = log[seen:], len(log)
        if level.phase == "linear":
            moves, changes = [], {r: product for (_, r), product in zip(level.pairs, products, strict=True)}
        else:
            place = {operand: position for position, operand in enumerate(known)}
            changes = {i: x for i, x in enumerate(a) if i >= len(known) or known[i] is not x}
            moves = [(place[x], i) for i, x in changes.items() if x in place]
        known += [None] * (max(changes, default=0) + 1 - len(known))
        for position, operand in changes.items():
            known[position] = operand
        traced.append(TracedLevel(level, products, moves, changes))
    return Trace(len(inputs) - 1, method, inputs, traced, list(a))


def span_label(operand):
    """Name an operand by the positions that went into it: ``"3"``, ``"0:3"``, or ``"I"``."""
    if operand is IDENTITY:
        return "I"
    first, last = operand.span
    return str(first) if first == last else f"{first}:{last}"
