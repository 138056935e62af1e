"""Texts and tables that tests are made of, in a .toml file beside them."""

import re
import tomllib
from pathlib import Path

import pytest


def beside(file):
    """Return what stands in the .toml file beside a module, whose `__file__` this is."""
    return tomllib.loads(Path(file).with_suffix(".toml").read_text(encoding="utf-8"))


def refuses(text, message, names):
    """Check that an expression, which knows these names, raises what is said, as in ``ValueError: x must ...``."""
    kinds = ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError
    with pytest.raises(kinds) as caught:
        eval(text, names)
    assert re.match(message, f"{caught.type.__name__}: {caught.value}")
