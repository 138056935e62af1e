import hashlib
import io
import stat
import zipfile
from dataclasses import replace

import pytest
from damage import contents
from tiny_sets import CIFAR10, MNIST, pack

from bppsa_nb.training.datasets import downloads
from bppsa_nb.training.datasets.audio import LABELS

CLIPS = {f"{label}/[{label}][nod]0001__{i}.wav": f"{label} {i}".encode() * 500 for label in LABELS for i in (1, 2)}
NAME = "IRMAS-TrainingData.zip"
PART = f"{NAME}.part"


def archive(*entries):
    """Pack clips, and what a Mac leaves beside them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in CLIPS.items():
            packed.writestr(f"IRMAS-TrainingData/{name}", content)
        packed.writestr("__MACOSX/IRMAS-TrainingData/cel/._[cel][nod]0001__1.wav", "a Mac was here")
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


ARCHIVE = archive()


@pytest.fixture
def start(project, serve, monkeypatch):
    """Give a function that serves the files of a set in the place of whoever does, and returns the server."""
    monkeypatch.setattr(downloads, "_PIECE", 1000)

    def start(key="irmas", **files):
        server = serve(files := files or {NAME: ARCHIVE})
        md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
        monkeypatch.setitem(downloads.SETS, key, replace(downloads.SETS[key], url=server.url, md5=md5))
        return server

    return start


def there(project):
    return sorted(path.name for path in (project / "data" / "downloads").iterdir())


def fetch(key="irmas"):
    return downloads.fetch(key, progress=False)


def check(folder, project):
    assert folder == downloads.find("irmas") == project / "data" / "downloads" / "IRMAS-TrainingData"
    assert contents(folder) == CLIPS and there(project) == ["IRMAS-TrainingData"]


def test_fetch_downloads_checks_and_unpacks_once(project, start):
    server = start()
    with pytest.raises(FileNotFoundError, match=r"IRMAS is not in .*; `bppsa-nb fetch irmas` downloads it \(3 GB\)"):
        downloads.find("irmas")
    for _ in range(2):
        check(fetch(), project)
    assert server.asked == [NAME]


@pytest.mark.parametrize("key, place, files", [
    ("cifar10", "cifar-10-binary.tar.gz", {"cifar-10-binary.tar.gz": pack(CIFAR10)}),
    ("mnist", "mnist", {f"mnist/{name}": content for name, content in MNIST.items()}),
])  # fmt: skip
def test_images_are_fetched_and_what_is_damaged_is_fetched_again(project, start, key, place, files):
    server, first = start(key, **files), next(iter(files))
    path = fetch(key)
    assert path == downloads.find(key) == project / "data" / "downloads" / place
    (project / "data" / "downloads" / first).write_bytes(b"damaged")
    assert fetch(key) == path and contents(project / "data" / "downloads") == files
    assert server.asked == [*files, first]
    (project / "data" / "downloads" / first).unlink()
    with pytest.raises(FileNotFoundError, match=f"`bppsa-nb fetch {key}` downloads it"):
        downloads.find(key)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_was_cut_off_goes_on(project, start, monkeypatch, ranges):
    server = start()
    server.ranges, cuts = ranges, list(range(5000, len(ARCHIVE), 5000))
    for cut in cuts:
        server.cut_off_at = cut
        with pytest.raises(OSError, match=rf"cannot download http://127.*\({cut} bytes are kept, the next fetch goes"):
            fetch()
        assert there(project) == [PART]
    server.cut_off_at = None
    for status in (404, 503):  # which costs nothing of what is here
        server.pages[NAME] = status
        with pytest.raises(OSError, match=f"cannot download {server.url}.*: .*{status} .*{cuts[-1]} bytes are kept"):
            fetch()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="cannot download http://127.0.0.1:1/"):
        patch.setitem(downloads.SETS, "irmas", replace(downloads.SETS["irmas"], url="http://127.0.0.1:1/"))
        fetch()
    server.pages[NAME] = ARCHIVE
    check(fetch(), project)
    assert server.asked == [NAME, *(f"{NAME} bytes={cut}-" for cut in [*cuts, *2 * cuts[-1:]])]


@pytest.mark.parametrize("came, bad", [(ARCHIVE, 0), (ARCHIVE + b"more", 1), (b"?" + ARCHIVE[1:10000], 1)])
def test_what_came_before_is_checked(project, start, came, bad):
    start()
    (project / "data" / "downloads").mkdir(parents=True)
    (project / "data" / "downloads" / PART).write_bytes(came)
    if bad:
        expected = hashlib.md5(ARCHIVE).hexdigest()
        with pytest.raises(ValueError, match=f"{NAME} has checksum md5:.*, expected md5:{expected}; what came is del"):
            fetch()
        assert there(project) == []
    check(fetch(), project)


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


OUTSIDE = "../x.wav", "a/cel/../../../x.wav", "/x.wav", "C:x.wav", "cel/..", link("IRMAS-TrainingData/cel/x.wav")


@pytest.mark.parametrize("name", OUTSIDE, ids=str)
def test_nothing_is_unpacked_out_of_the_folder(project, start, name):
    start(**{NAME: archive((name, "/etc/passwd"))})
    folder = fetch()
    place = folder.relative_to(project.parent).as_posix()
    assert contents(project.parent).keys() - {f"{place}/cel/x.wav"} == {f"{place}/{clip}" for clip in CLIPS}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_unpacking_does_not_look_complete(project, start, monkeypatch, error):
    server, copy, copied = start(), zipfile.shutil.copyfileobj, []

    def stop(source, target):
        copied.append(source)
        if len(copied) == 5:
            raise error
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.shutil, "copyfileobj", stop)
        with pytest.raises(type(error)):
            fetch()
    with pytest.raises(FileNotFoundError):
        downloads.find("irmas")
    assert there(project) == [unfinished := ".IRMAS-TrainingData.tmp", NAME]
    (project / "data" / "downloads" / unfinished / "IRMAS-TrainingData" / "x.wav").write_text("of another archive")
    check(fetch(), project)
    assert server.asked == [NAME]  # the archive was there
