import hashlib
import http.server
import io
import stat
import threading
import zipfile
from itertools import islice

import numpy as np
import pytest

from bppsa_nb.machine import files
from bppsa_nb.training.datasets import irmas
from bppsa_nb.training.datasets.audio import LABELS

CLIPS = {f"{label}/[{label}][nod]0001__{i}.wav": f"{label} {i}".encode() * 500 for label in LABELS for i in (1, 2)}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    monkeypatch.setattr(irmas, "_PIECE", 1000)
    return tmp_path


def archive(entries=(), clips=CLIPS):
    """Pack clips, and junk as the real archive may hold it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in clips.items():
            packed.writestr(f"IRMAS-TrainingData/{name}", content)
        packed.writestr("IRMAS-TrainingData/README.txt", "read me")
        packed.writestr("IRMAS-TrainingData/cel/.DS_Store", "a Mac was here")
        packed.writestr("IRMAS-TrainingData/cel/._[cel][nod]0001__1.wav", "a Mac was here")
        packed.writestr("__MACOSX/IRMAS-TrainingData/cel/[cel][nod]0001__1.wav", "a Mac was here")
        packed.writestr("IRMAS-TrainingData/tuba/[tub][nod]0001__1.wav", "no such instrument")
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


class Server:
    """Serves one file on loopback, as well or as badly as it is told."""

    def __init__(self, content):
        self.content, self.known_hash = content, "md5:" + hashlib.md5(content).hexdigest()
        self.ranges, self.cut_off_at, self.status = True, None, None
        self.announced, self.says_size, self.shift = True, True, 0
        self.length, self.location = None, None
        self.requests = []
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
        if self.status and self.status < 400:
            handler.send_response(self.status)
            if self.location is not None:
                handler.send_header("Location", self.location)
            handler.end_headers()
            return
        if self.status:
            handler.send_error(self.status)
            return
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if first >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Length", "0")
            if self.says_size:
                handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.end_headers()
            return
        first -= min(first, self.shift)  # a server that does not send what was asked for
        handler.send_response(206 if wanted and self.ranges else 200)
        if wanted and self.ranges:
            handler.send_header("Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}")
        if self.announced:
            handler.send_header("Content-Length", self.length or str(len(self.content) - first))
        handler.end_headers()
        handler.wfile.write(self.content[first : self.cut_off_at])

    def fetch(self, **arguments):
        return irmas.fetch(**{"url": self.url, "known_hash": self.known_hash, "progress": False} | arguments)


@pytest.fixture
def serve():
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
    folder = project / "data" / "downloads"
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [name for name in found if name != ".IRMAS-TrainingData.lock"]  # which stays


def check(folder, project):
    assert folder == irmas.folder() == project / "data" / "downloads" / "IRMAS-TrainingData"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == CLIPS
    assert downloads(project) == ["IRMAS-TrainingData"]


def test_the_source_is_zenodo_s():
    assert irmas.URL.startswith("https://zenodo.org/records/1290750/")
    assert irmas.KNOWN_HASH == "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"


@pytest.mark.parametrize("announced", [True, False])
def test_fetch_downloads_checks_and_unpacks(project, serve, announced):
    server = serve(archive())
    server.announced = announced
    with pytest.raises(FileNotFoundError, match="IRMAS is not in .*; `bppsa-nb fetch irmas` downloads it"):
        irmas.folder()
    check(server.fetch(), project)
    assert server.requests == [None]


def test_a_second_fetch_does_nothing(project, serve):
    server = serve(archive())
    server.fetch()
    check(server.fetch(), project)
    assert server.requests == [None]


def test_a_wrong_checksum_deletes_the_download(project, serve):
    server = serve(archive())
    wrong = "md5:" + "0" * 32
    for _ in range(2):
        with pytest.raises(ValueError, match=f"has checksum {server.known_hash}, expected {wrong}; it is deleted"):
            server.fetch(known_hash=wrong)
        assert downloads(project) == []
    assert server.requests == [None, None]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_cut_off_goes_on(project, serve, ranges):
    server = serve(archive())
    server.ranges, server.cut_off_at = ranges, 10000
    with pytest.raises(OSError, match=r"cannot download http://127.*10000 bytes are kept, the next fetch goes on"):
        server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip.part"]
    server.cut_off_at = None
    check(server.fetch(), project)
    assert server.requests == [None, "bytes=10000-"]


def test_a_download_may_be_cut_off_often(project, serve):
    server = serve(archive())
    for cut in range(5000, len(server.content), 5000):
        server.cut_off_at = cut
        with pytest.raises(OSError, match=f"{cut} bytes are kept"):
            server.fetch()
    server.cut_off_at = None
    check(server.fetch(), project)
    assert server.requests[1:] == [f"bytes={cut}-" for cut in range(5000, len(server.content), 5000)]


def test_a_response_that_ends_early_without_a_word_is_noticed(project, serve, monkeypatch):
    import requests

    server = serve(archive())
    pieces = requests.Response.iter_content
    with monkeypatch.context() as patch:
        patch.setattr(requests.Response, "iter_content", lambda self, size: islice(pieces(self, size), 3))
        with pytest.raises(OSError, match=f"{len(server.content)} bytes were announced .3000 bytes are kept"):
            server.fetch()
    check(server.fetch(), project)


def leave(project, content):
    part = project / "data" / "downloads" / "IRMAS-TrainingData.zip.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content)


@pytest.mark.parametrize("says_size", [True, False])
def test_a_download_that_was_complete_but_not_checked(project, serve, says_size):
    server = serve(archive())
    server.says_size = says_size
    leave(project, server.content)
    check(server.fetch(), project)
    assert server.requests == [f"bytes={len(server.content)}-"]


def test_leftovers_that_are_too_long_are_thrown_away(project, serve, capsys):
    server = serve(archive())
    leave(project, server.content + b"more")
    check(server.fetch(), project)
    assert server.requests == [f"bytes={len(server.content) + 4}-", None]
    assert "IRMAS-TrainingData.zip.part is thrown away: the server does not go on" in capsys.readouterr().err


def test_leftovers_that_may_be_too_long_are_found_by_the_checksum(project, serve):
    server = serve(archive())
    server.says_size = False
    leave(project, server.content + b"more")
    with pytest.raises(ValueError, match="it is deleted"):
        server.fetch()
    check(server.fetch(), project)


@pytest.mark.parametrize("shift", [1, 700, 1000])
def test_a_server_that_goes_on_elsewhere(project, serve, capsys, shift):
    server = serve(archive())
    server.shift = shift
    leave(project, server.content[:1000])
    check(server.fetch(), project)
    again = shift < 1000  # what begins at the beginning is as good
    assert server.requests == ["bytes=1000-"] + [None] * again
    assert ("is thrown away" in capsys.readouterr().err) == again


def test_one_fetch_at_a_time(project, serve, monkeypatch):
    pytest.importorskip("fcntl")
    server, inside, said = serve(archive()), irmas._check, []

    def second(*arguments):
        with pytest.raises(OSError, match="another fetch is running: it holds .*IRMAS-TrainingData.lock") as stop:
            server.fetch()
        said.append(stop)
        inside(*arguments)

    monkeypatch.setattr(irmas, "_check", second)
    check(server.fetch(), project)
    assert len(said) == len(server.requests) == 1


def test_ctrl_c_during_the_check_keeps_the_download(project, serve, monkeypatch):
    server = serve(archive())

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.hashlib, "file_digest", stop)
        with pytest.raises(KeyboardInterrupt):
            server.fetch()
    check(server.fetch(), project)
    assert server.requests == [None]


def test_ctrl_c_keeps_what_has_come(project, serve, monkeypatch):
    import requests

    server = serve(archive())
    pieces = requests.Response.iter_content

    def stop(self, size):
        for i, piece in enumerate(pieces(self, size)):
            if i == 3:
                raise KeyboardInterrupt
            yield piece

    with monkeypatch.context() as patch:
        patch.setattr(requests.Response, "iter_content", stop)
        with pytest.raises(KeyboardInterrupt):
            server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip.part"]
    check(server.fetch(), project)
    assert server.requests == [None, "bytes=3000-"]


@pytest.mark.parametrize("status", [404, 429, 503])
def test_a_server_that_refuses_is_explained(project, serve, status):
    server = serve(archive())
    server.status = status
    with pytest.raises(OSError, match=f"cannot download {server.url}: {status} .*nothing is kept"):
        server.fetch()
    assert downloads(project) == []


@pytest.mark.parametrize("length", ["many", "-5", "1e3", "12 13", "\xb2"])
def test_a_length_that_is_none_is_not_believed(project, serve, length):
    server = serve(archive())
    server.length = length
    check(server.fetch(), project)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_of_unknown_length_that_was_cut_off_goes_on(project, serve, ranges):
    server = serve(archive())
    server.announced, server.ranges, server.cut_off_at = False, ranges, 10000
    with pytest.raises(OSError, match=r"may be cut off, .* how long it is \(10000 bytes are kept, the next fetch"):
        server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip.part"]
    server.cut_off_at = None
    check(server.fetch(), project)
    assert server.requests == [None, "bytes=10000-"]


def test_a_wrong_checksum_of_what_had_no_length_is_found_the_next_time(project, serve):
    server, wrong = serve(archive()), "md5:" + "0" * 32
    server.announced = False
    with pytest.raises(OSError, match=f"its checksum is not {wrong}"):
        server.fetch(known_hash=wrong)
    with pytest.raises(ValueError, match=f"has checksum {server.known_hash}, expected {wrong}; it is deleted"):
        server.fetch(known_hash=wrong)
    assert downloads(project) == []


@pytest.mark.parametrize(
    "status, location",
    [
        *((302, place) for place in (None, "", "http://[::1", "http://.127.0.0.1/", "http://127.0.0.1:99999/")),
        *((302, place) for place in ("ftp://127.0.0.1/", "file:///dev/null", "http://\xff/", "IRMAS-TrainingData.zip")),
        *((status, None) for status in (204, 300, 304)),
    ],
)
def test_a_server_that_leads_nowhere_is_explained(project, serve, status, location):
    server = serve(archive())
    server.status, server.location = status, location
    with pytest.raises(OSError, match=f"cannot download {server.url}: .*nothing is kept"):
        server.fetch()
    assert downloads(project) == []


def test_no_server_is_explained(project, serve):
    server = serve(archive())
    url = server.url.replace(str(server.http.server_port), "1")
    with pytest.raises(OSError, match="cannot download http://127.0.0.1:1/"):
        server.fetch(url=url)


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "IRMAS-TrainingData/cel/../../../x.wav",
        "IRMAS-TrainingData/cel/..",
        "/x",
        "/cel/x.wav",
        "..\\x",
        "C:/cel/x.wav",
        "C:x",
        link("IRMAS-TrainingData/cel/x.wav"),
        link("x"),
    ],
    ids=lambda name: name if isinstance(name, str) else f"link {name.filename}",
)
def test_an_entry_that_leads_out_is_refused_before_anything_is_unpacked(project, serve, name):
    server = serve(archive([(name, "/etc/passwd")]))
    before = {path for path in project.parent.rglob("*")}
    with pytest.raises(ValueError, match=r"IRMAS-TrainingData\.zip was not unpacked: its entry .* leads out"):
        server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip"]
    new = {path.name for path in project.parent.rglob("*")} - {path.name for path in before}
    assert new <= {"data", "downloads", "IRMAS-TrainingData.zip", ".IRMAS-TrainingData.lock"}


def test_an_archive_of_something_else_is_refused(project, serve):
    server = serve(archive(clips={name: content for name, content in CLIPS.items() if name[:3] not in ("org", "cel")}))
    with pytest.raises(ValueError, match="was not unpacked: it holds no clips of cel, org"):
        server.fetch()
    (project / "data" / "downloads" / "IRMAS-TrainingData.zip").unlink()
    server = serve(b"this is no archive")
    with pytest.raises(ValueError, match="IRMAS-TrainingData.zip cannot be unpacked: File is not a zip file"):
        server.fetch()
    assert "IRMAS-TrainingData" not in downloads(project)


def test_a_damaged_entry_leaves_no_folder(project, serve):
    content = bytearray(archive())
    at = content.index(CLIPS["org/[org][nod]0001__1.wav"])
    content[at] ^= 1
    server = serve(bytes(content))
    with pytest.raises(ValueError, match="cannot be unpacked: Bad CRC-32"):
        server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip"]


def odd(change):
    """Pack a deflated clip more, then change the archive: its bytes, where the clip's entry begins, and its record."""
    name, buffer = "IRMAS-TrainingData/cel/odd__1.wav", io.BytesIO(archive())
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, bytes(range(256)) * 20)
        begins = packed.getinfo(name).header_offset
    content = bytearray(buffer.getvalue())
    change(content, begins, content.rindex(name.encode()) - 46)
    return bytes(content)


