"""Rows of tests that are tables of texts, from the TOML file beside them."""

import tomllib
from pathlib import Path


def rows(file, name, of=None):
    """Return the rows of this name from the file of a test's name, or of another."""
    path = Path(file).with_suffix(".toml") if of is None else Path(file).with_name(of)
    return tomllib.loads(path.read_text(encoding="utf-8"))[name]
