"""The examples that readers copy: the README's, those of the how-to pages, and those in docstrings."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import bppsa_nb

REPO = Path(__file__).parents[1]
PACKAGE = Path(bppsa_nb.__file__).parent  # beside the tests, or installed
EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


def python_in(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


PAGES = [path for path in sorted((REPO / "docs").glob("*.md")) if python_in(path)]


def needed(path):
    return [pytest.mark.peers] if "torch" in path.relative_to(PACKAGE).parts else []


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=needed(path), id=path.relative_to(PACKAGE).as_posix()) for path in EXAMPLES]
)
def test_docstrings(path):
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted and not results.failed


def test_readme(capsys):
    (example,) = python_in(REPO / "README.md")
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert abs(names["by_scan"] - names["step_by_step"]).max() < 1e-12
    assert names["history"].loss.shape == (64,)
    assert "blelloch" in capsys.readouterr().out


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages(path):
    names = {}
    for example in python_in(path):
        exec(compile(example, path.name, "exec"), names)
    if path.stem == "own_cell":
        by_loop = bppsa_nb.backprop(names["chain"], np.ones((4, 20)), method="linear")
        assert abs(names["gradients"] - by_loop).max() < 1e-12
    if path.stem == "gpu":
        with pytest.raises(AssertionError, match="race: reverse, .* reads in line|race: reverse, .* writes in line"):
            names["test_reverse"]()


def test_every_public_name_loads():
    for name in bppsa_nb.__all__:
        assert getattr(bppsa_nb, name).__doc__
    assert set(bppsa_nb.__all__) <= set(dir(bppsa_nb))
    with pytest.raises(AttributeError, match="no attribute 'backprob'"):
        bppsa_nb.backprob  # noqa: B018
