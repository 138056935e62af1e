import hashlib
import http.server
import io
import os
import stat
import threading
import zipfile
from itertools import islice

import numpy as np
import pytest

from bppsa_nb.training.datasets import irmas
from bppsa_nb.training.datasets.audio import LABELS, Instruments

CLIPS = {f"{label}/[{label}][nod]0001__{i}.wav": f"{label} {i}".encode() * 500 for label in LABELS for i in (1, 2)}
PART = "IRMAS-TrainingData.zip.part"


def archive(entries=(), clips=CLIPS):
    """Pack clips, and junk as the real archive may hold it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in clips.items():
            packed.writestr(f"IRMAS-TrainingData/{name}", content)
        packed.writestr("IRMAS-TrainingData/README.txt", "read me")
        packed.writestr("__MACOSX/IRMAS-TrainingData/cel/._[cel][nod]0001__1.wav", "a Mac was here")
        packed.writestr("IRMAS-TrainingData/tuba/[tub][nod]0001__1.wav", "no such instrument")
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


class Server:
    """Serves one file on loopback, as well or as badly as it is told."""

    def __init__(self, content):
        self.content, self.known_hash = content, "md5:" + hashlib.md5(content).hexdigest()
        self.ranges, self.cut_off_at, self.status, self.requests = True, None, None, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/IRMAS-TrainingData.zip"

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append(wanted)
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        found = 416 if first >= len(self.content) else 206 if wanted and self.ranges else 200
        handler.send_response(self.status or found)
        handler.send_header("Content-Length", str(max(0, len(self.content) - first)))
        handler.end_headers()
        handler.wfile.write(self.content[first : self.cut_off_at])

    def fetch(self, **arguments):
        return irmas.fetch(**{"url": self.url, "known_hash": self.known_hash, "progress": False} | arguments)


@pytest.fixture
def serve(project, monkeypatch):
    monkeypatch.setattr(irmas, "_PIECE", 1000)
    servers = []

    def start(content):
        server = Server(content)
        thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def downloads(project):
    return sorted(path.name for path in (project / "data" / "downloads").iterdir())


def check(folder, project):
    assert folder == irmas.folder() == project / "data" / "downloads" / "IRMAS-TrainingData"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == CLIPS
    assert downloads(project) == ["IRMAS-TrainingData"]


def test_the_source_is_zenodo_s():
    assert irmas.URL.startswith("https://zenodo.org/records/1290750/")
    assert irmas.KNOWN_HASH == "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"


def test_fetch_downloads_checks_and_unpacks_once(project, serve):
    server = serve(archive())
    with pytest.raises(FileNotFoundError, match="IRMAS is not in .*; `bppsa-nb fetch irmas` downloads it"):
        irmas.folder()
    for _ in range(2):
        check(server.fetch(), project)
    assert server.requests == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_cut_off_goes_on(project, serve, ranges):
    server = serve(archive())
    server.ranges, cuts = ranges, list(range(5000, len(server.content), 5000))
    for cut in cuts:
        server.cut_off_at = cut
        with pytest.raises(OSError, match=rf"cannot download http://127.*\({cut} bytes are kept, the next fetch goes"):
            server.fetch()
        assert downloads(project) == [PART]
    server.cut_off_at = None
    check(server.fetch(), project)
    assert server.requests == [None, *(f"bytes={cut}-" for cut in cuts)]


def test_a_download_that_was_cut_off_and_tampered_with_is_refused(project, serve):
    server = serve(archive())
    server.cut_off_at = 10000
    with pytest.raises(OSError, match="10000 bytes are kept"):
        server.fetch()
    part = project / "data" / "downloads" / PART
    part.write_bytes(b"?" + part.read_bytes()[1:])
    server.cut_off_at = None
    with pytest.raises(ValueError, match=f"has checksum md5:.*, expected {server.known_hash}; it is deleted"):
        server.fetch()
    assert downloads(project) == []
    check(server.fetch(), project)


def test_what_is_no_archive_is_named(project, serve):
    with pytest.raises(irmas.files.CorruptFileError, match=f"{PART} cannot be unpacked: File is not a zip file"):
        serve(archive()[:-30]).fetch()


@pytest.mark.parametrize("stop", [lambda: None, KeyboardInterrupt])
def test_a_response_that_ends_early_without_a_word_is_noticed(project, serve, monkeypatch, stop):
    import requests

    server = serve(archive())
    pieces = requests.Response.iter_content

    def few(self, size):
        yield from islice(pieces(self, size), 3)
        if stop():
            raise stop

    with monkeypatch.context() as patch:
        patch.setattr(requests.Response, "iter_content", few)
        with pytest.raises((OSError, KeyboardInterrupt)):
            server.fetch()
    check(server.fetch(), project)
    assert server.requests == [None, "bytes=3000-"]


def test_one_fetch_at_a_time(project, serve, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    server, unpack = serve(archive()), irmas._unpack

    def look(archive, *arguments):
        folder = os.open(archive.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)
        unpack(archive, *arguments)

    monkeypatch.setattr(irmas, "_unpack", look)
    check(server.fetch(), project)


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_download_that_was_complete_but_not_checked(project, serve, more):
    server = serve(archive())
    part = project / "data" / "downloads" / PART
    part.parent.mkdir(parents=True)
    part.write_bytes(server.content + more)
    if more:
        with pytest.raises(ValueError, match="it is deleted"):
            server.fetch()
    check(server.fetch(), project)


@pytest.mark.parametrize("status", [204, 300, 404, 503])
def test_a_server_that_refuses_is_explained_and_costs_nothing(project, serve, status):
    server = serve(archive())
    server.cut_off_at = 1000
    with pytest.raises(OSError, match="1000 bytes are kept"):
        server.fetch()
    server.status = status
    with pytest.raises(OSError, match=f"cannot download {server.url}: .*{status} .*1000 bytes are kept"):
        server.fetch()
    with pytest.raises(OSError, match="cannot download http://127.0.0.1:1/"):
        server.fetch(url="http://127.0.0.1:1/")
    server.status = server.cut_off_at = None
    check(server.fetch(), project)


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
def test_nothing_is_unpacked_out_of_the_folder(project, serve, name, within):
    server = serve(archive([(name, "/etc/passwd")]))
    folder = server.fetch()
    new = {path.relative_to(project.parent).as_posix() for path in project.parent.rglob("*") if not path.is_dir()}
    place = folder.relative_to(project.parent).as_posix()
    assert new == {f"{place}/{clip}" for clip in [*CLIPS, *([within] if within else [])]}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_unpacking_does_not_look_complete(project, serve, monkeypatch, error):
    server, copy, copied = serve(archive()), irmas.shutil.copyfileobj, []

    def stop(source, target):
        copied.append(source)
        if len(copied) == 5:
            raise error
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(irmas.shutil, "copyfileobj", stop)
        with pytest.raises(type(error)):
            server.fetch()
    with pytest.raises(FileNotFoundError):
        irmas.folder()
    assert downloads(project) == [".IRMAS-TrainingData.tmp", PART]
    check(server.fetch(), project)
    assert server.requests == [None, f"bytes={len(server.content)}-"]  # the archive was there


def test_what_was_fetched_is_a_data_set(project, serve):
    import soundfile

    clips = {}
    for i, name in enumerate(CLIPS):
        buffer = io.BytesIO()
        sound = 0.1 * np.random.default_rng(i).standard_normal((132299, 2))
        soundfile.write(buffer, sound, 44100, "PCM_16", format="WAV")
        clips[name] = buffer.getvalue()
    data = Instruments(serve(archive(clips=clips)).fetch(), progress=False)
    assert data.x.shape == (259, 22, 38) and data.data == "real"
