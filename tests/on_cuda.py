"""Marks of what runs on the CUDA simulator, and on a GPU."""

import pytest

on_simulator = lambda *args: pytest.param(*args, marks=pytest.mark.simulator)  # noqa: E731
on_gpu = lambda *args: pytest.param(*args, marks=pytest.mark.gpu)  # noqa: E731
