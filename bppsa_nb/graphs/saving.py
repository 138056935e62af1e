"""Save or recompute: which activations to keep for the backward pass, and what computing the others again costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Annotated

import numpy as np

from bppsa_nb.graphs.graph import Graph, Values
from bppsa_nb.machine.arguments import Count, Size, checked

State = Annotated[np.ndarray, "float[B, H]"]
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


@dataclass(eq=False)
class ChainRun:
    """What back-propagation through a chain gave, and what it took."""

    grads: dict[str, np.ndarray] = field(default_factory=dict)  # by the parameters' names; "h" is the initial state's
    steps: int = 0  # forward steps that ran, those that ran again included
    held: int = 0  # the most arrays (B, H) held at a time, hidden states and other activations; not the inputs


@checked
def backpropagate(
    step: Graph, inputs: Sequence[Values], parameters: Values, h0: State, grad_output: State, every: Count | None
) -> ChainRun:
    """Run a recurrent step over time and back-propagate, keeping everything, nothing, or a hidden state now and then.

    `step` is a graph with an input ``h`` and an output ``h_next``; `inputs` are dicts of its other inputs, one for
    every step. `h0` and `grad_output` are the initial state and the gradient at the last one. `every`
    says what the first pass keeps: with 0, all activations that the backward pass reads; with k > 0, the hidden state
    at every k-th step, from which k steps are recomputed and held at a time; with None, nothing, so that every step is
    recomputed from `h0`.
    """
    steps, back, run = len(inputs), step.backward(), ChainRun()
    run.grads = {name: np.zeros_like(value) for name, value in parameters.items()}
    at_hand = {node.name: parameters[node.name] for node in back.nodes if node.op == "parameter"}

    def forward(h, start, stop):
        """Yield what the backward pass reads, step by step."""
        for t in range(start, stop):
            known = step.run({**parameters, **inputs[t], "h": h}, [*back.saved, "h_next"])
            run.steps += 1
            yield {name: known[name] for name in back.saved}
            h = known["h_next"]

    error, starts = grad_output, range(0, steps, every or max(steps, 1))
    # The first pass keeps states, or, if it keeps everything, is the one below.
    states = [read["h"] for t, read in enumerate(forward(h0, 0, steps)) if t in starts] if every != 0 else [h0][:steps]
    while states:
        start = starts[len(states) - 1]
        stop = min(start + starts.step, steps)
        for end in reversed(range(1, stop + 1)) if every is None else [stop]:
            kept = list(forward(states[-1], start, end))[-1 if every is None else 0 :]
            held = [*states, *(array for read in kept for array in read.values())]
            run.held = max(run.held, len({id(array) for array in held}))
            for read in reversed(kept):
                errors = back.run(read | at_hand | {"grad_h_next": error})
                for name in parameters:
                    run.grads[name] += errors[f"grad_{name}"]
                error = errors["grad_h"]
        states.pop()
    run.grads["h"] = error
    return run


def _numbers(node, sizes):
    return prod(sizes[size] if isinstance(size, str) else size for size in node.shape)


def _inner(node, sizes):
    """Return the size that a matrix product sums over."""
    size = node.inputs[0].shape[0 if node.transposed[0] else 1]
    return sizes[size] if isinstance(size, str) else size
