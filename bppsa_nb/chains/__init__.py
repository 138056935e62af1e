"""Gradients along chains: stored and structured ones, in NumPy, compiled, and in CUDA kernels; and listed ones."""
