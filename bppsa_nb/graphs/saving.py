"""Save or recompute: which activations to keep for the backward pass, and what computing the others again costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from bppsa_nb.graphs.graph import Graph
from bppsa_nb.machine.arguments import Size, checked

STATES = "h", "h_next"


@dataclass(frozen=True)
class Choice:
    """Which activations of a step are kept for the backward pass, and what follows from it."""

    saved: tuple[str, ...]  # names of what is kept
    recomputed: tuple[str, ...]  # names of the operations that run again, in order
    inputs_read: tuple[str, ...]  # names of the inputs that they read, which must still be there
    kept: int  # numbers kept per step, inputs not counted
    kept_inputs: int  # numbers in inputs_read
    products: int  # matrix products that run again
    multiply_adds: int  # in them
    launches: int  # elementwise operations that run again
    elementwise: int  # numbers that these put out

    @property
    def work(self) -> int:
        """Multiply-adds and elementwise operations together."""
        return self.multiply_adds + self.elementwise


@checked
def choose(graph: Graph, saved: Sequence[str], sizes: Mapping[str, Size]) -> Choice:
    """Find what must be recomputed if some activations are saved; `sizes` are such as ``{"B": 16, "H": 64}``.

    The hidden states `h` and `h_next`, the layer's output, are kept anyway, and not counted. So are parameters.
    """
    at_hand = [name for name in STATES if name in graph]
    sources = [node.name for node in graph.nodes if not node.inputs]
    again = graph.path({*saved, *at_hand, *sources}, graph.backward().saved)
    taken = {node for each in again for node in each.inputs}
    read = [node for node in graph.nodes if node in taken and node.op == "input" and node.name not in at_hand]
    products = [node for node in again if node.op == "matmul"]
    others = [node for node in again if node.op != "matmul"]
    return Choice(
        saved,
        tuple(node.name for node in again),
        tuple(node.name for node in read),
        kept=sum(_numbers(graph[name], sizes) for name in saved),
        kept_inputs=sum(_numbers(node, sizes) for node in read),
        products=len(products),
        multiply_adds=sum(_numbers(node, sizes) * _inner(node, sizes) for node in products),
        launches=len(others),
        elementwise=sum(_numbers(node, sizes) for node in others),
    )


@checked
def choices(graph: Graph, sizes: Mapping[str, Size]) -> list[Choice]:
    """Make a list of `choose` for all subsets of the activations that the backward pass reads, from none to all."""
    read = [name for name in graph.backward().saved if name not in STATES]
    subsets = [subset for count in range(len(read) + 1) for subset in combinations(read, count)]
    return [choose(graph, subset, sizes) for subset in subsets]


def front(points):
    """Tell for every point (two costs) whether none is lower in one and not higher in the other: a Pareto front."""
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def _numbers(node, sizes):
    return prod(sizes[size] if isinstance(size, str) else size for size in node.shape)


def _inner(node, sizes):
    """Return the size that a matrix product sums over."""
    size = node.inputs[0].shape[0 if node.transposed[0] else 1]
    return sizes[size] if isinstance(size, str) else size
