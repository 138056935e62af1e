"""Download IRMAS (Bosch et al., ISMIR 2012), CIFAR-10 and MNIST into `data/downloads/`, and find them there."""

import os
import shutil
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bppsa_nb.machine import files, process

_PIECE = 1 << 16  # bytes; a piece that does not come whole is lost


@dataclass(frozen=True)
class Set:
    """A data set, and where its authors or those who keep it offer it."""

    title: str
    size: str  # of what is downloaded
    url: str  # what the names of files are appended to
    md5: dict  # the files' checksums by their names
    unpacked: str = ""  # the folder that is in an archive, where it is needed unpacked


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SETS = {key: Set(**fields) for key, fields in _TABLES.items()}


def find(key):
    """Return the file of a set that was fetched, or its folder; a FileNotFoundError says how to fetch it."""
    wanted = SETS[key]
    paths = [_folder() / name for name in ([wanted.unpacked] if wanted.unpacked else wanted.md5)]
    place = paths[0] if len(paths) == 1 else paths[0].parent
    if not all(path.exists() for path in paths):
        how = f"`bppsa-nb fetch {key}` downloads it ({wanted.size}). Where its own files are here, give their folder"
        raise FileNotFoundError(f"{wanted.title} is not in {place}; {how} instead")
    return place


def fetch(key, progress=True):
    """Download a set unless it is here, and return where it is, as `find` does.

    A download that was cut off goes on where it was, if the server can do that. A file whose checksum is wrong is
    deleted, which is a ValueError. OSError if one cannot be downloaded or the disk is full; what came is kept.
    """
    wanted, folder = SETS[key], _folder()
    with files.folder_lock(folder):  # another fetch is waited for
        if wanted.unpacked:
            with suppress(FileNotFoundError):
                return find(key)
        for name, md5 in wanted.md5.items():
            _download(wanted.url + name, folder / name, md5, progress)
        if wanted.unpacked:
            _unpack(folder / name, folder / wanted.unpacked)
    return find(key)


def _folder():
    return files.root() / "data" / "downloads"


def _download(url, path, md5, progress):
    """Download a file unless it is here; until it is whole and right, what came of it has another name."""
    with process.explained():
        import pooch

    if path.exists() and pooch.file_hash(path, "md5") == md5:
        return
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with open(part, "ab") as file:

        def begin(response, **_):
            if response.status_code == 200:  # all of it, whatever was asked for
                file.truncate(0)

        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if (here := file.tell()) else {})
        bar = progress and sys.stderr.isatty() and find_spec("tqdm") is not None
        download = pooch.HTTPDownloader(bar, _PIECE, headers=headers, hooks={"response": begin})
        try:
            download(url, file, None)
        except OSError as error:
            if getattr(getattr(error, "response", None), "status_code", None) != 416:  # nothing follows what is here
                kept = f"{part.stat().st_size} bytes are kept, the next fetch goes on from there"
                raise OSError(f"cannot download {url}: {error} ({kept})") from error
    if (came := pooch.file_hash(part, "md5")) != md5:
        part.unlink()
        raise ValueError(f"{url} has checksum md5:{came}, expected md5:{md5}; what came is deleted")
    os.replace(part, path)


def _unpack(archive, folder):
    """Unpack a folder, which appears only when it is complete, and delete its archive."""
    import pooch

    unfinished = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was stopped
    pooch.Unzip(extract_dir=unfinished.name)(str(archive), "download", None)  # nothing leaves it; links become files
    os.replace(unfinished / folder.name, folder)
    shutil.rmtree(unfinished)
    archive.unlink()
