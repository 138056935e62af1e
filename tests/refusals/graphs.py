"""What differentiable graphs refuse."""

from garbage import numbers

X, W = numbers(2, 3), numbers(3, 3)

ROWS = [
    ("Graph.run", {"values": {"x": numbers(2, 5), "w": W}}, r"ValueError: w must have shape \(5, 5\), got \(3, 3\)"),
    ("Graph.run", {"values": {"x": numbers(3), "w": W}}, r"ValueError: x must have shape \(B, H\), got \(3\)"),
    ("Graph.run", {"values": {"x": X.astype(int), "w": W}}, "TypeError: x must be an array of floats, got int64"),
    ("Graph.run", {"values": {"x": [[1.0]], "w": W}}, "TypeError: x must be a numpy.ndarray, got list"),
    ("Graph.run", {"values": {"x": X, "w": W, "z": X}}, "ValueError: values: no node 'z' in 'g', which has x, w, ma"),
    ("Graph.run", {"values": {"x": X}}, "ValueError: 'g' cannot run without 'w'; given: x"),
    ("Graph.run", {"values": {5: X}}, "ValueError: values: no node 5 in 'g'"),
    ("Graph.run", {"wanted": "x"}, r"TypeError: wanted must be names of nodes, as in wanted=\['h'\], got 'x'"),
    ("Graph.run", {"wanted": ["z"]}, "ValueError: wanted: no node 'z' in 'g', which has x, w"),
    ("Graph.run", {"wanted": [["x"]]}, r"ValueError: wanted: no node \['x'\] in 'g'"),
    ("Graph.gradients", {"grad_outputs": None}, r"ValueError: grad_outputs must .* each of \['y'\], got NoneType"),
    ("Graph.gradients", {"grad_outputs": {"x": X}}, r"ValueError: grad_outputs must have .* of \['y'\], got \['x'\]"),
    ("Graph.gradients", {"saved": 5}, r"TypeError: saved must be names of nodes, as in saved=\['h'\], got 5"),
    ("Graph.gradients", {"saved": ["z"]}, "ValueError: saved: no node 'z' in 'g'"),
]
