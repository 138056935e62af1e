import os
import pathlib
import sys
import tempfile

# Before anything imports Matplotlib: tests draw to memory, never to a window.
os.environ["MPLBACKEND"] = "Agg"
# What a user has calibrated is no matter of the tests.
os.environ["BPPSA_NB_CACHE"] = os.path.join(tempfile.gettempdir(), "bppsa_nb-tests-have-no-cache")

import pytest
from hypothesis import settings

from bppsa_nb import experiments, files

# No example fails for being slow, or differs from one run to the next.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    """Keep what was measured in this checkout from tests: they read references, or record in a folder of their own."""
    folders = experiments._folders

    def guarded(names):
        found = folders(names)
        if (files.root() / "pyproject.toml").is_file():
            nowhere = pathlib.Path(os.devnull)  # nothing can be read below it, and nothing written
            found = [nowhere if path.name == experiments.MEASURED else path for path in found]
        return found

    monkeypatch.setattr(experiments, "_folders", guarded)


@pytest.fixture(autouse=True)
def closed_figures():
    """Leave no figure open for the next test: Matplotlib warns of the twentieth."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from bppsa_nb import backends

    if backends.simulated() or not backends.cuda_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
