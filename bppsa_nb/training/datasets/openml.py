"""Download CIFAR-10 and MNIST from OpenML, through scikit-learn; keep them as arrays of bytes."""

import http.client
import shutil
import socket
import sys
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bppsa_nb.machine import extras, files
from bppsa_nb.training.datasets import image_files

TEST = 10000  # the last rows of both sets

_TIMEOUT = 30  # seconds without a byte


@dataclass(frozen=True)
class Set:
    """A data set at OpenML."""

    title: str
    name: str  # at OpenML, where its version is 1
    shape: tuple  # of an image
    train: int  # how many rows come before those of the test set
    size: str  # how much is downloaded, about


SETS = {
    "cifar10": Set("CIFAR-10", "CIFAR_10", (3, 32, 32), 50000, "0.7 GB"),
    "mnist": Set("MNIST", "mnist_784", (28, 28), 60000, "0.1 GB"),
}


def load(key, split):
    """Load a split of a set that was fetched; return its title, pixels and labels, as `image_files.read` does.

    Raises FileNotFoundError as `find` does, and ValueError if the file is not what was written.
    """
    path = find(key)
    _check(path, key)
    rows = slice(None, SETS[key].train) if split == "train" else slice(SETS[key].train, None)
    with np.load(path, allow_pickle=False) as arrays:
        images, labels = arrays["images"][rows], arrays["labels"][rows]
    return SETS[key].title, image_files.to_color(images), labels.astype(np.int64)


def find(key):
    """Return the path of what was fetched, or raise a FileNotFoundError that says how to fetch it."""
    path = _path(key)
    if not path.is_file() or not path.with_suffix(".json").is_file():
        title, size = SETS[key].title, SETS[key].size
        raise FileNotFoundError(
            f"{title} is not in {path}; `bppsa-nb fetch {key}` downloads it ({size}). Where its own files are here, "
            "give their folder instead"
        )
    return path


def fetch(key):
    """Download a set and convert it, unless that was done.

    What came whole is kept in `data/downloads/openml/`, so that another fetch goes on from there.

    Returns
    -------
    pathlib.Path
        ``.npz`` with the arrays ``images`` and ``labels``, bytes; beside it a ``.json`` with its SHA-256.

    Raises
    ------
    OSError, ValueError
        If OpenML cannot be reached, the download is cut off or the disk is full; if what came has another checksum than
        OpenML says, or is no such data set, which is deleted.
    """
    wanted, path = SETS[key], _path(key)
    try:
        _check(find(key), key)
        return path
    except FileNotFoundError:
        pass
    except ValueError as error:
        print(f"{error}. It is made anew", file=sys.stderr)
    print(f"{wanted.title} comes from OpenML, {wanted.size}; this takes minutes and shows no bar", file=sys.stderr)
    images, labels = _download(wanted)
    with files.atomic_write(path) as file:
        np.savez(file, images=images, labels=labels)
    note = {"source": f"OpenML, {wanted.name}, version 1", "sha256": files.checksum(path, "sha256")}
    files.write_json(path.with_suffix(".json"), note)
    return path


def _path(key):
    return files.root() / "data" / "downloads" / f"{key}.npz"


def _check(path, key):
    checksum = files.checksum(path, "sha256")
    try:
        expected = files.read_json(path.with_suffix(".json"))["sha256"]
    except (ValueError, TypeError, KeyError):
        expected = f"what {path.stem}.json does not say"
    if checksum != expected:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is {checksum}, expected {expected}; `bppsa-nb fetch {key}` makes it anew"
        )


def _download(wanted):
    """Return all images [shape=(N, *shape), dtype=uint8] and labels [shape=(N,), dtype=uint8]."""
    with extras.explained():
        from sklearn.datasets import fetch_openml

    pixels = int(np.prod(wanted.shape))
    # Read as bytes at once, CIFAR-10 needs 1.3 GB; as 64-bit integers it would need several times as much. This also
    # keeps pandas from making categories of the labels: scikit-learn expects text in them, where pandas has integers.
    types = {"dtype": dict.fromkeys(range(pixels), "uint8")}
    how = {"as_frame": False, "return_X_y": True, "parser": "pandas", "read_csv_kwargs": types}
    kept_in = _path("").parent
    try:
        with _timeout(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A network error occurred", UserWarning)  # the error says it, at the end
            images, labels = fetch_openml(wanted.name, version=1, data_home=kept_in, **how)
        return _checked(wanted, images, labels)
    except (OSError, http.client.HTTPException, EOFError, zlib.error) as error:
        raise OSError(
            f"cannot download {wanted.title} from OpenML: {error}. Try again later, or download the set elsewhere "
            "and give bppsa_nb.Images its folder"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # it expects no junk
        shutil.rmtree(kept_in / "openml", ignore_errors=True)  # or it would be taken for an answer the next time
        raise ValueError(f"what OpenML sent is not {wanted.title}, and deleted: {error}") from error


def _checked(wanted, images, labels):
    expected = (wanted.train + TEST, int(np.prod(wanted.shape)))
    if images.shape != expected or labels.shape != expected[:1]:
        raise ValueError(f"images {images.shape} and labels {labels.shape}, expected {expected} and {expected[:1]}")
    images = _bytes(images, f"{wanted.title}'s pixels", 255)
    return images.reshape(-1, *wanted.shape), _bytes(labels, f"{wanted.title}'s labels", 9)


def _bytes(values, what, most):
    if values.dtype == object:
        values = np.char.strip(values.astype(str), "'")  # ARFF may put names in quotes
    try:
        numbers = values if values.dtype == np.uint8 else values.astype(np.float64)
    except ValueError as error:
        raise ValueError(f"{what} must be numbers: {error}") from error
    with np.errstate(invalid="ignore"):  # of infinity, there is no remainder
        wrong = numbers[(numbers < 0) | (numbers > most) | (numbers % 1 != 0)]
    if len(wrong):
        raise ValueError(f"{what} must be integers from 0 to {most}, got {wrong[0]}")
    return numbers.astype(np.uint8)


@contextmanager
def _timeout():
    """Let a server that falls silent be an error: scikit-learn sets no limit of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
