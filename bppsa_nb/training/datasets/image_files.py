"""Read the files in which CIFAR-10 (binary version) and MNIST (idx) are published.

A record of CIFAR-10 is one byte of label and 3072 of pixels, red, green and blue. An idx file has a header of
big-endian 32-bit integers, a magic number and then the sizes, and after that bytes. Nothing is unpickled, and nothing
written.
"""

import gzip
import re
import tarfile
import zlib
from contextlib import contextmanager

import numpy as np

from bppsa_nb.machine import files

CLASSES = {
    "CIFAR-10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "MNIST": tuple("0123456789"),
}

_RECORD = 1 + 3 * 32 * 32  # bytes
_RECORDS = 10000  # of a batch, at most
_BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_PICKLED = re.compile(r"data_batch_\d|test_batch|batches\.meta")
_IDX = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_IDX_MOST = 60000 * 28 * 28  # bytes, after the header
_PIECE = 1 << 20  # bytes read at once
_IMAGES, _LABELS = 2051, 2049  # magic numbers: bytes in three dimensions, and in one
_PREFIX = {"train": "train", "test": "t10k"}
_UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


def read(path, split):
    """Read a data set's files: a folder of CIFAR-10's batches or MNIST's idx files, or an archive of the former.

    Returns
    -------
    name : {"CIFAR-10", "MNIST"}
    pixels : np.ndarray [shape=(N, 3, 32, 32), dtype=uint8]
    labels : np.ndarray [shape=(N,), dtype=int64]

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing, damaged or something else than it should be. It is named.
    """
    if not path.is_dir():
        files.check_regular(path)
        if _PICKLED.fullmatch(path.name):
            raise _pickled(path)
        if _IDX.fullmatch(path.name) or any(path.name in batches for batches in _BATCHES.values()):
            raise ValueError(f"{path} is one file of a data set; give the folder that holds them all")
        return "CIFAR-10", *_cifar10(_from_archive(path, split), path, split)
    names = {entry.name for entry in path.iterdir()}
    cifar10 = any(name in names for batches in _BATCHES.values() for name in batches)
    mnist = any(_IDX.fullmatch(name) for name in names)
    if cifar10 and mnist:
        raise ValueError(f"{path} holds files of CIFAR-10 and of MNIST; they need folders of their own")
    if cifar10:
        return "CIFAR-10", *_cifar10(_from_folder(path, split), path, split)
    if mnist:
        return "MNIST", *_mnist(path, names, split)
    if any(_PICKLED.fullmatch(name) for name in names):
        raise _pickled(path)
    raise FileNotFoundError(
        f"{path} holds neither the binary version of CIFAR-10 ({_BATCHES['train'][0]}, ...) nor MNIST "
        "(train-images-idx3-ubyte, ...)"
    )


def to_color(images):
    """Bring images (N, 3, 32, 32) or (N, 28, 28) to the first shape: gray ones with a margin of zeros, thrice."""
    if images.ndim == 4:
        return images
    color = np.zeros((len(images), 3, 32, 32), np.uint8)
    color[:, :, 2:-2, 2:-2] = images[:, None]
    return color


def _check_size(size, where):
    if size > _RECORDS * _RECORD:
        raise ValueError(f"{where} has {size} bytes, expected at most {_RECORDS} records of {_RECORD} bytes")


def _pickled(path):
    return ValueError(
        f"{path} holds the Python version of CIFAR-10, which is pickled; nothing is unpickled here. Get the binary "
        "version (cifar-10-binary.tar.gz), or run `bppsa-nb fetch cifar10`"
    )


