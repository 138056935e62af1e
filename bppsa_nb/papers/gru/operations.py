"""The operations of a differentiable graph, counted."""

import pandas as pd


def count_operations(graph, name):
    """List the operations of a graph, forward and backward, a row each."""
    back, rows = graph.backward(), []
    for direction, which in (("forward", graph), ("backward", back)):
        copies = which.copies()
        for node in which.nodes:
            if node.inputs or node.op == "input":
                of = node.rule_of or node.name
                reads = ", ".join(back.needs.get(of, ())) if direction == "forward" else ""
                row = {"graph": name, "direction": direction, "node": of, "op": node.op}
                rows.append(row | {"reads": reads or None, "copies": copies.get(node.name, 1)})
    return pd.DataFrame(rows)
