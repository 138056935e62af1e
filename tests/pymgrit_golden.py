"""How PyMGRIT converges, for machines without it: ``python tests/pymgrit_golden.py`` writes golden/ anew.

It needs PyMGRIT 1.0.6 (``pip install pymgrit``), and NumPy below 2.4, which it was written for.
"""

import itertools
from pathlib import Path

import numpy as np

# Layers, coarsening and levels; c divides the layers of every level but the coarsest, as PyMGRIT wants it.
HIERARCHIES = [(64, 4, 2), (64, 4, 3), (64, 2, 5), (81, 3, 4)]
CHOICES = itertools.product(("tanh", "relu"), HIERARCHIES, "VF", (False, True), ("F", "FCF"))
CASES = [(activation, *hierarchy, *how) for activation, hierarchy, *how in CHOICES]


def problem(depth):
    """Return weights, biases, step size and first state of the network that both solve."""
    rng = np.random.default_rng(depth)
    weights = rng.standard_normal((depth, 4, 4)) / 2
    return weights, rng.standard_normal((depth, 4)), 2 / depth, rng.standard_normal((3, 4))


def run_pymgrit(activation, depth, coarsening, levels, cycle, nested, relaxation):
    """Return the norm of the residual after every cycle, down to 1e-9; every state but the first begins as zero."""
    from pymgrit.core.application import Application
    from pymgrit.core.mgrit import Mgrit
    from pymgrit.core.vector import Vector

    weights, biases, h, u0 = problem(depth)
    function = np.tanh if activation == "tanh" else lambda z: np.maximum(z, 0)

    class State(Vector):
        def __init__(self, values):
            super().__init__()
            self.values = values

        def __add__(self, other):
            return State(self.values + other.values)

        def __sub__(self, other):
            return State(self.values - other.values)

        def __mul__(self, factor):
            return State(self.values * factor)

        def norm(self):
            return np.linalg.norm(self.values)

        def clone(self):
            return State(self.values.copy())

        def clone_zero(self):
            return State(np.zeros_like(self.values))

        def clone_rand(self):
            return State(np.random.default_rng(0).standard_normal(u0.shape))

        def get_values(self):
            return self.values

        def set_values(self, values):
            self.values = values

        pack, unpack = get_values, set_values

    class Layers(Application):
        def __init__(self, layers):
            super().__init__(t_interval=layers)
            self.vector_template, self.vector_t_start = State(np.zeros_like(u0)), State(u0)

        def step(self, u_start, t_start, t_stop):
            n, u = int(t_start), u_start.values
            return State(u + (t_stop - t_start) * h * function(u @ weights[n].T + biases[n]))

    layers = np.arange(depth + 1.0)
    solver = Mgrit(
        [Layers(layers[:: coarsening**level]) for level in range(levels)],
        **{"tol": 1e-9, "cycle_type": cycle, "nested_iteration": nested, "cf_iter": int(relaxation == "FCF")},
        **{"logging_lvl": 50, "output_lvl": 0},
    )
    return solver.solve()["conv"]


if __name__ == "__main__":
    histories = {"-".join(map(str, case)): run_pymgrit(*case) for case in CASES}
    np.savez_compressed(Path(__file__).parent / "golden" / "pymgrit.npz", **histories)
