"""Recurrent cells: forward pass, transposed Jacobians and parameter gradients, in NumPy and compiled."""
