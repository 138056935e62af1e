import importlib
import sys

import pytest
from texts import beside

from bppsa_nb.papers import bppsa, experiments


@pytest.fixture
def toy(project, monkeypatch, committed):
    """Give an experiment called toy, in a project folder of its own."""
    package = project / "bppsa"
    package.mkdir()
    (package / "toy.py").write_text(beside(__file__)["TOY"])
    (package / "helper.py").write_text("def measure():\n    pass\n")
    monkeypatch.setattr(bppsa, "__path__", [*bppsa.__path__, str(package)])
    importlib.invalidate_caches()
    yield experiments.load("toy")
    del sys.modules["bppsa_nb.papers.bppsa.toy"]
    del bppsa.toy
