"""Marks of parameters that only an outer ring of tests has, or a GPU; `docs/maintain.md` says what the rings are."""

import pytest

more = lambda *args: pytest.param(*args, marks=pytest.mark.outer)  # noqa: E731
large = lambda *args: pytest.param(*args, marks=pytest.mark.full)  # noqa: E731
on_gpu = lambda *args: pytest.param(*args, marks=pytest.mark.gpu)  # noqa: E731
