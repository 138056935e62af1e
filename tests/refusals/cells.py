"""What recurrent networks refuse."""

from garbage import numbers

ROWS = [
    ("RNN.forward, numpy", {"x": numbers(5, 2)}, r"ValueError: x must .* got \(5, 2\); one step is x\[None\]"),
    ("RNN.backward, numpy", {"method": "linear"}, "ValueError: levels is for method='truncated' only"),
]
