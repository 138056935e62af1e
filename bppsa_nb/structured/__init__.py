"""Chains whose transposed Jacobians share weights: swept and scanned from their diagonals, without being stored."""
