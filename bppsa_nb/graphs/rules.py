"""The rules that turn a graph into the graph of its error terms (appendix of the differentiable-graphs article).

A sum turns into a copy and a copy into a sum. A multiply turns into a multiply by the other input's activation; a
matmul likewise, with that activation transposed and the order kept. A nonlinearity turns into a multiply by its
derivative, taken at the activation it puts out.
"""

from bppsa_nb.graphs.nodes import SOURCES


def needed(node):
    """List the nodes whose activations the rule of a node reads."""
    if node.op in ("multiply", "matmul"):
        return list(dict.fromkeys(node.inputs))
    return [node] if node.op in ("sigmoid", "tanh", "relu") else []


def derive(graph, back):
    """Describe the backward graph in `back`, an empty one, and return it: what `Graph.backward` returns."""
    if not graph.outputs:
        raise ValueError(f"{graph.name!r} has no output to derive")
    back.prefix = prefix = f"grad_{graph.prefix}"
    needs = {node: needed(node) for node in graph.nodes if needed(node)}
    back.needs = {node.name: tuple(each.name for each in read) for node, read in needs.items()}
    at_hand = {}  # forward node -> its activation in the backward graph
    for node in graph.nodes:
        if any(node in read for read in needs.values()):
            op = "parameter" if node.op == "parameter" else "saved"
            at_hand[node] = back.source(op, node.name, node.shape)
    arriving = {node: [] for node in graph.nodes}
    for name, node in graph.outputs.items():
        arriving[node].append(back.input(prefix + name, *node.shape))
    copies, ends = graph.copies(), {}
    for node in reversed(graph.nodes):
        if not arriving[node]:
            raise ValueError(f"no error term comes to {node.name!r}: no output of {graph.name!r} depends on it")
        error = arriving[node][0]
        if len(arriving[node]) > 1:
            error = _rule(node, back.operation("sum", arriving[node], node.shape), prefix + node.name)
        ends[node] = error
        for taken, passed in zip(node.inputs, _propagate(back, node, error, at_hand), strict=True):
            if passed is not error:
                part = f"_{len(arriving[taken]) + 1}" if taken.name in copies else ""
                _rule(node, passed, f"{prefix}{taken.name}{part}")
            arriving[taken].append(passed)
    back.outputs = {prefix + node.name: ends[node] for node in graph.nodes if node.op in SOURCES}
    return back


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
