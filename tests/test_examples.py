"""The examples that readers copy: the README's, those of the how-to pages, and those in docstrings."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from texts import beside

import bppsa_nb

REPO = Path(__file__).parents[1]
PACKAGE = Path(bppsa_nb.__file__).parent  # beside the tests, or installed
EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


def python_in(path, tag="python"):
    return re.findall(rf"```{tag}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


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
def test_pages(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in python_in(path):
        exec(compile(example, path.name, "exec"), names)
    if path.stem == "own_cell":
        by_loop = bppsa_nb.backprop(names["chain"], np.ones((4, 20)), method="linear")
        assert abs(names["gradients"] - by_loop).max() < 1e-12
    if path.stem == "gpu":
        with pytest.raises(AssertionError, match="race: reverse, .* reads in line|race: reverse, .* writes in line"):
            names["test_reverse"]()


@pytest.mark.peers
def test_pytorch_makes_the_jacobians_of_a_step_as_the_page_says():
    import torch

    (example,) = python_in(REPO / "docs" / "own_chain.md", "py")
    W, states, inputs = torch.rand(3, 3), torch.rand(5, 2, 3), torch.rand(4, 2, 3)
    exec(example, names := {"step": lambda h, x: W @ h * x, "states": states, "inputs": inputs})
    torch.testing.assert_close(names["jacobians_T"], W.T * inputs[:, :, None])


@pytest.mark.parametrize("module", ["", ".distributed", ".multigrid", ".schedule", ".sparse"])
def test_every_public_name_loads(module):
    module = importlib.import_module(f"bppsa_nb{module}")
    for name in module.__all__:
        assert getattr(module, name).__doc__
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'backprob'"):
        module.backprob  # noqa: B018


WRONG = beside(__file__)["wrong"]


@pytest.mark.outer
def test_types_are_right_in_all_examples_and_tell_what_is_wrong(tmp_path):
    """By what editors read of an installed package: the mark `py.typed`, stubs and annotations."""
    pages = {path.stem: "\n".join(python_in(path)) for path in (REPO / "README.md", *PAGES)}
    programs = *(REPO / "examples").glob("*.py"), Path(__file__).with_name("on_core.py")
    pages |= {path.stem: path.read_text(encoding="utf-8") for path in programs}
    imports = "import bppsa_nb as bp, bppsa_nb.torch, numpy as np", "from bppsa_nb import graphs, schedule, sparse"
    pages["wrong"] = "\n".join([*imports, *WRONG])
    for name, text in pages.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", REPO / "pyproject.toml", "."]
    own = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    *found, _ = done.stdout.splitlines()
    expected = [f"wrong.py:{line}: error: {said}" for line, said in enumerate(WRONG.values(), 3)]
    assert len(found) == len(expected) and all(map(str.startswith, found, expected)), done.stdout
