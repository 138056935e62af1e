import errno
import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from texts import beside

from bppsa_nb.machine import files


def test_root_is_the_checkout_or_where_an_installed_copy_works(tmp_path, monkeypatch):
    assert all((files.root() / name).is_file() for name in ("pyproject.toml", "bppsa_nb/machine/files.py"))
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "bppsa_nb" / "machine" / "files.py"))
    monkeypatch.chdir(tmp_path)
    assert files.root() == tmp_path


def write(path, content=b"new"):
    with files.atomic_write(path) as file:
        file.write(content)


@pytest.mark.parametrize("mode, content", [("wb", b"\x00\r\n\xff"), ("w", "δO ⋄ J\r\n\n")])
def test_atomic_write_makes_folders_and_writes_what_it_was_given(tmp_path, mode, content):
    path = tmp_path / "a" / "b" / "result"
    with files.atomic_write(path, mode) as file:
        file.write(content)
    assert path.read_bytes() == (content if mode == "wb" else content.encode("utf-8"))
    assert os.listdir(path.parent) == ["result"]


def test_a_file_is_replaced_at_the_end_and_at_once(tmp_path, monkeypatch):
    path, synced = tmp_path / "table.csv", []
    path.write_bytes(b"old")
    monkeypatch.setattr(files.os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    with open(path, "rb") as reader:
        with files.atomic_write(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
        assert reader.read() == b"old"  # another file has its name now: nothing was written over it
    assert path.read_bytes() == b"new" and synced == [path.stat().st_ino]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, error):
    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    with pytest.raises(error), files.atomic_write(path) as file:
        file.write(b"half of it")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_writer_that_is_killed_leaves_the_old_file_whole(tmp_path, when):
    write(tmp_path / "run", b"old")
    command = [sys.executable, "-c", beside(__file__)["KILLED"], tmp_path / "run", when]
    assert subprocess.run(command, cwd=files.root()).returncode == -signal.SIGKILL
    assert (tmp_path / "run").read_bytes() == b"old"
    write(tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == b"new"


def test_two_may_write_a_file_at_once(tmp_path):
    path = tmp_path / "run"
    with files.atomic_write(path) as slow:
        slow.write(b"slow")
        write(path, b"quick")
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow" and os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    target, link, again = tmp_path / "disk" / "run", tmp_path / "link", tmp_path / "again"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link.symlink_to(os.path.join("disk", "run"))
    again.symlink_to(link)
    write(again)
    assert again.is_symlink() and link.is_symlink() and target.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["again", "disk", "link"] and os.listdir(target.parent) == ["run"]


@pytest.mark.parametrize("use", [write, files.check_writable])
def test_a_folder_is_not_replaced(tmp_path, use):
    (tmp_path / "there").mkdir()
    with pytest.raises(IsADirectoryError, match=str(tmp_path / "there")):
        use(tmp_path / "there")
    assert os.listdir(tmp_path) == ["there"]


def test_permissions_stay(tmp_path):
    path, plain = tmp_path / "run", tmp_path / "plain"
    plain.write_bytes(b"")
    write(path)
    assert path.stat().st_mode == plain.stat().st_mode  # of any new file
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_errors_name_the_file_that_was_meant(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def deny(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a name that nobody knows")

    path = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(OSError, match=f"{os.strerror(errno.ENOSPC)}: '{path}'"):
        patch.setattr(files.os, "fsync", full)
        write(path)
    with pytest.raises(OSError, match=f"too long: '{tmp_path / ('x' * 250)}'$"):  # with what is put around it
        write(tmp_path / ("x" * 250))
    with monkeypatch.context() as patch, pytest.raises(PermissionError, match=f": '{path}'"):
        patch.setattr(files, "TemporaryFile", deny)
        files.check_writable(path)
    assert os.listdir(tmp_path) == []


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path):
    files.check_writable(tmp_path / "a" / "b" / "run")
    (tmp_path / "run").write_bytes(b"old")
    before = (tmp_path / "run").stat()
    files.check_writable(tmp_path / "run")
    assert (tmp_path / "run").stat() == before and os.listdir(tmp_path) == ["run"]
    with pytest.raises(NotADirectoryError):
        files.check_writable(tmp_path / "run" / "deeper")


def test_json_round_trip_with_numpy_scalars(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"T": np.int64(1000), "seconds": np.float32(0.5), "ok": np.bool_(True), "work": "Θ(log n)"})
    assert files.read_json(path) == {"T": 1000, "seconds": 0.5, "ok": True, "work": "Θ(log n)"}
    before = path.read_text(encoding="utf-8")
    assert "Θ" in before and before.endswith("}\n")
    with pytest.raises(TypeError, match="ndarray"):
        files.write_json(path, {"new": np.zeros(2)})
    assert path.read_text(encoding="utf-8") == before and json.loads(before)["T"] == 1000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_arrays_are_not_waited_for_at_a_pipe(tmp_path):
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    ours = os.open(path, os.O_RDWR)  # holds a few bytes, so that a reader would fail, and not wait for ever
    try:
        os.write(ours, b"PK\3\4" * 4)
        with pytest.raises(ValueError, match="pipe.npz must be a regular file"):
            files.read_npz(path, "nobody")
    finally:
        os.close(ours)
