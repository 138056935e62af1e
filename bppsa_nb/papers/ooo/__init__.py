"""Out-of-order backprop: its figures, and what we scheduled, simulated and ran beside them."""
