"""Read the files in which CIFAR-10 (binary version) and MNIST (idx) are published. Nothing is unpickled.

A record of CIFAR-10 is one byte of label and 3072 of pixels, red, green and blue. An idx file has a header of
big-endian 32-bit integers, a magic number and then the sizes, and after that bytes.
"""

import gzip
import tarfile

import numpy as np

from bppsa_nb.machine import files

CLASSES = {
    "CIFAR-10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "MNIST": tuple("0123456789"),
}

_RECORD = 1 + 3 * 32 * 32  # bytes
_BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_PREFIX = {"train": "train", "test": "t10k"}
_WANTED = "expected the binary version of CIFAR-10 (data_batch_1.bin, ...; what is pickled is not read)"


def read(path, split):
    """Read a folder of CIFAR-10's batches or of MNIST's idx files, or an archive of the former.

    Returned are the set's name, pixels [shape=(N, 3, 32, 32), dtype=uint8] and labels [shape=(N,), dtype=int64].
    FileNotFoundError, CorruptFileError or ValueError, which name it, if a file is missing, damaged or out of place.
    """
    if not path.is_dir():
        return "CIFAR-10", *_cifar10(_from_archive(path, _BATCHES[split]), path, split)
    cifar10 = any((path / name).exists() for batches in _BATCHES.values() for name in batches)
    mnist = any(path.glob("*-labels[-.]idx1-ubyte*")) or any(path.glob("*-images[-.]idx3-ubyte*"))
    if cifar10 and mnist:
        raise ValueError(f"{path} holds files of CIFAR-10 and of MNIST; they need folders of their own")
    if mnist:
        return "MNIST", *_mnist(path, split)
    if not cifar10:
        raise FileNotFoundError(f"{path} holds no data set; {_WANTED} or MNIST (train-images-idx3-ubyte, ...)")
    contents = {name: _content(path / name) for name in _BATCHES[split] if (path / name).exists()}
    return "CIFAR-10", *_cifar10(contents, path, split)


def to_color(images):
    """Bring images (N, 3, 32, 32) or (N, 28, 28) to the first shape: gray ones with a margin of zeros, thrice."""
    if images.ndim == 4:
        return images
    color = np.zeros((len(images), 3, 32, 32), np.uint8)
    color[:, :, 2:-2, 2:-2] = images[:, None]
    return color


def _content(path):
    files.check_regular(path)  # nothing may be waited for
    with files.unpacking(f"{path} is damaged"), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        return file.read()


def _from_archive(path, names):
    """Read files of an archive, whatever their folders, in memory: a dict of bytes by name."""
    files.check_regular(path)
    with files.unpacking(f"{path} cannot be read", f"; {_WANTED}, a folder or .tar.gz"), tarfile.open(path) as archive:
        entries = [entry for entry in archive if entry.isreg() and entry.name.rpartition("/")[2] in names]
        contents = {entry.name.rpartition("/")[2]: archive.extractfile(entry).read() for entry in entries}
        while archive.fileobj.read(1 << 20):  # to the end, where a compressed file has its checksum
            pass
        return contents


def _cifar10(contents, path, split):
    """Turn the contents of batches, a dict of bytes by name, into pixels and labels."""
    if missing := [name for name in _BATCHES[split] if name not in contents]:
        raise FileNotFoundError(f"{path} lacks {', '.join(missing)}; {_WANTED}")
    sizes = {name: len(content) for name, content in contents.items()}
    if len(set(sizes.values())) > 1 or any(size == 0 or size % _RECORD for size in sizes.values()):
        wanted = f"batches must be of one size, and of records of {_RECORD} bytes"
        raise files.CorruptFileError(f"{path}: {wanted}, got bytes {sizes}")
    records = np.concatenate([np.frombuffer(contents[name], np.uint8) for name in _BATCHES[split]]).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), _classes(records[:, 0], path)


def _mnist(path, split):
    images, labels = _idx(path, f"{_PREFIX[split]}-images", 3), _idx(path, f"{_PREFIX[split]}-labels", 1)
    if images.shape[1:] != (28, 28) or len(images) != len(labels):
        raise ValueError(f"{path} must have images (N, 28, 28) and N labels, got {images.shape} and {len(labels)}")
    return to_color(images), _classes(labels, path)


def _idx(path, stem, dimensions):
    """Read an idx file of bytes, by its spellings, into an array of so many dimensions."""
    spellings = [f"{stem}{mark}idx{dimensions}-ubyte{end}" for end in ("", ".gz") for mark in "-."]
    found = [path / name for name in spellings if (path / name).exists()]
    if not found:
        raise FileNotFoundError(f"{path} lacks {spellings[0]} (or .gz) of MNIST")
    content, header = _content(found[0]), 4 * (1 + dimensions)
    magic, *shape = map(int, np.frombuffer(content[:header].ljust(header, b"\0"), ">u4"))
    came = max(0, len(content) - header)
    if magic != 2048 + dimensions or came != np.prod(shape, dtype=object) or not came:
        wanted = f"{2048 + dimensions} and {dimensions} sizes, then as many bytes"
        raise files.CorruptFileError(f"{found[0]} must begin with {wanted}, got {magic}, {shape} and {came}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _classes(labels, path):
    if labels.max() > 9:
        first = int(np.argmax(labels > 9))
        raise files.CorruptFileError(f"{path}: label {labels[first]} of image {first} is out of range, expected 0 to 9")
    return labels.astype(np.int64)
