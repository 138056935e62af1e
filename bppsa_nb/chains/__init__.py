"""Gradients along chains: stored, structured and listed ones, each in NumPy, compiled for CPUs, and in CUDA kernels."""
