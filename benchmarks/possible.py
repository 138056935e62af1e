"""Which labelled bugs of HiRace's codes a graph can show, to compare with what warpwatch found of them.

This knows the loops of the codes and nothing of warpwatch. A race needs two threads, warps or blocks at one place; a
missing check of bounds, an index that leaves its array. It takes the artifact, and what `labelled.py` has written:

    python benchmarks/possible.py hirace build/labelled/results.csv
"""

import csv
import ctypes
import struct
import sys
from collections import Counter, defaultdict, namedtuple
from functools import cache
from pathlib import Path

Graph = namedtuple("Graph", "nodes edges first neighbors values edge_values")


@cache
def graph_of(path):
    """Read a graph, and make the values that the codes give to nodes and edges, by C's random numbers."""
    raw = path.read_bytes()
    nodes, edges, *numbers = struct.unpack(f"<{len(raw) // 4}i", raw)
    library, size = ctypes.CDLL(None), max(nodes, edges, 1)
    library.srand(1)
    values, edge_values = ([0, *(library.rand() % most for _ in range(size - 1))] for most in (nodes, edges))
    return Graph(nodes, edges, numbers[: nodes + 1], numbers[nodes + 1 :], values, edge_values)


def visited(graph, node, words):
    """List the edges of a node that a code visits: (edge, neighbor), in its order."""
    begin, end = graph.first[node : node + 2]
    edges = range(begin, end)[:: -1 if "reverse" in words else 1]
    if "neighbor" in words:  # the first one, or the last; where the check is missing, of a node without any, too
        edge = end - 1 if "last" in words else begin
        edges = [edge] if begin < end or "boundsBug" in words and 0 <= edge < graph.edges else []
    cond = "cond" in words or "conditional" in words and "vertex" in words or "populate" in words
    return [(edge, graph.neighbors[edge]) for edge in edges if not cond or node < graph.neighbors[edge]]


def possible(graph, code, bug):
    """Tell whether a bug of a code can show with a graph."""
    words, nodes = set(code.split("_")), range(graph.nodes)
    edges = [visited(graph, node, words) for node in nodes]
    together = bool({"block", "warp"} & words)  # do all that belongs to a node
    if bug == "boundsBug":  # of one neighbor, the check that there is one is missing
        if "neighbor" not in words:
            return True
        outside = [graph.first[n + 1] < 1 if "last" in words else graph.first[n] >= graph.edges for n in nodes]
        return any(outside)
    if bug == "syncBug":
        return True
    if "path" in words:  # nodes read what others write
        met = defaultdict(set)
        for node in nodes:
            at = node
            while graph.values[at] < at:
                met[at].add(node)
                at = graph.values[at]
            met[at].add(node)
        return any(met[node] - {node} for node in nodes)
    if "push" in words:
        met = defaultdict(set)
        for node in nodes:
            for edge, neighbor in edges[node][: 1 if "break" in words else None]:
                met[neighbor].add((node, edge) if together else node)
        return any(len(each) > 1 for each in met.values())
    if "populate" in words:
        return sum(len(each) if together else bool(each) for each in edges) > 1
    if "vertex" in words:
        return (graph.nodes if together else sum(map(bool, edges))) > 1
    # The greatest value of the edges, or all of them; where a guard compares it with what stands there, 0 never wins.
    values = []
    for node in nodes:
        mine = [graph.edge_values[neighbor] for _, neighbor in edges[node][: 1 if "break" in words else None]]
        if together and "block" in words and "guardBug" in words and "shfl" not in words:  # thread 0 has its first edge
            mine = mine[:1] or [0]
        values += [max(mine, default=0)] if together else [max(mine)] if mine else []
    return len(values) > 1 and (bug == "atomicBug" and "guardBug" not in words or max(values) > 0)


def main():
    folder, counts = Path(sys.argv[1]) / "indigo/input", Counter()
    with open(sys.argv[2], newline="") as file:
        for row in csv.DictReader(file):
            for bug in row["label"].split() if row["suite"] == "HiRace" else ():
                can = possible(graph_of(folder / f"{row['graph']}.egr"), row["code"], bug)
                found = bug not in row["missing"].split()
                counts[row["graph"], bug, can, found] += 1
                if can != found:
                    print("differs:", row["graph"], row["code"], bug)
    print("| graph | bug | can show | found |\n|---|---|---|---|")
    for (*names, can, found), count in sorted(counts.items()):
        print(f"| {' | '.join(names)} | {count if can else 0} of {count} | {count if found else 0} of {count} |")


if __name__ == "__main__":
    main()
