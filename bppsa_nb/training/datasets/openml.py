"""Download CIFAR-10 and MNIST from OpenML, through scikit-learn; keep them as arrays of bytes."""

import http.client
import shutil
import socket
import sys
import warnings
import zlib
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


SETS = {"cifar10": Set("CIFAR-10", "CIFAR_10", (3, 32, 32), 50000, "0.7 GB"),
        "mnist": Set("MNIST", "mnist_784", (28, 28), 60000, "0.1 GB")}  # fmt: skip


def load(key, split):
    """Load a split of a set that was fetched; return its title, pixels and labels, as `image_files.read` does.

    Raises FileNotFoundError as `find` does, and ValueError if the file is not what was written.
    """
    images, labels = _read(key)
    rows = slice(None, SETS[key].train) if split == "train" else slice(SETS[key].train, None)
    return SETS[key].title, image_files.to_color(images[rows]), labels[rows].astype(np.int64)


def find(key):
    """Return the path of what was fetched, or raise a FileNotFoundError that says how to fetch it."""
    path = files.root() / "data" / "downloads" / f"{key}.npz"
    if not path.is_file():
        how = f"`bppsa-nb fetch {key}` downloads it ({SETS[key].size}). Where its own files are here, give their folder"
        raise FileNotFoundError(f"{SETS[key].title} is not in {path}; {how} instead")
    return path


def fetch(key):
    """Download a set unless it is here; return its path, an ``.npz`` with the arrays ``images`` and ``labels``, bytes.

    What came whole is kept in `data/downloads/openml/`, so that another fetch goes on from there. OSError if OpenML
    cannot be reached, the download is cut off or the disk is full; ValueError if what came has another checksum than
    OpenML says, or is no such data set, and is deleted.
    """
    wanted, path = SETS[key], files.root() / "data" / "downloads" / f"{key}.npz"
    try:
        _read(key)
        return path
    except FileNotFoundError:
        pass
    except ValueError as error:
        print(f"{error}. It is made anew", file=sys.stderr)
    print(f"{wanted.title} comes from OpenML, {wanted.size}; this takes minutes and shows no bar", file=sys.stderr)
    images, labels = _download(wanted, path.with_name("openml"))
    with files.atomic_write(path) as file:
        np.savez(file, images=images, labels=labels)
    return path


def _read(key):
    """Return all images and labels of a set that was fetched; both are bytes."""
    path, writer, count = find(key), f"`bppsa-nb fetch {key}`", SETS[key].train + TEST
    entries = files.read_npz(path, writer)
    for name, shape in {"images": (count, *SETS[key].shape), "labels": (count,)}.items():
        if name not in entries or entries[name].shape != shape or entries[name].dtype != np.uint8:
            raise ValueError(f"{path} is not what {writer} writes: it lacks {name!r}, bytes of shape {shape}")
    return entries["images"], entries["labels"]


def _download(wanted, folder):
    """Return all images [shape=(N, *shape), dtype=uint8] and labels [shape=(N,), dtype=uint8]."""
    with extras.explained():
        from sklearn.datasets import fetch_openml

    count, pixels, before = wanted.train + TEST, int(np.prod(wanted.shape)), socket.getdefaulttimeout()
    # Read as bytes at once, CIFAR-10 needs 1.3 GB; as 64-bit integers it would need several times as much. This also
    # keeps pandas from making categories of the labels: scikit-learn expects text in them, where pandas has integers.
    types = {"dtype": dict.fromkeys(range(pixels), "uint8")}
    how = {"as_frame": False, "return_X_y": True, "parser": "pandas", "read_csv_kwargs": types}
    try:
        socket.setdefaulttimeout(_TIMEOUT)  # scikit-learn sets none: a server that falls silent would be waited for
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A network error occurred", UserWarning)  # the error says it, at the end
            images, labels = fetch_openml(wanted.name, version=1, data_home=folder.parent, **how)
        if images.shape != (count, pixels) or labels.shape != (count,):
            raise ValueError(f"images {images.shape}, labels {labels.shape}, expected {count, pixels} and {(count,)}")
        return _bytes("pixels", images, 255).reshape(-1, *wanted.shape), _bytes("labels", labels, 9)
    except (OSError, http.client.HTTPException, EOFError, zlib.error) as error:
        advice = "Try again later, or download the set elsewhere and give bppsa_nb.Images its folder"
        raise OSError(f"cannot download {wanted.title} from OpenML: {error}. {advice}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # it expects no junk
        shutil.rmtree(folder, ignore_errors=True)  # or it would be taken for an answer the next time
        raise ValueError(f"what OpenML sent is not {wanted.title}, and deleted: {error}") from error
    finally:
        socket.setdefaulttimeout(before)


def _bytes(what, values, most):
    if values.dtype == object:
        values = np.char.strip(values.astype(str), "'")  # ARFF may put names in quotes
    numbers = values if values.dtype == np.uint8 else values.astype(np.float64)
    if not ((numbers >= 0) & (numbers <= most) & (numbers == np.floor(numbers))).all():
        raise ValueError(f"{what} must be integers from 0 to {most}")
    return numbers.astype(np.uint8)