def encrypt(content, begins, record):
    content[begins + 6] |= 1
    content[record + 8] |= 1


def pack_otherwise(content, begins, record):
    content[begins + 8] = content[record + 10] = 99


def claim_too_much(content, begins, record):
    content[record + 10] = 0  # not compressed
    content[record + 20 : record + 28] = 2 * (1 << 20).to_bytes(4, "little")


def spoil(content, begins, record):
    at = begins + 30 + len("IRMAS-TrainingData/cel/odd__1.wav")
    content[at : at + 8] = b"\xff" * 8


@pytest.mark.parametrize("change", [encrypt, pack_otherwise, claim_too_much, spoil], ids=lambda change: change.__name__)
def test_an_odd_archive_is_named_and_kept(project, serve, change):
    server = serve(odd(change))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"IRMAS-TrainingData\.zip cannot be unpacked: \w"):
            server.fetch()
        assert downloads(project) == ["IRMAS-TrainingData.zip"]
    assert server.requests == [None]


def test_an_archive_with_a_clip_twice_is_refused(project, serve):
    with pytest.warns(UserWarning, match="Duplicate name"):
        server = serve(archive([("IRMAS-TrainingData/cel/[cel][nod]0001__1.wav", "again")]))
    with pytest.raises(ValueError, match=r"was not unpacked: it holds cel/\[cel\]\[nod\]0001__1\.wav twice"):
        server.fetch()
    assert downloads(project) == ["IRMAS-TrainingData.zip"]


