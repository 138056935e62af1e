import errno
import json
import os
import socket
import stat

import numpy as np
import pytest

from bppsa_nb.machine import files


def test_root_is_the_checkout():
    assert (files.root() / "pyproject.toml").is_file()
    assert (files.root() / "bppsa_nb" / "machine" / "files.py").is_file()


def test_root_of_an_installed_copy_is_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "bppsa_nb" / "machine" / "files.py"))
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


def write(path, content=b"new"):
    with files.atomic_write(path) as file:
        file.write(content)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    target, link, again = tmp_path / "disk" / "run", tmp_path / "link", tmp_path / "again"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
    link.symlink_to(os.path.join("disk", "run"))
    again.symlink_to(link)
    write(again)
    assert again.is_symlink() and link.is_symlink() and not target.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["again", "disk", "link"] and os.listdir(target.parent) == ["run"]


def test_links_that_lead_nowhere_are_refused(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop"):
        write(loop)
    assert loop.is_symlink()


def bound(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make, error", [(os.mkfifo, OSError), (bound, OSError), (os.mkdir, IsADirectoryError)])
@pytest.mark.parametrize("use", [write, files.check_writable])
def test_what_is_no_file_is_not_replaced(tmp_path, monkeypatch, make, error, use):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = "there"
    make(path)
    before = os.lstat(path)
    with pytest.raises(error, match=path) as refused:
        use(path)
    assert refused.value.errno == (errno.EISDIR if make is os.mkdir else errno.EINVAL)
    after = os.lstat(path)
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert os.listdir() == ["there"]


@pytest.mark.parametrize("use", [write, files.check_writable])
def test_a_device_is_not_replaced(use):
    ours, theirs = os.openpty()  # and not /dev/null, which would be gone for all of the machine, were this to fail
    try:
        path = os.ttyname(theirs)
        with pytest.raises(OSError, match=f"a device, a pipe or a socket cannot: '{path}'"):
            use(path)
        assert stat.S_ISCHR(os.stat(path).st_mode)
    finally:
        os.close(ours)
        os.close(theirs)


def test_permissions_stay(tmp_path, monkeypatch):
    path = tmp_path / "run"
    path.write_bytes(b"old")
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    path.chmod(0o400)
    if os.access(path, os.W_OK):  # for root, who may all the same
        write(path, b"root's")
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        path.write_bytes(b"new")
        monkeypatch.setattr(files.os, "access", lambda path, mode: mode != os.W_OK)
    for use in (write, files.check_writable):
        with pytest.raises(PermissionError, match=str(path)):
            use(path)
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    "path, error",
    [("", ValueError), ("a\0", ValueError), (None, TypeError), (3, TypeError), (b"run", TypeError), ([], TypeError)],
)
@pytest.mark.parametrize("use", [write, files.check_writable, lambda path: files.read_npz(path, "nobody")])
def test_what_names_no_file_is_refused(path, error, use):
    with pytest.raises(error, match="^path must be .*, got"):
        use(path)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=f"{os.strerror(errno.ENOSPC)}: '{tmp_path / 'run'}'"):
        write(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    def deny(*args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a name that nobody knows")

    monkeypatch.setattr(files, "NamedTemporaryFile", deny)
    for use in (write, files.check_writable):
        with pytest.raises(PermissionError, match=f": '{tmp_path / 'run'}'"):
            use(tmp_path / "run")


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path):
    files.check_writable(tmp_path / "a" / "b" / "run")
    (tmp_path / "run").write_bytes(b"old")
    before = (tmp_path / "run").stat()
    files.check_writable(tmp_path / "run")
    assert (tmp_path / "run").stat() == before
    assert os.listdir(tmp_path) == ["run"]
    with pytest.raises(NotADirectoryError):
        files.check_writable(tmp_path / "run" / "deeper")


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    left = [".run.abc_1234.tmp", ".run.zzzzzzzz.tmp"]
    others = [".run.abc.tmp", ".run.x.abcd1234.tmp", ".walk.abcd1234.tmp", ".run.abcd1234.tmp.swp", "run.abcd1234.tmp"]
    for name in left + others:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".run.begun000.tmp").write_bytes(b"")  # by one that has not locked it yet
    (tmp_path / ".run.link0000.tmp").symlink_to("run.abcd1234.tmp")
    alive = tmp_path / ".run.alive000.tmp"
    alive.write_bytes(b"half")
    stay = [*others, ".run.begun000.tmp", ".run.link0000.tmp"]
    with open(alive, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(tmp_path / "run")
        assert sorted(os.listdir(tmp_path)) == sorted([*stay, alive.name, "run"])
    write(tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == sorted([*stay, "run"])


def test_two_may_write_a_file_at_once(tmp_path):
    path = tmp_path / "run"
    with files.atomic_write(path) as slow:
        slow.write(b"slow")
        slow.flush()
        write(path, b"quick")
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow" and os.listdir(tmp_path) == ["run"]


def test_files_that_belong_together_are_written_one_after_the_other(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "tables"
    folder.mkdir()
    other = os.open(folder, os.O_RDONLY)
    try:
        with files.one_at_a_time(folder), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
    with files.one_at_a_time(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()


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


def test_a_lock_is_waited_for_or_not(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "lock"
    path.touch()
    with files.locked(path):
        with pytest.raises(BlockingIOError), files.locked(path, wait=False):
            pass
    with files.locked(path, wait=False):
        pass
    assert files.checksum(path, "md5") == "d41d8cd98f00b204e9800998ecf8427e"
