import pytest

from bppsa_nb.machine import files


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Give an empty project folder."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(files, "root", lambda: root)
    return root
