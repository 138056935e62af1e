"""Watch a scan run: feed it operands that only remember, and count and draw what it did.

Nothing here knows Algorithm 1. The scan itself runs, over `operator.Traced` operands, and is looked at
between two levels; steps, work and critical path are counted from what was seen.
"""

from dataclasses import dataclass
from functools import cached_property

from bppsa_nb.machine.checks import check_count
from bppsa_nb.machine.shown import shown
from bppsa_nb.scan import steps
from bppsa_nb.scan.levels import Level
from bppsa_nb.scan.operator import IDENTITY

UNIT = {"mm": 1, "mv": 1}


def multiply_adds(hidden):
    """Return what ⋄ costs over dense Jacobians [shape=(H, H)]: H³ multiply-adds, or H² for a gradient."""
    hidden = check_count("hidden", hidden, 1)
    return {"mm": hidden**3, "mv": hidden**2}


class Traced:
    """An operand that multiplies nothing and remembers everything.

    Parameters
    ----------
    kind : {"matrix", "vector"}
    span : tuple of int
        First and last position of Equation 5's array that went into it.
    log : list
        Every product appends itself to it, in the order of execution.
    parents : tuple of Traced
        ``(a, b)`` for ``a ⋄ b``; empty for an input.
    """

    __slots__ = ("kind", "log", "parents", "span")

    def __init__(self, kind, span, log, parents=()):
        self.kind = kind
        self.span = span
        self.log = log
        self.parents = parents

    def __matmul__(self, other):
        if other.span[1] + 1 != self.span[0] or self.kind == "vector":
            raise ValueError(f"{other!r} ⋄ {self!r} is not a product of neighbors in order")
        product = Traced(other.kind, (other.span[0], self.span[1]), self.log, (other, self))
        self.log.append(product)
        return product

    @property
    def product(self):
        """str: ``"mm"`` for a matrix-matrix, ``"mv"`` for a matrix-vector product, ``""`` for an input."""
        if not self.parents:
            return ""
        return "mv" if self.kind == "vector" else "mm"

    def __repr__(self):
        first, last = self.span
        return f"{self.kind}[{first}]" if first == last else f"{self.kind}[{first}:{last}]"


@dataclass(frozen=True)
class TracedLevel:
    """What one level was seen to do.

    Attributes
    ----------
    level : Level
        Its phase, Algorithm 1's d, and the pairs of positions that met.
    products : list of Traced
        Every ⋄ that was computed, in order.
    moves : list of tuple of int
        ``(source, target)`` for every operand that changed its place.
    changes : dict
        Position -> what stands there now, where that changed.
    """

    level: Level
    products: list
    moves: list
    changes: dict

    def __repr__(self):
        return shown(self, "level", "products", "moves")


@dataclass(frozen=True)
class Trace:
    """A scan that ran.

    Attributes
    ----------
    n : int
        Links of the chain; the array had n + 1 operands.
    method : str
        Which scan.
    inputs, result : list of Traced
        The array before and after. The result has n + 2 entries: the exclusive scan, then the product of all.
    levels : list of TracedLevel
        What happened in between.
    """

    n: int
    method: str
    inputs: list
    levels: list
    result: list

    def __repr__(self):
        return shown(self, "n", "method", "steps", "work")

    @property
    def steps(self):
        """int: levels, one after the other: the step complexity with a worker for every ⋄ (Equation 6)."""
        return len(self.levels)

    @cached_property
    def products(self):
        """Every ⋄ in the order of execution: a list of Traced."""
        return [product for level in self.levels for product in level.products]

    @property
    def work(self):
        """int: how many ⋄ were computed (Equation 7)."""
        return len(self.products)

    @property
    def mm(self):
        """int: how many of them multiplied a matrix by a matrix."""
        return sum(product.product == "mm" for product in self.products)

    @property
    def mv(self):
        """int: how many of them multiplied a matrix by a gradient."""
        return self.work - self.mm

    @cached_property
    def needs(self):
        """Which products each of `products` waits for: a list of indices for each."""
        number = {product: i for i, product in enumerate(self.products)}
        return [[number[parent] for parent in product.parents if parent.parents] for product in self.products]

    def critical_path(self, cost=UNIT):
        """Find the longest chain of products that wait for each other; moving data is free.

        Parameters
        ----------
        cost : dict or sequence
            What a product of kind ``"mm"`` and ``"mv"`` takes, or what each of `products` does.

        Returns
        -------
        length : float
            What the chain takes: no number of workers is faster.
        products : list of Traced
            The chain, first to last.
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

    def rows(self):
        """Replay the array: one list before the first level and one after each.

        A linear scan keeps its running product outside of the array. Here it stands where its last factor
        stood.

        Returns
        -------
        list of list
            ``rows()[0]`` are the inputs. Where only moves are missing, the result follows as a last row.
        """
        rows = [list(self.inputs)]
        for level in self.levels:
            row = rows[-1] + [None] * (max(level.changes, default=0) + 1 - len(rows[-1]))
            for position, operand in level.changes.items():
                row[position] = operand
            rows.append(row)
        if rows[-1] != self.result:
            rows.append(list(self.result))
        return rows


def trace(n, method, levels=None, length=None):
    """Run a scan over n links, recording everything.

    Parameters
    ----------
    n : int
        Links of the chain: the gradient at x_n and n transposed Jacobians are scanned.
    method : {"linear", "blelloch", "truncated", "chunked", "hillis_steele"}
        Which scan.
    levels : int, optional
        The k of ``"truncated"``.
    length : int, optional
        Links of a chunk of ``"chunked"``.

    Returns
    -------
    Trace

    Raises
    ------
    TypeError, ValueError
        If n is no integer of at least 0, or for what `bppsa_nb.scan.steps` refuses.
    """
    n, log = check_count("n", n), []
    a = [Traced("matrix" if i else "vector", (i, i), log) for i in range(n + 1)]
    return record(a, steps(a, method, levels, length), method)


def record(a, levels, method):
    """Record levels as they run.

    Parameters
    ----------
    a : list of Traced
        The array they run on, all with the same log.
    levels : iterator of Level
        What :func:`bppsa_nb.scan.steps` returns.
    method : str
        What to call it.

    Returns
    -------
    Trace
    """
    log, inputs, shown, traced, seen = a[0].log, list(a), list(a), [], 0
    for level in levels:
        products, seen = log[seen:], len(log)
        if level.phase == "linear":
            moves, changes = [], {r: product for (_, r), product in zip(level.pairs, products, strict=True)}
        else:
            place = {operand: position for position, operand in enumerate(shown)}
            changes = {i: x for i, x in enumerate(a) if i >= len(shown) or shown[i] is not x}
            moves = [(place[x], i) for i, x in changes.items() if x in place]
        shown += [None] * (max(changes, default=0) + 1 - len(shown))
        for position, operand in changes.items():
            shown[position] = operand
        traced.append(TracedLevel(level, products, moves, changes))
    return Trace(len(inputs) - 1, method, inputs, traced, list(a))


def span_label(operand):
    """Name an operand by the positions that went into it: ``"3"``, ``"0:3"``, or ``"I"``."""
    if operand is IDENTITY:
        return "I"
    first, last = operand.span
    return str(first) if first == last else f"{first}:{last}"
