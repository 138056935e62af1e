"""Texts and tables that tests are made of, in a .toml file beside them."""

import tomllib
from pathlib import Path


def beside(file):
    """Return what stands in the .toml file beside a module, whose `__file__` this is."""
    return tomllib.loads(Path(file).with_suffix(".toml").read_text(encoding="utf-8"))
