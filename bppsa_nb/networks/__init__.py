"""Operators in sequence: their analytic transposed Jacobians, LeNet-5, VGG-11, pruning, residual networks."""