def _cifar10(contents, path, split):
    """Turn the contents of batches, a dict of bytes by name, into pixels and labels."""
    missing = [name for name in _BATCHES[split] if name not in contents]
    if missing:
        raise FileNotFoundError(f"{path} lacks {', '.join(missing)} of the binary version of CIFAR-10")
    parts = []
    for name in _BATCHES[split]:
        size = len(contents[name])
        if size == 0 or size % _RECORD:
            raise ValueError(f"{path}: {name} has {size} bytes, expected whole records of {_RECORD} bytes")
        parts.append(np.frombuffer(contents[name], np.uint8).reshape(-1, _RECORD))
        _check_labels(parts[-1][:, 0], f"{path}: {name}")
        if len(parts[-1]) != len(parts[0]):
            counts = f"{len(parts[-1])} records, {_BATCHES[split][0]} has {len(parts[0])}"
            raise ValueError(f"{path}: {name} has {counts}; expected as many in every batch")
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _from_folder(path, split):
    contents = {}
    for name in _BATCHES[split]:
        batch = path / name
        if batch.exists():
            files.check_regular(batch)
            _check_size(batch.stat().st_size, f"{path}: {name}")
            contents[name] = batch.read_bytes()
    return contents


def _from_archive(path, split):
    """Read an archive from front to back, in memory, whatever paths its entries name."""
    contents, pickled = {}, False
    with _explained(path, "expected a folder, or an archive of the binary version of CIFAR-10"):
        with tarfile.open(path, "r:*") as archive:
            for entry in archive:
                name = entry.name.rsplit("/", 1)[-1]
                pickled |= bool(_PICKLED.fullmatch(name))
                if entry.isreg() and name in _BATCHES[split]:
                    if name in contents:
                        raise ValueError(f"{path} holds {name} twice")
                    _check_size(entry.size, f"{path}: {name}")
                    contents[name] = archive.extractfile(entry).read()
            while archive.fileobj.read(_PIECE):  # to the end, where the checksum is
                pass
    if pickled and not contents:
        raise _pickled(path)
    return contents


def _mnist(path, names, split):
    images, images_from = _idx(path, names, f"{_PREFIX[split]}-images", _IMAGES)
    labels, labels_from = _idx(path, names, f"{_PREFIX[split]}-labels", _LABELS)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_from} has images of {images.shape[1]} x {images.shape[2]}, expected 28 x 28")
    if len(images) != len(labels):
        raise ValueError(f"{images_from} has {len(images)} images, but {labels_from} has {len(labels)} labels")
    _check_labels(labels, labels_from)
    return to_color(images), labels.astype(np.int64)


def _idx(path, names, stem, magic):
    """Read an idx file of bytes: return the array, and the path of the file."""
    dimensions = magic % 256
    spellings = [f"{stem}{mark}idx{dimensions}-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    found = [name for name in spellings if name in names]
    if not found:
        raise FileNotFoundError(f"{path} lacks {spellings[0]} (or .gz) of MNIST")
    path = path / found[0]
    files.check_regular(path)
    opener = gzip.open if path.suffix == ".gz" else open
    with _explained(path, "it is damaged"), opener(path, "rb") as file:
        header = file.read(4 * (1 + dimensions))
        if len(header) < 4 * (1 + dimensions):
            raise ValueError(f"{path} ends in its header, after {len(header)} bytes")
        number, *shape = (int(word) for word in np.frombuffer(header, ">u4"))
        if number != magic:
            raise ValueError(f"{path} begins with {number}, expected {magic} for bytes in {dimensions} dimensions")
        size, announced = int(np.prod(shape, dtype=object)), " x ".join(map(str, shape))
        if size > _IDX_MOST:
            raise ValueError(f"{path} announces {announced} bytes, expected at most {_IDX_MOST}")
        content = file.read(size + 1)
    if len(content) != size or size == 0:
        came = "more" if len(content) > size else len(content)
        raise ValueError(f"{path} announces {announced} bytes, got {came}; expected some, and as many")
    return np.frombuffer(content, np.uint8).reshape(shape), path


def _check_labels(labels, where):
    if labels.max() > 9:
        first = int(np.argmax(labels > 9))
        raise ValueError(f"{where}: label {labels[first]} of image {first} is out of range, expected 0 to 9")


@contextmanager
def _explained(path, otherwise):
    try:
        yield
    except _UNREADABLE as error:
        said = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise ValueError(f"{path} cannot be read: {said} ({otherwise})") from error
