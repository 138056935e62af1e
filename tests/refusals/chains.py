"""What `backprop`, `explain` and structured chains refuse."""

import numpy as np
from garbage import numbers
from scipy import sparse

import bppsa_nb as bp

DENSE, LIST, BATCHES = "backprop", "backprop, list", "backprop, batched list"
SHARED, STRUCTURED, CHAIN = "backprop, shared", "backprop, structured", "StructuredChain"
WEIGHTS, SLOPES = numbers(2, 3, 3), numbers(2, 5, 2, 3)
IDENTITY = bp.BatchedCSR(numbers(3, 2), [0, 1], [0, 1, 2], (2, 2))
ARRAYS = {"jacobians_T": [numbers(4, 2, 2), numbers(4, 2, 2)], "grad_output": numbers(4, 2), "local_grads": None}
MATRIX = {"jacobians_T": [numbers(2, 2)], "grad_output": numbers(2), "local_grads": None}
EMPTY = {"jacobians_T": [], "grad_output": None, "local_grads": None}
CSR = {"jacobians_T": [sparse.csr_array(np.eye(2, dtype=int))]}
ONE_STEP = r"jacobians_T .* \(T, B, H, H\) or \(T, H, H\), got \(3, 3\); one step is jacobians_T\[None\]$"
ONE_SAMPLE = r"must have shape \(B, H\), got \(3,\); one sample is grad_output\[None\]$"
ONE_TERM = r"local_grads must have shape \(T \+ 1, B, H\), got \(2, 3\); one sample is local_grads\[:, None\]$"
ONE_SLOPE = r"slopes\[None\]; one step is slopes\[:, None\]; one sample is slopes\[:, :, None\]$"
GATES = "weights must be an integer >= 1, got 0: forward, an RNN has 1, and a GRU 3"

