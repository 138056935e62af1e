import os
import sys
import tempfile

# Before anything imports Matplotlib: tests draw to memory, never to a window.
os.environ["MPLBACKEND"] = "Agg"
# What a user has calibrated is no matter of the tests.
os.environ["BPPSA_NB_CACHE"] = os.path.join(tempfile.gettempdir(), "bppsa_nb-tests-have-no-cache")

import pytest
from hypothesis import settings

# No example fails for being slow, or differs from one run to the next.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def rank_session():
    """MPI ranks that all tests of this process share: `on_mpi.Session`."""
    from on_mpi import Session  # which skips the test where there is no mpi4py

    with Session() as session:
        yield session


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
