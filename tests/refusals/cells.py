"""What recurrent networks and recurrences refuse."""

from dataclasses import replace

import numpy as np
from garbage import numbers

import bppsa_nb as bp

FORWARD, NEWTON, SPANS = "RNN.forward, numpy", "RNN.forward, newton, numpy", "LSTM.forward, lengths"
BACKWARD = "RNN.backward, numpy"
ONE = r"x must have shape \(T, B, 2\), got \(5, 2\); one step is x\[None\]; one sample is x\[:, None\]$"
OF_RNN, OF_GRU = (kind(2, 3, 4).forward(numbers(5, 2, 2), backend="numpy") for kind in (bp.RNN, bp.GRU))
WIDER = bp.RNN(2, 4, 4).forward(numbers(5, 2, 2), backend="numpy")
SHORT = replace(OF_RNN, x=OF_RNN.x[:2])
FEW = replace(OF_GRU, gates=OF_GRU.gates[:, :3])
TWO_METHODS = r"for method='chunked' and 'newton' only, got 3 with '\w+'"

ROWS = [
    (FORWARD, {"x": numbers(5, 2)}, ONE),
    (FORWARD, {"x": numbers(5, 2, 1)}, r"x must have shape \(T, B, 2\), got \(5, 2, 1\)$"),
    (FORWARD, {"x": np.ones((5, 2, 2))}, "TypeError: x must have the model's dtype float32, got float64"),
    (FORWARD, {"x": numbers(5, 0, 2), "h0": None}, "x must hold at least one sample"),
    (FORWARD, {"method": "magic"}, "method must be one of 'auto', 'linear', 'chunked', 'newton', got 'magic'"),
    (FORWARD, {"length": 3}, f"length is {TWO_METHODS}"),
    (FORWARD, {"method": "linear", "tol": 3}, f"tol is {TWO_METHODS}"),
    (FORWARD, {"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
    ("Trainer", {"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
    (NEWTON, {"most": 1.5}, "TypeError: most must be an integer, got 1.5"),
    (BACKWARD, {"method": "linear"}, "ValueError: levels is for method='truncated' only"),
    (BACKWARD, {"activations": None}, "TypeError: activations must come from RNN.forward, got NoneType"),
    (BACKWARD, {"activations": WIDER}, r"activations.hidden must have shape \(1, 6, 2, 3\), got \(1, 6, 2, 4\)"),
    (BACKWARD, {"activations": SHORT}, r"activations.hidden must have shape \(1, 3, 2, 3\), got \(1, 6, 2, 3\)"),
    (BACKWARD, {"activations": OF_GRU}, "TypeError: activations .* RNN.forward, got those of another kind of cell"),
    ("GRU.backward, cpu", {"activations": OF_RNN}, "activations .* GRU.forward, got those of another kind of cell"),
    ("GRU.backward, cpu", {"activations": FEW}, r"activations.gates .* \(1, 4, 5, 2, 3\), got \(1, 3, 5, 2, 3\)"),
    (SPANS, {"lengths": [5, 0]}, r"ValueError: lengths must be 1 to 5, the steps of x, got lengths\[1\] = 0"),
    (SPANS, {"lengths": [3, 6]}, r"ValueError: lengths must be 1 to 5, the steps of x, got lengths\[1\] = 6"),
    (SPANS, {"lengths": [5, 3, 1]}, r"ValueError: lengths must have shape \(2,\), got \(3,\)"),
    (SPANS, {"lengths": np.array([True, True])}, "TypeError: lengths must be integers, got bool"),
    (SPANS, {"resets": np.zeros((2, 5), bool)}, r"ValueError: resets must have shape \(5, 2\), got \(2, 5\)"),
    (SPANS, {"resets": np.zeros((5, 2), int)}, "TypeError: resets must hold True and False, got int64"),
    (SPANS, {"checkpoint_every": 2}, "ValueError: checkpoint_every must be None with lengths, got 2"),
    ("unroll", {"h0": np.zeros((0, 3))}, "h0 must be float32 or float64"),
    ("unroll", {"h0": np.full((2, 3), np.nan)}, "h0 must be finite"),
    ("unroll", {"inputs": numbers(9, 3, 1)}, r"inputs must be .* as h0 has 2 samples, got \(9, 3, 1\)"),
    ("unroll", {"step": None}, "TypeError: step must be a function of states and inputs, got NoneType"),
    ("unroll", {"step": lambda h, x: h[:1]}, r"step must return float32\[2, 3\] as it was given, got float32\[1, 3\]"),
    ("unroll", {"step": lambda h, x: h.astype("d")}, r"step must return float32\[\d, 3\] as it was given, got float64"),
    ("unroll", {"step": lambda h, x: h.__imul__(0.5)}, "output array is read-only"),
    ("unroll", {"step": lambda h, x: h + x.__imul__(0.5)}, "output array is read-only"),
    ("unroll", {"method": "newton", "jacobian": lambda h, x: h.__imul__(0.5)}, "output array is read-only"),
    ("unroll", {"method": "newton", "jacobian": lambda h, x: x.__imul__(0.5)}, "output array is read-only"),
    ("unroll", {"jacobian": lambda h, x: h}, "jacobian is for method='newton' only"),
    ("unroll", {"method": "newton"}, "jacobian must be a function, and h0 .* for method='newton', got None"),
    ("unroll", {"method": "newton", "jacobian": lambda h, x: h}, r"jacobian must return \[\d+, 3, 3\] of states"),
]
