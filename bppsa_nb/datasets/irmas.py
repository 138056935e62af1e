"""Download IRMAS: 6705 clips of eleven instruments (Bosch, Janer, Fuhrmann and Herrera, ISMIR 2012)."""

import os
import re
import shutil
import stat
import zipfile
from functools import partial
from pathlib import Path, PurePosixPath

from bppsa_nb import files
from bppsa_nb.datasets.audio import LABELS

URL = "https://zenodo.org/records/1290750/files/IRMAS-TrainingData.zip"
KNOWN_HASH = "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"

_PIECE = 1 << 16  # bytes; a piece that does not come whole is lost
_TIMEOUT = 30  # seconds without a byte


def folder():
    """Find the training set.

    Returns
    -------
    pathlib.Path
        A folder for `bppsa_nb.Instruments`.

    Raises
    ------
    FileNotFoundError
        If it was not downloaded; the message says how to.
    """
    found = _folder()
    if not found.is_dir():
        raise FileNotFoundError(f"IRMAS is not in {found}; `bppsa-nb fetch irmas` downloads it (3 GB)")
    return found


def fetch(url=URL, known_hash=KNOWN_HASH, progress=True):
    """Download and unpack the training set, unless it is there.

    A download that was cut off goes on where it was, if the server can do that. The archive is deleted once it is
    unpacked.

    Parameters
    ----------
    url : str
        Where the archive is.
    known_hash : str
        Its checksum, after the algorithm's name and a colon.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    pathlib.Path
        A folder for `bppsa_nb.Instruments`.

    Raises
    ------
    OSError
        If the server cannot be reached, the download is cut off or the disk is full. What has come is kept.
    ValueError
        If the archive has another checksum, which deletes it, or holds what it should not.
    """
    import pooch

    found = _folder()
    if found.is_dir():
        return found
    archive = found.with_name(found.name + ".zip")
    downloader = partial(_download, archive.with_name(archive.name + ".part"), progress)
    pooch.retrieve(url, known_hash, archive.name, archive.parent, downloader=downloader)
    _unpack(archive, found, progress)
    archive.unlink()
    return found


def _folder():
    return files.root() / "data" / "downloads" / "IRMAS-TrainingData"


def _download(part, progress, url, output_file, pooch):
    """Download for pooch; what is cut off stays in `part` for the next call."""
    import requests
    from tqdm.auto import tqdm

    here = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # the bytes as they are, so that they can be counted
    if here:
        headers["Range"] = f"bytes={here}-"
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if here and response.status_code == requests.codes.range_not_satisfiable:
                os.replace(part, output_file)  # nothing follows these bytes; the checksum tells whether they are right
                return
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                here = 0  # the server begins at the beginning, whatever was asked for
            length = response.headers.get("Content-Length")
            total = here + int(length) if length else None
            bar = {"total": total, "initial": here, "desc": part.stem, "unit": "B", "unit_scale": True}
            bar["disable"] = None if progress else True  # None: no bar where nobody watches
            with open(part, "ab" if here else "wb") as file, tqdm(**bar) as shown:
                for piece in response.iter_content(_PIECE):
                    file.write(piece)
                    shown.update(len(piece))
            if total not in (None, part.stat().st_size):
                raise requests.ConnectionError(f"{total} bytes were announced")
    except requests.RequestException as error:
        came = part.stat().st_size if part.exists() else 0
        kept = f"{came} bytes are kept, the next fetch goes on from there" if came else "nothing has come yet"
        raise OSError(f"cannot download {url}: {error} ({kept})") from error
    os.replace(part, output_file)


def _unpack(archive, found, progress):
    """Unpack the clips, and nothing else, into a new folder that appears only when it is complete."""
    from tqdm.auto import tqdm

    unfinished = found.with_name(f".{found.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    try:
        with zipfile.ZipFile(archive) as entries:
            targets = _targets(entries.infolist(), archive)
            for label in LABELS:
                (unfinished / label).mkdir(parents=True)
            for entry, target in tqdm(targets, desc="unpacking", unit="clip", disable=None if progress else True):
                with entries.open(entry) as source, open(unfinished / target, "xb") as file:
                    shutil.copyfileobj(source, file)
        os.replace(unfinished, found)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is damaged: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _targets(entries, archive):
    """Choose what to unpack: entries, and where each goes inside the folder."""
    chosen = []
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        outside = path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", entry.filename)
        if outside or stat.S_ISLNK(entry.external_attr >> 16):
            raise ValueError(f"{archive} was not unpacked: its entry {entry.filename!r} leads out of the folder")
        clip = len(path.parts) > 1 and path.parts[-2] in LABELS and path.suffix == ".wav"
        if clip and not path.name.startswith(".") and "__MACOSX" not in path.parts:
            chosen.append((entry, Path(*path.parts[-2:])))
    missing = set(LABELS) - {target.parent.name for _, target in chosen}
    if missing:
        raise ValueError(f"{archive} was not unpacked: it holds no clips of {', '.join(sorted(missing))}")
    return chosen
