"""What tests share."""

import tomllib
from pathlib import Path

import pytest

more = lambda *args: pytest.param(*args, marks=pytest.mark.outer)  # noqa: E731


def beside(file):
    """Return what stands in the .toml file beside a module, whose `__file__` this is."""
    return tomllib.loads(Path(file).with_suffix(".toml").read_text(encoding="utf-8"))
