from contextlib import ExitStack

import pytest
from serving import serving

from bppsa_nb.machine import files


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Give an empty project folder."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(files, "root", lambda: root)
    return root


@pytest.fixture
def serve():
    """Give a function that starts a server of pages, which ends with the test."""
    with ExitStack() as stack:
        yield lambda pages: stack.enter_context(serving(pages))
