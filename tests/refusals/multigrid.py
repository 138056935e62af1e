"""What multigrid, its partitions and its models refuse; and partitions of steps over ranks."""

import math

import numpy as np
from garbage import numbers

from bppsa_nb import sparse

SOLVE, ADJOINT, PARTITION = "multigrid.solve", "multigrid.solve_adjoint", "multigrid.partition"
MODEL, FORWARD, BACKWARD = "ResidualModel", "ResidualModel.forward", "ResidualModel.backward"
LAST = sparse.Linear("closing", 4, 3)
TWO_STARTS = {"nested_iteration": True, "skip_downcycle": True}

ROWS = [
    (SOLVE, {"coarsening": 1}, "ValueError: coarsening must be at least 2, got 1"),
    (SOLVE, {"levels": 0}, "ValueError: levels must be at least 1, got 0"),
    (SOLVE, {"levels": 4}, "at most 3 for 4 layers and coarsening=2: level 3 has a single step; got 4"),
    (SOLVE, {"cycles": None, "error": 0}, "ValueError: error must be > 0 and finite, got 0"),
    (SOLVE, {"cycles": None, "error": math.inf}, "ValueError: error must be > 0 and finite, got inf"),
    (SOLVE, {"cycles": 2, "error": 0.1}, "ValueError: cycles and error both say when to stop, got 2 and 0.1"),
    (SOLVE, {"skip_downcycle": 1}, "TypeError: skip_downcycle must be True or False, got 1"),
    (SOLVE, TWO_STARTS, "ValueError: nested_iteration and skip_downcycle .* take one of them"),
    (SOLVE, {"comm": "world"}, r"TypeError: comm must be an mpi4py\.MPI\.Intracomm, such as .*, or None, got 'world'"),
    (ADJOINT, TWO_STARTS, "take one of them"),
    (PARTITION, {"ranks": 5}, "ranks must be at most the 4 steps .* got 5; take fewer levels"),
    (MODEL, {"closing": ["relu"]}, r"TypeError: closing\[0\] must be an operator"),
    (MODEL, {"closing": []}, r"closing must end in a vector of logits, got an output of shape \(3,\)"),
    (MODEL, {"input_shape": (2, 4), "opening": []}, r"opening must end in a vector or an image .*, got \(2, 4\)"),
    (MODEL, {"closing": [LAST]}, r"operator 'closing' needs an input of shape \(4,\), got \(3,\)"),
    (MODEL, {"opening": [sparse.Linear("residual", 4, 3)]}, "names of their own, and none be 'residual'"),
    (MODEL, {"opening": [sparse.Linear("c", 4, 3)]}, "operators must have names of their own"),
    (MODEL, {"kernel_size": 4}, "ValueError: kernel_size must be odd, got 4"),
    (MODEL, {"solver": 2}, "TypeError: solver must be a dict of options, .* or None, got 2"),
    (MODEL, {"solver": {1: 2, "q": 2}}, r"ValueError: solver may have the options cycles, .*, got \[1, 'q'\]"),
    (MODEL, {"solver": {"comm": None}}, "ValueError: solver may have the options cycles, .*'comm'"),
    (MODEL, {"solver": {"cycles": 0}}, "ValueError: cycles must be at least 1, got 0"),
    (MODEL, {"solver": {"levels": 9}}, "ValueError: levels must be at most 2 for 4 layers"),
    (FORWARD, {"x": np.ones((2, 4))}, "TypeError: x must have the model's dtype float32, got float64"),
    (FORWARD, {"x": numbers(2, 3)}, r"ValueError: x must have shape \(B, 4\), got \(2, 3\)"),
    (FORWARD, {"x": numbers(0, 4)}, r"ValueError: x must hold at least one sample, got shape \(0, 4\)"),
    (BACKWARD, {"activations": numbers(2)}, "TypeError: activations must come from ResidualModel.forward, got ndarray"),
    (BACKWARD, {"method": "multigrid", "levels": None}, "method='multigrid' needs a model with a solver, such as"),
    (BACKWARD, {"method": "bptt"}, "method must be one of 'auto', 'multigrid', 'ordinary', 'linear'"),
    (BACKWARD, {"method": "ordinary", "levels": 2}, "levels is for method='truncated' only, got levels=2 with"),
    (BACKWARD, {"method": "truncated", "levels": None}, "levels must be an integer >= 0"),
]
