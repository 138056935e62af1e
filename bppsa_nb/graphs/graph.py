"""Differentiable graphs: operations are nodes, activations are the wires between them, and parameters are nodes too."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Annotated

import numpy as np
from scipy.special import expit

from bppsa_nb.graphs.nodes import SOURCES, Node, expression, sizes_text
from bppsa_nb.machine.arguments import checked

Values = Mapping[str, Annotated[np.ndarray, "floating[...]"]]

_COMPUTE = {
    "sum": lambda *terms: reduce(np.add, terms),
    "one_minus": lambda a: 1 - a,
    **{"multiply": np.multiply, "negate": np.negative, "sigmoid": expit, "tanh": np.tanh},
    "relu": lambda a: np.maximum(a, 0),
    "step": lambda a: (a > 0).astype(a.dtype),
    "total": lambda a: a.sum(axis=0),
}


class Graph:
    """A graph of stateless operations, described by computing with its inputs.

    A node's inputs are nodes that exist already. So `nodes` is in an order in which they can be run, and there are no
    cycles. An activation that is used several times is copied; the copy is implicit.

    Parameters
    ----------
    name
        What is computed.

    Attributes
    ----------
    nodes : list of Node
        In an order in which they can be run.
    outputs : dict of str to Node
        What leaves the graph.
    prefix : str
        In a derived graph: what names of error terms begin with, ``"grad_"`` if it was derived once. Empty elsewhere.
    needs : dict of str to tuple of str
        In a derived graph: for every forward node the forward activations that its rule reads. Empty elsewhere.
    places, labels : dict
        For drawings: see `place` and `label`.
    """

    @checked
    def __init__(self, name: str):
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: dict[str, Node] = {}
        self.needs: dict[str, tuple[str, ...]] = {}
        self.places: dict[str, tuple[float, ...]] = {}
        self.labels: dict[str, str] = {}
        self.prefix = ""
        self._by_name: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        """Return the node of that name; a KeyError lists those there are."""
        if name not in self._by_name:
            raise KeyError(f"no node {name!r} in {self.name!r}, which has {', '.join(self._by_name)}")
        return self._by_name[name]

    def __contains__(self, name):
        return name in self._by_name

    def __repr__(self):
        return f"Graph({self.name!r}, {len(self.nodes)} nodes)"

    def __str__(self):
        """Write the graph as a program, a line per operation."""
        lines = [f"{node.name} = {expression(node)}" for node in self.nodes if node.op not in SOURCES]
        lines += [f"{name} = {node.name}" for name, node in self.outputs.items() if name != node.name]
        return "\n".join(lines)

    @property
    def saved(self) -> list[str]:
        """Names of the forward activations that a derived graph reads, in the order of the forward pass."""
        return [node.name for node in self.nodes if node.op == "saved"]

    def input(self, name: str, *shape: str | int) -> Node:
        """Add an activation that comes from outside, such as ``g.input("h", "B", "H")``."""
        return self.source("input", name, shape)

    def parameter(self, name: str, *shape: str | int) -> Node:
        """Add a parameter, such as ``g.parameter("U", "H", "H")``; weights are laid out (outputs, inputs)."""
        return self.source("parameter", name, shape)

    def output(self, **nodes: Node) -> None:
        """Let activations leave the graph: ``g.output(h_next=node)``; also names a node that has no name yet."""
        for name, node in nodes.items():
            self.own(name, node)
            if name in self.outputs or self._by_name.get(name, node) is not node:
                raise ValueError(f"output {name!r} is the name of something else in {self.name!r}")
            if node.automatic:
                self.rename(node, name)
            self.outputs[name] = node

    def place(self, **places: tuple[float, ...]) -> None:
        """Put nodes and outputs on a grid, for drawings: (column, row), or (column, row, column of the wire's rise).

        A wire runs right, up at its consumer's column, or at the column given here, and right again.
        """
        self.places |= self._known(places)

    def label(self, **labels: str) -> None:
        r"""Say how activations are written in drawings, in TeX: ``g.label(h=r"h_{t-1}")``."""
        self.labels |= self._known(labels)

    def copies(self) -> dict[str, int]:
        """Return how many wires, outputs too, activations split into, where that is not one."""
        uses = Counter(taken.name for node in self.nodes for taken in node.inputs)
        uses.update(node.name for node in self.outputs.values())
        return {node.name: uses[node.name] for node in self.nodes if uses[node.name] > 1}

    @checked
    def path(self, given: Iterable[str], wanted: Sequence[str]) -> list[Node]:
        """List the operations that must run, in order, between what is given and what is wanted.

        Both are names of nodes; nothing before a given one is run.
        """
        given, left, needed = set(given), self._named("wanted", wanted), set()
        while left:
            node = left.pop()
            if node.name in given or node in needed:
                continue
            if node.op in SOURCES:
                raise ValueError(f"{self.name!r} cannot run without {node.name!r}; given: {', '.join(sorted(given))}")
            needed.add(node)
            left += node.inputs
        return [node for node in self.nodes if node in needed]

    @checked
    def run(self, values: Values, wanted: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Compute activations.

        Parameters
        ----------
        values
            Inputs and parameters, by name. The activation of any other node may be given too: it is taken as it
            is, and nothing that only leads to it is computed.
        wanted
            The names of the nodes to compute; all of them by default.

        Returns
        -------
        dict of str to np.ndarray
            `values`, what was computed, and the outputs by their names. NaN and infinity are not looked for.
        """
        sizes = self._sizes(values)
        known = dict(values)
        for node in self.path(values, [*self._by_name] if wanted is None else wanted):
            taken = [known[each.name] for each in node.inputs]
            if node.op == "matmul":
                left, right = (a.T if flip else a for a, flip in zip(taken, node.transposed, strict=True))
                known[node.name] = left @ right
            elif node.op == "repeat":
                known[node.name] = np.broadcast_to(taken[0], [sizes.get(size, size) for size in node.shape])
            else:
                known[node.name] = _COMPUTE[node.op](*taken)
        if wanted is None:
            known |= {name: known[node.name] for name, node in self.outputs.items()}
        return known

    @checked
    def gradients(self, values: Values, grad_outputs: Values) -> dict[str, np.ndarray]:
        """Run forward, then the backward graph on the activations that it reads.

        Parameters
        ----------
        values
            Inputs and parameters.
        grad_outputs
            The error term of every output.

        Returns
        -------
        dict of str to np.ndarray
            The gradient of every input and parameter.
        """
        if grad_outputs.keys() != self.outputs.keys():
            given = sorted(map(str, grad_outputs))
            raise ValueError(f"grad_outputs must have an entry for each of {sorted(self.outputs)}, got {given}")
        back = self.backward()
        known = self.run(values)
        read = {node.name: known[node.name] for node in back.nodes if node.op in ("saved", "parameter")}
        errors = back.run(read | {back.prefix + name: grad for name, grad in grad_outputs.items()})
        return {name.removeprefix(back.prefix): errors[name] for name in back.outputs}

    def backward(self) -> "Graph":
        """Derive the graph of the error terms, one rule per node, as in the appendix of the article.

        A sum turns into a copy and a copy into a sum. A multiply turns into a multiply by the other input's activation;
        a matmul likewise, with that activation transposed and the order kept. A nonlinearity turns into a multiply by
        its derivative, taken at the activation it puts out.

        The graph's inputs are ``grad_<output>``, its outputs ``grad_<name>`` for every input and parameter. Forward
        activations that it reads are nodes of their own ("saved"), as are the parameters. `needs` says which forward
        node reads which of them. Raises ValueError if there is no output, or a node leads to none.
        """
        if not self.outputs:
            raise ValueError(f"{self.name!r} has no output to derive")
        back = Graph(f"{self.name}, backward")
        back.prefix = prefix = f"grad_{self.prefix}"
        needs = {node: _needed(node) for node in self.nodes if _needed(node)}
        back.needs = {node.name: tuple(each.name for each in read) for node, read in needs.items()}
        at_hand = {}  # forward node -> its activation in the backward graph
        for node in self.nodes:
            if any(node in read for read in needs.values()):
                op = "parameter" if node.op == "parameter" else "saved"
                at_hand[node] = back.source(op, node.name, node.shape)
        arriving = {node: [] for node in self.nodes}
        for name, node in self.outputs.items():
            arriving[node].append(back.input(prefix + name, *node.shape))
        copies, ends = self.copies(), {}
        for node in reversed(self.nodes):
            if not arriving[node]:
                raise ValueError(f"no error term comes to {node.name!r}: no output of {self.name!r} depends on it")
            error = arriving[node][0]
            if len(arriving[node]) > 1:
                error = _rule(node, back.operation("sum", arriving[node], node.shape), prefix + node.name)
            ends[node] = error
            for taken, passed in zip(node.inputs, _propagate(back, node, error, at_hand), strict=True):
                if passed is not error:
                    part = f"_{len(arriving[taken]) + 1}" if taken.name in copies else ""
                    _rule(node, passed, f"{prefix}{taken.name}{part}")
                arriving[taken].append(passed)
        back.outputs = {prefix + node.name: ends[node] for node in self.nodes if node.op in SOURCES}
        return back

    def source(self, op, name, shape):
        """Add a node without inputs: an "input", a "parameter" or a "saved" activation of another graph."""
        if len(shape) not in (1, 2) or not all(
            (isinstance(size, str) and size) or (type(size) is int and size > 0) for size in shape
        ):
            raise ValueError(f"{name} must have one or two sizes, each a text or an int of at least 1, got {shape}")
        return self.operation(op, (), tuple(shape)).named(name)

    def operation(self, op, inputs, shape, transposed=(False, False)):
        """Add an operation on nodes of this graph; its arguments are what `Node` calls so."""
        number = 1
        while (name := f"{op}_{number}") in self._by_name:
            number += 1
        node = Node(self, op, tuple(inputs), shape, name, transposed)
        self.nodes.append(node)
        self._by_name[name] = node
        return node

    def rename(self, node, name):
        """Give a node another name: an identifier that is free."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"name must be a Python identifier, got {name!r}")
        if self._by_name.get(name, node) is not node:
            raise ValueError(f"name {name!r} is taken in {self.name!r}")
        del self._by_name[node.name]
        node.name, node.automatic = name, False
        self._by_name[name] = node

    def own(self, operator, *nodes):
        """Raise an error for whatever is no node of this graph."""
        for node in nodes:
            if not isinstance(node, Node):
                raise TypeError(f"{operator} takes nodes of a graph, got {type(node).__name__}")
            if node.graph is not self:
                raise ValueError(f"{operator} takes nodes of one graph, got {node.name!r} of {node.graph.name!r}")

    def _known(self, looks):
        for name in looks:
            if name not in self.outputs:
                self[name]
        return looks

    def _named(self, argument, names):
        """Return the nodes of these names, or raise ValueError."""
        for name in names:
            if name not in self:
                raise ValueError(f"{argument}: no node {name!r} in {self.name!r}, which has {', '.join(self._by_name)}")
        return [self[name] for name in names]

    def _sizes(self, values):
        sizes = {}
        for node, (name, value) in zip(self._named("values", values), values.items(), strict=True):
            expected = [sizes.get(size, size) for size in node.shape]
            if len(expected) != value.ndim or any(
                isinstance(e, int) and e != n for e, n in zip(expected, value.shape, strict=True)
            ):
                raise ValueError(f"{name} must have shape {sizes_text(expected)}, got {sizes_text(value.shape)}")
            sizes |= dict(zip(node.shape, value.shape, strict=True))
        return sizes


def _needed(node):
    """List the nodes whose activations the rule of a node reads."""
    if node.op in ("multiply", "matmul"):
        return list(dict.fromkeys(node.inputs))
    return [node] if node.op in ("sigmoid", "tanh", "relu") else []


def _propagate(back, node, error, at_hand):
    """Return the error terms that a node passes to its inputs."""
    if node.op == "sum":
        return [error for _ in node.inputs]
    if node.op == "multiply":
        a, b = (at_hand[each] for each in node.inputs)
        return [error * b, error * a]
    if node.op == "matmul":
        (a, b), (flip_a, flip_b) = (at_hand[each] for each in node.inputs), node.transposed
        # Y = A B gives the error terms E Bᵀ and Aᵀ E; where an input is transposed, so is its error term.
        to_a = (b.T if flip_b else b) @ error.T if flip_a else error @ (b if flip_b else b.T)
        to_b = error.T @ (a.T if flip_a else a) if flip_b else (a if flip_a else a.T) @ error
        return [to_a, to_b]
    if node.op == "sigmoid":
        return [error * (at_hand[node] * (1 - at_hand[node]))]
    if node.op == "tanh":
        return [error * (1 - at_hand[node] * at_hand[node])]
    if node.op == "relu":
        return [error * back.operation("step", [at_hand[node]], node.shape)]
    if node.op in ("one_minus", "negate"):
        return [back.operation("negate", [error], node.shape)]
    if node.op == "repeat":
        return [back.operation("total", [error], node.shape[1:])]
    if node.op == "total":
        return [back.operation("repeat", [error], node.inputs[0].shape)]
    if node.op == "step":
        raise ValueError("a relu can be derived once: its derivative, a step, is flat")
    return []  # a source has no inputs


def _rule(forward, node, name):
    """Name a derived node, and mark it and what leads to it as the rule of a forward node."""
    while name in (each.name for each in node.graph.nodes):
        name += "_"
    left = [node.named(name)]
    while left:
        each = left.pop()
        if each.rule_of is None and each.op not in SOURCES:
            each.rule_of = forward.name
            left += each.inputs
    return node
