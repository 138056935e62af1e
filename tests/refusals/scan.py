"""What scans refuse."""

from garbage import numbers

TRUNCATED, LINEAR, CHUNKED = ({"method": method, "levels": None} for method in ("truncated", "linear", "chunked"))

ROWS = [
    ("scan", {"operands": []}, "operands must hold at least one, got none"),
    ("scan", {"operands": [numbers(2), 2.0]}, r"operands\[1\] must have a method __matmul__, got float"),
    ("trace", {"method": ["linear"]}, r"method must be one of .*, got \['linear'\]"),
    ("trace", TRUNCATED, "TypeError: levels for 'truncated' must be an integer, got None"),
    ("trace", TRUNCATED | {"levels": -1}, "levels for 'truncated' must be at least 0, got -1"),
    ("trace", LINEAR | {"levels": 2}, "levels must be None for 'linear', got 2"),
    ("trace", LINEAR | {"length": 2}, "length must be None for 'linear', got 2"),
    ("trace", CHUNKED, "TypeError: length for 'chunked' must be an integer, got None"),
    ("trace", CHUNKED | {"length": 0}, "length for 'chunked' must be at least 1, got 0"),
    ("trace", CHUNKED | {"levels": 2, "length": 1}, "levels must be None for 'chunked', got 2"),
]