@pytest.mark.parametrize("killed", [True, False])
def test_an_interrupted_unpacking_does_not_look_complete(project, serve, monkeypatch, killed):
    server = serve(archive())
    copied = []

    def stop(source, target):
        copied.append(source)
        if len(copied) == 5:
            raise KeyboardInterrupt
        target.write(source.read())

    with monkeypatch.context() as patch:
        patch.setattr(irmas.shutil, "copyfileobj", stop)
        if killed:  # nobody tidies up
            patch.setattr(irmas.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(KeyboardInterrupt):
            server.fetch()
    with pytest.raises(FileNotFoundError):
        irmas.folder()
    assert downloads(project) == [".IRMAS-TrainingData.tmp"] * killed + ["IRMAS-TrainingData.zip"]
    check(server.fetch(), project)
    assert server.requests == [None]  # the archive was there


def test_a_full_disk_is_not_hidden(project, serve, monkeypatch):
    server = serve(archive())

    def full(source, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(irmas.shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left on device: .*__1.wav'"):
            server.fetch()
    check(server.fetch(), project)


def test_what_was_fetched_is_a_data_set(project, serve):
    import soundfile

    from bppsa_nb.training.datasets.audio import Instruments

    clips = {}
    for i, name in enumerate(CLIPS):
        buffer = io.BytesIO()
        sound = 0.1 * np.random.default_rng(i).standard_normal((132299, 2))
        soundfile.write(buffer, sound, 44100, "PCM_16", format="WAV")
        clips[name] = buffer.getvalue()
    data = Instruments(serve(archive(clips=clips)).fetch(), progress=False)
    assert data.x.shape == (259, 22, 38) and data.data == "real"
