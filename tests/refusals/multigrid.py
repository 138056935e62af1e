"""What multigrid, its partitions and its models refuse; and partitions of steps over ranks."""

import math

import numpy as np
from garbage import numbers

from bppsa_nb import sparse

SOLVE, ADJOINT, PARTITION = "multigrid.solve", "multigrid.solve_adjoint", "multigrid.partition"
MODEL, FORWARD, BACKWARD = "ResidualModel", "ResidualModel.forward", "ResidualModel.backward"
NAN, INFINITE, LAST = numbers(2, 3), numbers(5, 2, 3), sparse.Linear("closing", 4, 3)
NAN[1, 2], INFINITE[0, 0, 0] = np.nan, np.inf
TWO_STARTS = {"nested_iteration": True, "skip_downcycle": True}

ROWS = [
    (SOLVE, {"u0": numbers(2, 4)}, r"ValueError: u0 must have shape \(B, 3\), got \(2, 4\)"),
    (SOLVE, {"u0": np.ones((2, 3))}, "TypeError: u0 must have the model's dtype float32, got float64"),
    (SOLVE, {"u0": numbers(0, 3)}, r"ValueError: u0 must hold at least one sample.*got .*\(0, 3\)"),
    (SOLVE, {"u0": NAN}, r"ValueError: u0 must be finite, got nan at \[1, 2\]"),
    (SOLVE, {"coarsening": 1}, "ValueError: coarsening must be at least 2, got 1"),
    (SOLVE, {"levels": 0}, "ValueError: levels must be at least 1, got 0"),
    (SOLVE, {"levels": 4}, "at most 3 for 4 layers and coarsening=2: level 3 has a single step; got 4"),
    (SOLVE, {"cycles": 0}, "ValueError: cycles must be at least 1, got 0"),
    (SOLVE, {"tol": -1}, "ValueError: tol must be >= 0 and finite, got -1"),
    (SOLVE, {"tol": math.inf}, "ValueError: tol must be >= 0 and finite, got inf"),
    (SOLVE, {"tol": "1e-9"}, "TypeError: tol must be a number, got '1e-9'"),
    (SOLVE, {"cycles": None, "error": 0}, "ValueError: error must be > 0 and finite, got 0"),
    (SOLVE, {"cycles": None, "error": math.inf}, "ValueError: error must be > 0 and finite, got inf"),
    (SOLVE, {"cycles": 2, "error": 0.1}, "ValueError: cycles and error both say when to stop, got 2 and 0.1"),
    (SOLVE, {"relaxation": "CF"}, "ValueError: relaxation must be one of 'F', 'FC', 'FCF', got 'CF'"),
    (SOLVE, {"cycle": "W"}, "ValueError: cycle must be one of 'V', 'F', got 'W'"),
    (SOLVE, {"skip_downcycle": 1}, "TypeError: skip_downcycle must be True or False, got 1"),
    (SOLVE, TWO_STARTS, "ValueError: nested_iteration and skip_downcycle .* take one of them"),
    (SOLVE, {"initial": numbers(4, 2, 3)}, r"ValueError: initial must have shape \(5, 2, 3\), got \(4, 2, 3\)"),
    (SOLVE, {"initial": INFINITE}, r"ValueError: initial must be finite, got inf at \[0, 0, 0\]"),
    (SOLVE, {"comm": "world"}, r"TypeError: comm must be an mpi4py\.MPI\.Intracomm, such as .*, or None, got 'world'"),
    (SOLVE, {"net": 3}, "TypeError: net must be a ResidualNetwork, got int"),
    (ADJOINT, {"net": 3}, "TypeError: net must be a ResidualNetwork, got int"),
    (ADJOINT, TWO_STARTS, "take one of them"),
    (ADJOINT, {"states": numbers(4, 2, 3)}, r"ValueError: states must have shape \(5, B, 3\), got \(4, 2, 3\)"),
    (ADJOINT, {"states": INFINITE}, r"ValueError: states must be finite, got inf at \[0, 0, 0\]"),
    (ADJOINT, {"grad_output": numbers(1, 3)}, r"ValueError: grad_output must have shape \(2, 3\), got \(1, 3\)"),
    (ADJOINT, {"grad_output": NAN}, "ValueError: grad_output must be finite, got nan"),
    (PARTITION, {"ranks": 5}, "ranks must be at most the 4 steps .* got 5; take fewer levels"),
    (PARTITION, {"ranks": 0}, "ValueError: ranks must be at least 1, got 0"),
    (PARTITION, {"depth": 0}, "ValueError: depth must be at least 1, got 0"),
    ("distributed.partition", {"steps": -1}, "ValueError: steps must be at least 0, got -1"),
    ("distributed.partition", {"ranks": 0}, "ValueError: ranks must be at least 1, got 0"),
    (MODEL, {"dtype": np.float16}, "dtype must be float32 or float64, got float16"),
    (MODEL, {"depth": 0}, "ValueError: depth must be at least 1, got 0"),
    (MODEL, {"opening": None}, "TypeError: opening must be a list of operators, got None"),
    (MODEL, {"closing": ["relu"]}, r"TypeError: closing\[0\] must be an operator"),
    (MODEL, {"closing": []}, r"closing must end in a vector of logits, got an output of shape \(3,\)"),
    (MODEL, {"input_shape": (2, 4), "opening": []}, r"opening must end in a vector or an image .*, got \(2, 4\)"),
    (MODEL, {"closing": [LAST]}, r"operator 'closing' needs an input of shape \(4,\), got \(3,\)"),
    (MODEL, {"opening": [sparse.Linear("residual", 4, 3)]}, "names of their own, and none be 'residual'"),
    (MODEL, {"opening": [sparse.Linear("c", 4, 3)]}, "operators must have names of their own"),
    (MODEL, {"h": 0}, "ValueError: h must be positive and finite in float32, got 0"),
    (MODEL, {"activation": "gelu"}, "activation must be one of 'tanh', 'relu', got 'gelu'"),
    (MODEL, {"kernel_size": 4}, "ValueError: kernel_size must be odd, got 4"),
    (MODEL, {"solver": 2}, "TypeError: solver must be a dict of options, .* or None, got 2"),
    (MODEL, {"solver": {1: 2, "q": 2}}, r"ValueError: solver may have the options cycles, .*, got \[1, 'q'\]"),
    (MODEL, {"solver": {"comm": None}}, "ValueError: solver may have the options cycles, .*'comm'"),
    (MODEL, {"solver": {"cycles": 0}}, "ValueError: cycles must be at least 1, got 0"),
    (MODEL, {"solver": {"levels": 9}}, "ValueError: levels must be at most 2 for 4 layers"),
    (FORWARD, {"x": np.ones((2, 4))}, "TypeError: x must have the model's dtype float32, got float64"),
    (FORWARD, {"x": numbers(2, 3)}, r"ValueError: x must have shape \(B, 4\), got \(2, 3\)"),
    (FORWARD, {"x": numbers(0, 4)}, r"ValueError: x must hold at least one sample, got shape \(0, 4\)"),
    (FORWARD, {"x": np.full((2, 4), np.nan, "f")}, r"ValueError: x must be finite, got nan at \[0, 0\]"),
    (BACKWARD, {"activations": numbers(2)}, "TypeError: activations must come from ResidualModel.forward, got ndarray"),
    (BACKWARD, {"grad_logits": numbers(2, 3)}, r"ValueError: grad_logits must have shape \(2, 2\), got \(2, 3\)"),
    (BACKWARD, {"grad_logits": np.full((2, 2), np.nan, "f")}, "ValueError: grad_logits must be finite, got nan"),
    (BACKWARD, {"method": "multigrid", "levels": None}, "method='multigrid' needs a model with a solver, such as"),
    (BACKWARD, {"method": "bptt"}, "method must be one of 'auto', 'multigrid', 'ordinary', 'linear'"),
    (BACKWARD, {"method": "ordinary", "levels": 2}, "levels is for method='truncated' only, got levels=2 with"),
    (BACKWARD, {"method": "truncated", "levels": None}, "levels must be an integer >= 0"),
]
