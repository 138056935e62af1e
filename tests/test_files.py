import json
import os
import stat

import numpy as np
import pytest

from bppsa_nb import files


def test_root_is_the_checkout():
    assert (files.root() / "pyproject.toml").is_file()
    assert (files.root() / "bppsa_nb" / "files.py").is_file()


def test_root_of_an_installed_copy_is_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "bppsa_nb" / "files.py"))
    monkeypatch.chdir(tmp_path)
    assert files.root() == tmp_path


@pytest.mark.parametrize("mode, content", [("wb", b"\x00\r\n\xff"), ("w", "δO ⋄ J\r\n\n")])
def test_atomic_write_makes_folders_and_writes_what_it_was_given(tmp_path, mode, content):
    path = tmp_path / "a" / "b" / "result"
    with files.atomic_write(path, mode) as file:
        file.write(content)
    written = path.read_bytes()
    assert written == (content if mode == "wb" else content.encode("utf-8"))
    assert os.listdir(path.parent) == ["result"]


def test_atomic_write_shows_nothing_before_the_end(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    with files.atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, error):
    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    with pytest.raises(error), files.atomic_write(path) as file:
        file.write(b"half of it")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_atomic_write_gives_the_permissions_of_any_new_file(tmp_path):
    plain, atomic = tmp_path / "plain", tmp_path / "atomic"
    plain.write_bytes(b"")
    with files.atomic_write(atomic) as file:
        file.write(b"")
    assert stat.S_IMODE(atomic.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_atomic_write_names_a_bad_mode(tmp_path):
    with pytest.raises(ValueError, match=r"mode must be .* got 'a'"), files.atomic_write(tmp_path / "x", "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_json_round_trip_with_numpy_scalars(tmp_path):
    value = {"T": np.int64(1000), "seconds": np.float32(0.5), "ok": np.bool_(True), "work": "Θ(log n)"}
    files.write_json(tmp_path / "x.json", value)
    assert files.read_json(tmp_path / "x.json") == {"T": 1000, "seconds": 0.5, "ok": True, "work": "Θ(log n)"}
    assert "Θ" in (tmp_path / "x.json").read_text(encoding="utf-8")


def test_json_refuses_arrays_and_leaves_the_old_file(tmp_path):
    files.write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(TypeError, match="ndarray"):
        files.write_json(tmp_path / "x.json", {"new": np.zeros(2)})
    assert json.loads((tmp_path / "x.json").read_text()) == {"old": 1}
