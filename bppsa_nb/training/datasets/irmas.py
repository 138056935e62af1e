"""Download IRMAS: 6705 clips of eleven instruments (Bosch, Janer, Fuhrmann and Herrera, ISMIR 2012)."""

import lzma
import os
import re
import shutil
import stat
import sys
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from bppsa_nb.machine import extras, files
from bppsa_nb.training.datasets.audio import LABELS

URL = "https://zenodo.org/records/1290750/files/IRMAS-TrainingData.zip"
KNOWN_HASH = "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"

_PIECE = 1 << 16  # bytes; a piece that does not come whole is lost
_TIMEOUT = 30  # seconds without a byte

# What zipfile raises for archives that are damaged, encrypted or packed in a way that it does not know.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, UnicodeDecodeError)


def folder():
    """Return the training set's folder, or raise a FileNotFoundError that says how to download it."""
    target = _folder()
    if not target.is_dir():
        raise FileNotFoundError(f"IRMAS is not in {target}; `bppsa-nb fetch irmas` downloads it (3 GB)")
    return target


def fetch(url=URL, known_hash=KNOWN_HASH, progress=True):
    """Download and unpack the training set, unless it is there.

    A download that was cut off goes on where it was, if the server can do that. The archive, whose checksum is
    `known_hash` (after the algorithm's name and a colon), is deleted once it is unpacked.

    Returns
    -------
    pathlib.Path
        A folder for `bppsa_nb.Instruments`.

    Raises
    ------
    OSError
        If the server cannot be reached, the download is cut off, the disk is full or another fetch is running. What
        has come is kept.
    ValueError
        If the archive has another checksum, which deletes it; or if it cannot be unpacked or holds what it should not,
        which does not, since another download would bring the same.
    """
    target = _folder()
    if target.is_dir():
        return target
    archive = target.with_name(target.name + ".zip")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = target.with_name(f".{target.name}.lock")  # a file that stays; that it is locked ends with the process
        lock.touch()
        try:
            stack.enter_context(files.locked(lock, wait=False))
        except BlockingIOError as error:
            raise OSError(f"another fetch is running: it holds {lock}") from error
        if target.is_dir():  # another fetch has just ended
            return target
        if not archive.exists():
            part = archive.with_name(archive.name + ".part")
            if not _download(url, part, progress) and _checksum(part, known_hash) != known_hash:
                raise OSError(
                    f"cannot download {url}: it may be cut off, since its checksum is not {known_hash}, and the server "
                    f"did not say how long it is ({_kept(part)})"
                )
            os.replace(part, archive)
        _check(archive, known_hash)
        _unpack(archive, target, progress)
        archive.unlink()
    return target


def _folder():
    return files.root() / "data" / "downloads" / "IRMAS-TrainingData"


def _download(url, part, progress):
    """Download into `part`, and tell whether it is known to be whole; what is cut off stays there for the next call."""
    with extras.explained():
        import requests

    here = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # the bytes as they are, so that they can be counted
    if here:
        headers["Range"] = f"bytes={here}-"
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            begins, size = _content_range(response)
            if here and response.status_code == requests.codes.range_not_satisfiable:
                if size in (None, here):
                    return True  # nothing follows these bytes; the checksum tells whether they are right
                begins = None
            else:
                response.raise_for_status()
                if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
                    raise requests.HTTPError(f"the server answers {response.status_code} {response.reason}")
                if response.status_code == requests.codes.ok:
                    begins, size = 0, None  # whatever was asked for
            if begins in (0, here):
                return _receive(response, begins, size, part, progress)
        if not here:
            raise requests.ConnectionError("the server sends a part that was not asked for")
        print(f"{part} is thrown away: the server does not go on at its end. Starting again", file=sys.stderr)
        part.unlink()
        return _download(url, part, progress)
    except (requests.RequestException, ValueError) as error:  # the latter where a redirection leads to no address
        raise OSError(f"cannot download {url}: {error} ({_kept(part)})") from error


def _kept(part):
    came = part.stat().st_size if part.exists() else 0
    return f"{came} bytes are kept, the next fetch goes on from there" if came else "nothing is kept"


def _content_range(response):
    """Find where a response begins in the file, and the file's size; None for what is not said."""
    match = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)?", response.headers.get("Content-Range", ""))
    return [number and int(number) for number in match.groups()] if match else [None, None]


def _receive(response, begins, size, part, progress):
    import requests

    length = response.headers.get("Content-Length", "")
    total = begins + int(length) if re.fullmatch("[0-9]+", length) else size
    bar = {"total": total, "initial": begins, "desc": part.stem, "unit": "B", "unit_scale": True}
    bar["disable"] = None if progress else True  # None: no bar where nobody watches
    with files.naming(part), open(part, "ab" if begins else "wb") as file, extras.bar(**bar) as shown:
        for piece in response.iter_content(_PIECE):
            file.write(piece)
            shown.update(len(piece))
    if total not in (None, part.stat().st_size):
        raise requests.ConnectionError(f"{total} bytes were announced")
    return total is not None


def _checksum(path, known_hash):
    algorithm = known_hash.partition(":")[0]
    return f"{algorithm}:{files.checksum(path, algorithm)}"


def _check(archive, known_hash):
    checksum = _checksum(archive, known_hash)
    if checksum != known_hash:
        archive.unlink()
        raise ValueError(f"{archive} has checksum {checksum}, expected {known_hash}; it is deleted")


def _unpack(archive, target, progress):
    """Unpack the clips, and nothing else, into a new folder that appears only when it is complete."""
    unfinished = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    try:
        with zipfile.ZipFile(archive) as entries:
            targets = _targets(entries.infolist(), archive)
            for label in LABELS:
                (unfinished / label).mkdir(parents=True)
            bar = {"desc": "unpacking", "unit": "clip", "disable": None if progress else True}
            for name, entry in extras.bar(targets.items(), **bar):
                place = unfinished / name
                with entries.open(entry) as source, files.naming(place), open(place, "xb") as file:
                    shutil.copyfileobj(source, file)
        os.replace(unfinished, target)
    except _UNREADABLE as error:
        raise ValueError(f"{archive} cannot be unpacked: {str(error) or type(error).__name__}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _targets(entries, archive):
    """Choose what to unpack: where to inside the folder, and the entry."""
    chosen = {}
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        outside = path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", entry.filename)
        if outside or stat.S_ISLNK(entry.external_attr >> 16):
            raise ValueError(f"{archive} was not unpacked: its entry {entry.filename!r} leads out of the folder")
        clip = len(path.parts) > 1 and path.parts[-2] in LABELS and path.suffix.lower() == ".wav"
        if clip and not path.name.startswith(".") and "__MACOSX" not in path.parts:
            target = Path(*path.parts[-2:])
            if target in chosen:
                raise ValueError(f"{archive} was not unpacked: it holds {target} twice")
            chosen[target] = entry
    missing = set(LABELS) - {target.parent.name for target in chosen}
    if missing:
        raise ValueError(f"{archive} was not unpacked: it holds no clips of {', '.join(sorted(missing))}")
    return chosen
