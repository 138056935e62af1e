import os

# Before anything imports Matplotlib: tests draw to memory, never to a window.
os.environ["MPLBACKEND"] = "Agg"

import pytest


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from bppsa_nb import backends

    if backends.simulated() or not backends.cuda_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
