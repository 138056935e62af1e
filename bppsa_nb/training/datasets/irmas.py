"""Download IRMAS: 6705 clips of eleven instruments (Bosch, Janer, Fuhrmann and Herrera, ISMIR 2012)."""

import hashlib
import os
import shutil
import zipfile
from pathlib import PurePosixPath

from bppsa_nb.machine import extras, files
from bppsa_nb.training.datasets.audio import LABELS

URL = "https://zenodo.org/records/1290750/files/IRMAS-TrainingData.zip"
KNOWN_HASH = "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"

_PIECE = 1 << 16  # bytes; a piece that does not come whole is lost
_TIMEOUT = 30  # seconds without a byte


def folder():
    """Return the training set's folder, or raise a FileNotFoundError that says how to download it."""
    target = _folder()
    if not target.is_dir():
        raise FileNotFoundError(f"IRMAS is not in {target}; `bppsa-nb fetch irmas` downloads it (3 GB)")
    return target


def fetch(url=URL, known_hash=KNOWN_HASH, progress=True):
    """Download and unpack the training set, unless it is there; return its folder, for `bppsa_nb.Instruments`.

    A download that was cut off goes on where it was, if the server can do that. The archive is deleted once it is
    unpacked, or if its checksum is not `known_hash` (after the algorithm's name and a colon), which is a ValueError.
    OSError if it cannot be downloaded or the disk is full, CorruptFileError if it is no archive; what came is kept.
    """
    target = _folder()
    with files.folder_lock(target.parent):  # another fetch is waited for
        if not target.is_dir():
            archive = target.with_name(f"{target.name}.zip.part")
            _download(url, archive, progress)
            algorithm = known_hash.partition(":")[0]
            with open(archive, "rb") as file:
                checksum = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
            if checksum != known_hash:
                archive.unlink()
                raise ValueError(f"{archive} has checksum {checksum}, expected {known_hash}; it is deleted")
            _unpack(archive, target, progress)
            archive.unlink()
    return target


def _folder():
    return files.root() / "data" / "downloads" / "IRMAS-TrainingData"


def _download(url, path, progress):
    """Append to a file what is missing at its end."""
    with extras.explained():
        import requests

    here = path.stat().st_size if path.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if response.status_code == requests.codes.range_not_satisfiable:
                return  # nothing follows
            response.raise_for_status()
            if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                raise requests.HTTPError(f"the server answers {response.status_code} {response.reason}")
            if response.status_code == requests.codes.ok:
                here = 0  # a server that sends all of it, whatever was asked for
            bar = {"total": here + (response.raw.length_remaining or 0), "initial": here, "desc": path.stem}
            bar |= {"unit": "B", "unit_scale": True, "disable": None if progress else True}  # None: no bar unwatched
            with open(path, "ab" if here else "wb") as file, extras.bar(**bar) as shown:
                for piece in response.iter_content(_PIECE):
                    file.write(piece)
                    shown.update(len(piece))
            if response.raw.length_remaining:
                raise requests.ConnectionError(f"the last {response.raw.length_remaining} bytes did not come")
    except requests.RequestException as error:
        came = path.stat().st_size if path.exists() else 0
        kept = f"{came} bytes are kept, the next fetch goes on from there"
        raise OSError(f"cannot download {url}: {error} ({kept})") from error


def _unpack(archive, target, progress):
    """Unpack the clips, and nothing else, into a new folder that appears only when it is complete."""
    unfinished = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was stopped
    with files.unpacking(f"{archive} cannot be unpacked"), zipfile.ZipFile(archive) as entries:
        bar = {"desc": "unpacking", "unit": "file", "disable": None if progress else True}
        for entry in extras.bar(entries.infolist(), **bar):
            path = PurePosixPath(entry.filename)
            if path.suffix.lower() == ".wav" and path.parent.name in LABELS and not path.name.startswith("."):
                entry.filename = f"{path.parent.name}/{path.name}"  # within the folder, whatever stood before it
                entries.extract(entry, unfinished)  # a link becomes a file
    os.replace(unfinished, target)
