"""Nodes: operations, the activations on the wires between them, and the arithmetic that describes a graph."""

from dataclasses import dataclass, field
from typing import Any

from bppsa_nb.machine.arguments import checked

SOURCES = ("input", "parameter", "saved")


def _matmul(left: "Node | _Transposed", right: "Node | _Transposed") -> "Node":
    nodes = [side.node if isinstance(side, _Transposed) else side for side in (left, right)]
    owner = next(node for node in nodes if isinstance(node, Node)).graph
    owner.own("@", *nodes)
    flips = tuple(isinstance(side, _Transposed) for side in (left, right))
    shapes = [node.shape[::-1] if flip else node.shape for node, flip in zip(nodes, flips, strict=True)]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][0]:
        operands = " and ".join(_show(node) + ".T" * flip for node, flip in zip(nodes, flips, strict=True))
        raise ValueError(f"@ takes two matrices whose inner sizes agree, got {operands}")
    return owner.operation("matmul", nodes, (shapes[0][0], shapes[1][1]), flips)


@dataclass(eq=False)
class Node:
    """An operation, and the activation on the wire that leaves it.

    Nodes are made by a graph's `input` and `parameter`, and from there by arithmetic: ``a + b``, ``a - b``, ``-a``,
    ``a * b``, ``a @ b`` (with ``.T`` on either side), ``1 - a``, and the functions `sigmoid`, `tanh` and `relu`.

    Attributes
    ----------
    graph : Graph
    op : str
        "input", "parameter", "saved", "sum", "multiply", "matmul", "one_minus", "negate", "sigmoid", "tanh", "relu",
        "step", "repeat" (one row for every sample) or "total" (the sum over samples).
    inputs : tuple of Node
    shape : tuple of (str or int)
        Its sizes, such as ("B", "H"); text stands for a size that is known when the graph runs.
    name : str
        Unique in the graph.
    transposed : tuple of bool
        For "matmul": which of the two inputs are transposed.
    rule_of : str or None
        In a derived graph: the forward node whose rule this operation belongs to.
    """

    graph: Any = field(repr=False)
    op: str
    inputs: tuple["Node", ...] = field(repr=False)
    shape: tuple[str | int, ...]
    name: str
    transposed: tuple[bool, ...] = (False, False)
    rule_of: str | None = None
    automatic: bool = field(default=True, repr=False)  # whether the name was made up

    def named(self, name: str) -> "Node":
        """Give the activation a name, and return the node."""
        self.graph.rename(self, name)
        return self

    @property
    def T(self) -> "_Transposed":
        """The transposed activation, as an operand of ``@``."""
        return _Transposed(self)

    def __add__(self, other: "Node") -> "Node":
        self.graph.own("+", self, other)
        longer, shorter = sorted((self, other), key=lambda node: len(node.shape), reverse=True)
        if len(longer.shape) == 2 and shorter.shape == longer.shape[1:]:
            row = self.graph.operation("repeat", (shorter,), longer.shape)  # a bias: the same for every sample
            terms = [row if node is shorter else node for node in (self, other)]
            return self.graph.operation("sum", terms, longer.shape)
        if self.shape != other.shape:
            raise ValueError(f"+ takes two activations of one shape, got {_show(self)} and {_show(other)}")
        return self.graph.operation("sum", (self, other), self.shape)

    def __mul__(self, other: "Node") -> "Node":
        self.graph.own("*", self, other)
        if self.shape != other.shape:
            raise ValueError(f"* takes two activations of one shape, got {_show(self)} and {_show(other)}")
        return self.graph.operation("multiply", (self, other), self.shape)

    def __neg__(self) -> "Node":
        return self.graph.operation("negate", (self,), self.shape)

    def __sub__(self, other: "Node") -> "Node":
        self.graph.own("-", self, other)
        return self + -other

    def __rsub__(self, one: int) -> "Node":
        if isinstance(one, bool) or one != 1:
            raise TypeError(f"only 1 can have an activation subtracted from it, got {one!r} - {self.name}")
        return self.graph.operation("one_minus", (self,), self.shape)

    __matmul__ = _matmul


@dataclass(frozen=True)
class _Transposed:
    node: Node
    __matmul__ = _matmul


@checked
def sigmoid(node: Node) -> Node:
    """Apply the logistic function to every element of a `node`; its derivative is a (1 - a), where a is the result."""
    return node.graph.operation("sigmoid", (node,), node.shape)


@checked
def tanh(node: Node) -> Node:
    """Apply the hyperbolic tangent to every element of a `node`; its derivative is 1 - a², where a is the result."""
    return node.graph.operation("tanh", (node,), node.shape)


@checked
def relu(node: Node) -> Node:
    """Replace negative numbers of a `node` by zero; the derivative is 1 where the result is positive."""
    return node.graph.operation("relu", (node,), node.shape)


def expression(node):
    """Write an operation as a program does, such as ``h @ U.T``."""
    names = [each.name for each in node.inputs]
    if node.op == "matmul":
        names = [name + ".T" * flip for name, flip in zip(names, node.transposed, strict=True)]
    signs = {"sum": " + ", "multiply": " * ", "matmul": " @ "}
    if node.op in signs:
        return signs[node.op].join(names)
    prefixes = {"one_minus": "1 - ", "negate": "-"}
    return prefixes[node.op] + names[0] if node.op in prefixes else f"{node.op}({names[0]})"


def _show(node):
    return f"{node.name} {sizes_text(node.shape)}"


def sizes_text(shape):
    """Write a shape: its sizes in brackets."""
    return f"({', '.join(map(str, shape))})"
