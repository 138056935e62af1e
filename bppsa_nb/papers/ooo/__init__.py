"""Out-of-order backprop: its figures, and what we scheduled, simulated and ran beside them."""

HEADING = "Scheduling optimization techniques for neural network training (out-of-order backprop)"
