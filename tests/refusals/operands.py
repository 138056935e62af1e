"""What sparse patterns, plans and links refuse."""

import numpy as np
from garbage import numbers
from scipy import sparse

PATTERN, PLAN, RUN = "CSRPattern", "PlannedProduct", "PlannedProduct(), cpu"

ROWS = [
    (PATTERN, {"indices": np.array([0, 1, 0, 2])}, "indices must be from 0 to n - 1 = 1, got 2"),
    (PATTERN, {"indices": [[0], [0, 1]]}, "TypeError: indices must be an array, got .*inhomogeneous"),
    (PATTERN, {"indptr": [[0, 2, 4]]}, r"indptr must be 1-d, got shape \(1, 3\)"),
    (PATTERN, {"indptr": [0, 4]}, r"indptr must have m \+ 1 = 3 entries, got 2"),
    (PATTERN, {"indptr": [1, 2, 4]}, "indptr must rise from 0 to the number of indices, 4"),
    (PATTERN, {"indptr": [0, 2, 3]}, "indptr must rise from 0 to the number of indices, 4"),
    (PATTERN, {"indptr": [0, 5, 4]}, "indptr must rise from 0 to the number of indices, 4"),
    (PATTERN, {"shape": [2, 2]}, r"shape must be two integers \(m, n\), got \[2, 2\]"),
    (PATTERN, {"shape": (2, 2, 1)}, "shape must be two integers"),
    (PATTERN, {"shape": (2, -1)}, "shape must be two integers"),
    (PATTERN, {"shape": (2, 2.0)}, "shape must be two integers"),
    (PATTERN, {"shape": (2, 2**31 + 1)}, r"a pattern has at most 2\*\*31 columns"),
    ("CSRPattern.of", {"matrix": sparse.csc_array(np.eye(2))}, "expected a SciPy CSR matrix or a CSRPattern, got csc"),
    ("CSRPattern.of", {"matrix": np.eye(2)}, "expected a SciPy CSR matrix or a CSRPattern, got ndarray"),
    ("CSRPattern.times", {"other": sparse.csr_array(np.eye(2))}, "other must be a CSRPattern, got csr_array"),
    ("CSRPattern.matrix", {"values": np.array(list("abcd"))}, "TypeError: values must be numbers, got <U1"),
    ("BatchedCSR", {"values": numbers(2, 5)}, r"values must have shape \(B, nnz\) with nnz = 4, got \(2, 5\)"),
    ("BatchedCSR.of", {"pattern": np.eye(2)}, "TypeError: pattern must be a CSRPattern, got ndarray"),
    (PLAN, {"a": np.ones((2, 2))}, "TypeError: a: expected a SciPy CSR matrix or a CSRPattern, got ndarray"),
    (PLAN, {"b": sparse.csc_array(np.eye(2))}, "TypeError: b: expected a SciPy CSR matrix .*, got csc_array"),
    (PLAN, {"b": sparse.csr_array(np.eye(3))}, r"b must have 2 rows to be multiplied by a .*, got shape \(3, 3\)"),
    (RUN, {"a": numbers(3)}, r"a must have shape \(nnz,\) or \(B, nnz\) with nnz = 4, got \(3,\)"),
    (RUN, {"b": numbers(3, 4)}, "a and b must have as many samples as each other, got 2 and 3"),
    (RUN, {"b": np.ones(4)}, "TypeError: b must have the dtype of a, float32, got float64"),
    # What meets a zero only would not show in the product on every backend.
    (RUN, {"a": 0 * numbers(4), "b": np.array([1, np.nan, 1, 1], "f")}, r"b must be finite, got nan at \[1\]"),
    (RUN, {"a": np.array([[1, 1, np.inf, 1]], "f"), "b": 0 * numbers(4)}, r"a must be finite, got inf at \[0, 2\]"),
    (RUN, {"out": np.zeros((2, 4))}, r"out must be contiguous, of dtype float32 and shape \(2, 4\), got float64"),
    (RUN, {"out": np.zeros((2, 8), "f")[:, ::2]}, r"out must be contiguous, .* got float32 \(2, 4\)"),
    (RUN, {"out": [1]}, "out must be contiguous, .* got list"),
]