ROWS = [
    (DENSE, {"jacobians_T": numbers(3, 3)}, ONE_STEP), (DENSE, {"grad_output": numbers(3)}, ONE_SAMPLE),
    (DENSE, {"local_grads": numbers(2, 3)}, ONE_TERM),
    (DENSE, {"jacobians_T": numbers(5, 1, 3, 3)}, r"jacobians_T must have shape \(5, 2, 3, 3\).*got \(5, 1, 3, 3\)"),
    (SHARED, {"jacobians_T": numbers(5, 2, 3)}, r"jacobians_T must have shape \(5, 3, 3\)"),
    (DENSE, {"grad_output": np.ones((2, 3))}, "TypeError: jacobians_T has dtype float32, but grad_output has float64"),
    (DENSE, {"jacobians_T": numbers(5, 0, 3, 3), "grad_output": numbers(0, 3)}, "grad_output must have at least one s"),
    (DENSE, {"jacobians_T": numbers(5, 2, 0, 0), "grad_output": numbers(2, 0)}, "grad_output must have at least one s"),
    (DENSE, {"method": "bleloch"}, "method must be one of .*'blelloch'.* got 'bleloch'"),
    (DENSE, {"backend": "gpu"}, "backend must be one of .*'cuda'.* got 'gpu'"),
    (DENSE, {"levels": None}, "levels must be an integer >= 0 with method='truncated', got None"),
    (DENSE, {"method": "blelloch"}, "levels is for method='truncated' only, got levels=1 with method='blelloch'"),
    (LIST, {"jacobians_T": [numbers(3, 4), numbers(2, 2)]}, r"jacobians_T\[0\] must have 2 columns .*T\[1\]"),
    (LIST, {"jacobians_T": [numbers(2, 3)]}, r"jacobians_T\[0\] must have 2 columns .* with grad_output"),
    (LIST, MATRIX | {"jacobians_T": [numbers(2, 2, 2, 2)]}, r"have shape \(m, n\) or \(B, m, n\), got \(2, 2, 2, 2"),
    (LIST, MATRIX | {"jacobians_T": [sparse.coo_array(numbers(2))]}, r"jacobians_T\[0\] .* shape \(m, n\), got"),
    (LIST, MATRIX | {"jacobians_T": [np.eye(2)]}, r"jacobians_T\[0\] has dtype float64"),
    (LIST, MATRIX | CSR, r"jacobians_T\[0\] must be float32 or float64"),
    (LIST, {"backend": "cpu"}, "backend must be 'numpy' or 'auto' for a list"),
    (LIST, {"local_grads": [numbers(2)]}, "local_grads must be a list of .* = 4 arrays, got list of 1"),
    (LIST, {"local_grads": numbers(4, 2)}, "local_grads must be a list of .*, got ndarray"),
    (LIST, {"local_grads": [*map(numbers, (3, 4, 2, 1))]}, r"local_grads\[3\] must have shape \(2,\)"),
    (LIST, {"local_grads": [numbers(3), np.ones(4), numbers(2), numbers(2)]}, r"local_grads\[1\] has dtype float64"),
    (LIST, {"local_grads": [np.full(3, np.nan, "f"), *map(numbers, (4, 2, 2))]}, r"l_grads\[0\] must be finite"),
    (LIST, {"jacobians_T": [bp.StructuredChain(WEIGHTS, SLOPES)]}, r"T\[0\] must be a .*, got StructuredChain"),
    (LIST, EMPTY, "TypeError: grad_output must be a numpy.ndarray, got NoneType"),
    (LIST, EMPTY | {"grad_output": numbers(0)}, r"grad_output must not be empty, got shape \(0,\)"),
    (LIST, ARRAYS | {"grad_output": numbers(2)}, r"grad_output must have shape \(B, n\), got \(2,\); one sample is"),
    (LIST, ARRAYS | {"grad_output": numbers(3, 2)}, r"jacobians_T\[1\] must have shape \(3, m, n\) or \(1, m, n\)"),
    (LIST, ARRAYS | {"jacobians_T": [numbers(2, 2), numbers(4, 2, 2)]}, r"jacobians_T\[0\] .* an array \(B, m, n\) "),
    (LIST, ARRAYS | {"backend": "cpu"}, "backend must be 'numpy' or 'auto' for a list"),
    (BATCHES, {"jacobians_T": [IDENTITY]}, r"values .* \(B, nnz\) = \(2, 2\) or \(1, nnz\), got \(3, 2\)"),
    (BATCHES, {"jacobians_T": [IDENTITY, numbers(2, 2, 2)]}, r"jacobians_T\[1\] must be a BatchedCSR like"),
    (STRUCTURED, {"grad_output": numbers(3)}, ONE_SAMPLE),
    (STRUCTURED, {"grad_output": np.ones((2, 3))}, "jacobians_T has dtype float32, but grad_output has float64"),
    (STRUCTURED, {"grad_output": numbers(1, 3)}, r"must have shape \(2, 3\) to chain with StructuredChain\(T=5, B=2"),
    (STRUCTURED, {"local_grads": numbers(2, 3)}, ONE_TERM),
    (CHAIN, {"carry": np.ones((5, 2, 3))}, "carry has dtype float64, but weights has float32: they must be the same"),
    (CHAIN, {"weights": numbers(3, 3)}, r"weights .* \(K, H, H\), got \(3, 3\); one weight is weights\[None\]$"),
    (CHAIN, {"slopes": numbers(5, 2, 3)}, ONE_SLOPE),
    (CHAIN, {"carry": numbers(2)}, r"carry must have shape \(T, B, H\), got \(2,\)"),
    (CHAIN, {"weights": numbers(2, 2, 2), "carry": None}, r"weights must .* to go with slopes \(2, 5, 2, 3\), got"),
    (CHAIN, {"slopes": numbers(2, 5, 0, 3)}, r"slopes must have at least one sample .*, got shape \(2, 5, 0, 3\)"),
    (CHAIN, {"weights": numbers(2, 0, 0), "slopes": numbers(2, 5, 2, 0)}, "slopes must have .* one entry each"),
    (CHAIN, {"weights": WEIGHTS[:0], "slopes": SLOPES[:0], "carry": None}, "slopes must hold at least one diagonal"),
    ("explain", {"weights": 0, "forward": True}, GATES), ("explain", {"forward": 1}, "TypeError: forward must be"),
]
