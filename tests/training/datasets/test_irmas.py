import hashlib
import io
import os
import stat
import zipfile
from functools import partial
from itertools import islice

import pytest
import requests
from damage import contents

from bppsa_nb.machine.files import CorruptFileError
from bppsa_nb.training.datasets import irmas
from bppsa_nb.training.datasets.audio import LABELS

CLIPS = {f"{label}/[{label}][nod]0001__{i}.wav": f"{label} {i}".encode() * 500 for label in LABELS for i in (1, 2)}
NAME = "IRMAS-TrainingData.zip"
PART = f"{NAME}.part"


def archive(*entries):
    """Pack clips, and junk as the real archive may hold it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in CLIPS.items():
            packed.writestr(f"IRMAS-TrainingData/{name}", content)
        packed.writestr("IRMAS-TrainingData/README.txt", "read me")
        packed.writestr("IRMAS-TrainingData/cel/notes.txt", "a note")
        packed.writestr("__MACOSX/IRMAS-TrainingData/cel/._[cel][nod]0001__1.wav", "a Mac was here")
        packed.writestr("IRMAS-TrainingData/tuba/[tub][nod]0001__1.wav", "no such instrument")
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


ARCHIVE = archive()


@pytest.fixture
def start(project, serve, monkeypatch):
    """Give a function that serves an archive, and returns the server and what fetches from it."""
    monkeypatch.setattr(irmas, "_PIECE", 1000)

    def start(content=ARCHIVE):
        server, known_hash = serve({NAME: content}), "md5:" + hashlib.md5(content).hexdigest()
        return server, partial(irmas.fetch, url=server.url + NAME, known_hash=known_hash, progress=False)

    return start


def downloads(project):
    return sorted(path.name for path in (project / "data" / "downloads").iterdir())


def check(folder, project):
    assert folder == irmas.folder() == project / "data" / "downloads" / "IRMAS-TrainingData"
    assert contents(folder) == CLIPS and downloads(project) == ["IRMAS-TrainingData"]


def test_the_source_is_zenodo_s():
    assert irmas.URL.startswith("https://zenodo.org/records/1290750/")
    assert irmas.KNOWN_HASH == "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"


def test_fetch_downloads_checks_and_unpacks_once(project, start):
    server, fetch = start()
    with pytest.raises(FileNotFoundError, match="IRMAS is not in .*; `bppsa-nb fetch irmas` downloads it"):
        irmas.folder()
    for _ in range(2):
        check(fetch(), project)
    assert server.asked == [NAME]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_cut_off_goes_on(project, start, ranges):
    server, fetch = start()
    server.ranges, cuts = ranges, list(range(5000, len(ARCHIVE), 5000))
    for cut in cuts:
        server.cut_off_at = cut
        with pytest.raises(OSError, match=rf"cannot download http://127.*\({cut} bytes are kept, the next fetch goes"):
            fetch()
        assert downloads(project) == [PART]
    server.cut_off_at = None
    for status in (204, 300, 404, 503):  # which costs nothing of what is here
        server.pages[NAME] = status
        with pytest.raises(OSError, match=f"cannot download {server.url}.*: .*{status} .*{cuts[-1]} bytes are kept"):
            fetch()
    with pytest.raises(OSError, match="cannot download http://127.0.0.1:1/"):
        fetch(url="http://127.0.0.1:1/")
    server.pages[NAME] = ARCHIVE
    check(fetch(), project)
    assert server.asked == [NAME, *(f"{NAME} bytes={cut}-" for cut in [*cuts, *4 * cuts[-1:]])]


@pytest.mark.parametrize("came, bad", [(ARCHIVE, 0), (ARCHIVE + b"more", 1), (b"?" + ARCHIVE[1:10000], 1)])
def test_what_came_before_is_checked(project, start, came, bad):
    _, fetch = start()
    (project / "data" / "downloads").mkdir(parents=True)
    (project / "data" / "downloads" / PART).write_bytes(came)
    if bad:
        expected = fetch.keywords["known_hash"]
        with pytest.raises(ValueError, match=f"{PART} has checksum md5:.*, expected {expected}; it is deleted"):
            fetch()
        assert downloads(project) == []
    check(fetch(), project)


def test_what_is_no_archive_is_named(start):
    with pytest.raises(CorruptFileError, match=f"{PART} cannot be unpacked: File is not a zip file"):
        start(ARCHIVE[:-30])[1]()


@pytest.mark.parametrize("stop", [lambda: None, KeyboardInterrupt])
def test_a_response_that_ends_early_without_a_word_is_noticed(project, start, monkeypatch, stop):
    server, fetch = start()
    pieces = requests.Response.iter_content

    def few(self, size):
        yield from islice(pieces(self, size), 3)
        if stop():
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(requests.Response, "iter_content", few)
        with pytest.raises((OSError, KeyboardInterrupt)):
            fetch()
    check(fetch(), project)
    assert server.asked == [NAME, f"{NAME} bytes=3000-"]


def test_one_fetch_at_a_time(project, start, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    unpack = irmas._unpack

    def look(archive, *arguments):
        folder = os.open(archive.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(folder)
        unpack(archive, *arguments)

    monkeypatch.setattr(irmas, "_unpack", look)
    check(start()[1](), project)


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name, within",
    [
        *((name, None) for name in ("../x.wav", "a/cel/../../../x.wav", "/x.wav", "C:x.wav", "cel/..")),
        *((name, "cel/x.wav") for name in ("/cel/x.wav", "../cel/x.wav", "C:/cel/x.wav", link("a/cel/x.wav"))),
    ],
    ids=str,
)
def test_nothing_is_unpacked_out_of_the_folder(project, start, name, within):
    folder = start(archive((name, "/etc/passwd")))[1]()
    place = folder.relative_to(project.parent).as_posix()
    assert contents(project.parent).keys() == {f"{place}/{clip}" for clip in [*CLIPS, *([within] if within else [])]}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_unpacking_does_not_look_complete(project, start, monkeypatch, error):
    (server, fetch), copy, copied = start(), irmas.shutil.copyfileobj, []

    def stop(source, target):
        copied.append(source)
        if len(copied) == 5:
            raise error
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(irmas.shutil, "copyfileobj", stop)
        with pytest.raises(type(error)):
            fetch()
    with pytest.raises(FileNotFoundError):
        irmas.folder()
    assert downloads(project) == [unfinished := ".IRMAS-TrainingData.tmp", PART]
    (project / "data" / "downloads" / unfinished / "cel" / "x.wav").write_text("of another archive")
    check(fetch(), project)
    assert server.asked == [NAME, f"{NAME} bytes={len(ARCHIVE)}-"]  # the archive was there
