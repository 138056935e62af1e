"""Marks of what runs on a GPU, or on what stands in for one."""

import pytest

on_gpu = lambda *args: pytest.param(*args, marks=pytest.mark.gpu)  # noqa: E731
large = lambda *args: pytest.param(*args, marks=pytest.mark.full)  # noqa: E731
