"""Small color images of ten classes: CIFAR-10 or MNIST, or digits over photographs that stand in for them."""

import gzip
import os
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np

from bppsa_nb.machine import files, process
from bppsa_nb.machine.arguments import Rng, Size, checked
from bppsa_nb.machine.checks import with_repr
from bppsa_nb.training.datasets import Indices, check_range, downloads

STAND_IN = "stand-in"
CLASSES = {
    "CIFAR-10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "MNIST": tuple("0123456789"),
}
COUNTS = {"train": 6000, "test": 1500}  # of the stand-in, if nothing else is said

_FIRST_TEST_DIGIT = 1347  # about a quarter of the digits follows
_FIRST_TEST_COLUMN = 480  # of 640
_CHUNK = 1000  # samples composed at once
# What is drawn at random for each sample, evenly from 0 to 1.
_DRAWS = ("digit", "photo", "top", "left", "height", "angle", "down", "right", "shade", "opacity", "color")

_RECORD = 1 + 3 * 32 * 32  # bytes of an image of CIFAR-10: its label, then red, green and blue
_BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_WANTED = "expected the binary version of CIFAR-10 (data_batch_1.bin, ...; what is pickled is not read)"


@with_repr("source", "split", "pixels")
class Images:
    """Image classification: 32x32 pixels, three channels, ten classes, whatever the source.

    Parameters
    ----------
    source
        "stand-in": scikit-learn's handwritten digits over its sample photographs, nothing to download. "cifar10" or
        "mnist": what `bppsa-nb fetch` downloaded. Otherwise a path of files that are already here: a folder with the
        binary version of CIFAR-10 (``data_batch_1.bin`` ... ``data_batch_5.bin``, ``test_batch.bin``), its archive
        ``cifar-10-binary.tar.gz``, or a folder with MNIST's ``train-images-idx3-ubyte``, ... (or ``.gz``). Files are
        only read.
    split
        They share no image; the stand-in's share no digit and no part of a photograph.
    num_samples
        How many: of the stand-in any number, by default 6000 to train on and 1500 to test; of the others the first
        ones, by default all.
    rng
        The seed of the stand-in. Image k is a pure function of the seed, the split and k.

    Attributes
    ----------
    pixels : np.ndarray [shape=(N, 3, 32, 32), dtype=uint8]
        All images, read-only. MNIST's have a margin of two zeros, and three equal color channels.
    labels : np.ndarray [shape=(N,), dtype=int64]
        Indices into `classes`, read-only.
    classes : tuple of str [length=10]
    source : {"stand-in", "CIFAR-10", "MNIST"}
    split : {"train", "test"}
    data : {"real", "stand-in"}
        What a figure made from them has to say.

    Raises
    ------
    FileNotFoundError
        If a data set or one of its files is not here; the message says what was looked for, or how to get it.
    ValueError
        If a file is damaged, or something else than it should be.

    Examples
    --------
    >>> x, y = Images(num_samples=8).batch([6, 0])
    >>> x.shape, y.shape
    ((2, 3, 32, 32), (2,))
    """

    @checked
    def __init__(
        self, source: str | os.PathLike[str] = STAND_IN, split: Literal["train", "test"] = "train",
        num_samples: Size | None = None, rng: Rng = 0,
    ):  # fmt: skip
        self.split = split
        if source == STAND_IN:
            self.source = STAND_IN
            pixels, labels = _compose(num_samples or COUNTS[split], split, rng)
        else:
            self.source, pixels, labels = _read(_find(source), split)
            if (num_samples or 0) > len(labels):
                raise ValueError(f"num_samples must be at most {len(labels)}, got {num_samples}")
            pixels, labels = pixels[:num_samples], labels[:num_samples]
        pixels.flags.writeable = labels.flags.writeable = False
        self.pixels, self.labels = pixels, labels
        self.classes = CLASSES.get(self.source, CLASSES["MNIST"])
        self.data = STAND_IN if self.source == STAND_IN else "real"

    def __len__(self) -> int:
        return len(self.labels)

    @checked
    def batch(self, indices: Indices) -> tuple[np.ndarray, np.ndarray]:
        """Return the images (B, 3, 32, 32) in float32 and the labels (B,) of these numbers.

        Red, green and blue go from -1 (pixel 0) to 1 (pixel 255), whatever the source.
        """
        check_range(indices, len(self))
        x = self.pixels[indices].astype(np.float32)
        x *= np.float32(1 / 127.5)
        x -= 1
        return x, self.labels[indices]


# The stand-in: handwritten digits over photographs, both from scikit-learn.


def _compose(count, split, rng):
    """Draw each sample a digit, scaled, turned and colored, over a darkened piece of a photograph.

    The test set's digits are the last of scikit-learn's 1797; its pieces come from the photographs' right-hand quarter.
    Pillow reads the photographs.
    """
    with process.explained():
        from sklearn.datasets import load_digits, load_sample_images

    train = split == "train"
    key = np.random.default_rng(rng).integers(2**64, size=2, dtype=np.uint64)
    stream = np.random.Philox(key=key, counter=[0, 0, 0, 1 - train])
    digits = slice(None, _FIRST_TEST_DIGIT) if train else slice(_FIRST_TEST_DIGIT, None)
    columns = slice(None, _FIRST_TEST_COLUMN) if train else slice(_FIRST_TEST_COLUMN, None)
    bunch = load_digits()
    ink, names = bunch.images[digits].astype(np.float32) / 16, bunch.target[digits]
    photos = np.stack(load_sample_images().images)[:, :, columns]
    pieces = np.lib.stride_tricks.sliding_window_view(photos, (32, 32), axis=(1, 2))
    pixels, labels = np.empty((count, 3, 32, 32), np.uint8), np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        words = stream.random_raw((part.stop - start) * (len(_DRAWS) + 2)).reshape(part.stop - start, -1)
        numbers = (words >> np.uint64(32)) * 2.0**-32
        draws = dict(zip(_DRAWS, numbers.T, strict=False)) | {"color": numbers[:, len(_DRAWS) - 1 :]}
        digit = _choose(len(ink), draws["digit"])
        piece = tuple(map(_choose, pieces.shape, (draws["photo"], draws["top"], draws["left"])))
        labels[part] = names[digit]
        pixels[part] = _blend(pieces[piece], _strokes(ink[digit], draws), draws)
    return pixels, labels


def _choose(count, draw):
    return (count * draw).astype(np.int64)


def _strokes(ink, draws):
    """Scale digits (B, 8, 8) to a height of 22 to 30 pixels, turn and move them: (B, 32, 32), bilinear."""
    height, angle = 22 + 8 * draws["height"], 0.4 * (draws["angle"] - 0.5)  # pixels, radians
    room = (32 - height) / 2
    y = (np.arange(32) - 15.5 - (room * (2 * draws["down"] - 1))[:, None])[:, :, None]
    x = (np.arange(32) - 15.5 - (room * (2 * draws["right"] - 1))[:, None])[:, None, :]
    cos, sin = ((8 / height * part)[:, None, None] for part in (np.cos(angle), np.sin(angle)))
    framed = np.pad(ink, ((0, 0), (1, 2), (1, 2)))  # a margin, so that all neighbors are inside
    row = np.clip(cos * y - sin * x + 4.5, 0, 9).astype(np.float32)  # 4.5 is the middle of the frame's first 10
    column = np.clip(sin * y + cos * x + 4.5, 0, 9).astype(np.float32)
    i, j, sample = row.astype(np.int32), column.astype(np.int32), np.arange(len(ink))[:, None, None]
    v, u = row % 1, column % 1
    upper = (1 - u) * framed[sample, i, j] + u * framed[sample, i, j + 1]
    lower = (1 - u) * framed[sample, i + 1, j] + u * framed[sample, i + 1, j + 1]
    return (1 - v) * upper + v * lower


def _blend(pieces, strokes, draws):
    """Draw bright strokes of any color on darkened pieces: (B, 3, 32, 32)."""
    shade = (0.1 + 0.3 * draws["shade"]).astype(np.float32)[:, None, None, None]
    opacity = (0.8 + 0.2 * draws["opacity"]).astype(np.float32)[:, None, None, None]
    color = (150 + 105 * draws["color"]).astype(np.float32)[:, :, None, None]
    alpha = opacity * strokes[:, None]
    return np.rint((1 - alpha) * (shade * pieces) + alpha * color).astype(np.uint8)


# Files in which CIFAR-10 (binary version) and MNIST (idx) are published.


def _find(source):
    if source in ("cifar10", "mnist"):
        return downloads.find(source)
    try:
        os.stat(source)
    except (OSError, ValueError) as error:  # of a path that is too long, or holds a zero, too
        known = f'"{STAND_IN}", "cifar10", "mnist", or a path that exists'
        raise FileNotFoundError(f"source must be {known}, got {source!r}") from error
    return Path(source)


def _read(path, split):
    """Read a folder of CIFAR-10's batches or of MNIST's idx files, or an archive of the former.

    Returned are the set's name, pixels [shape=(N, 3, 32, 32), dtype=uint8] and labels [shape=(N,), dtype=int64].
    """
    mnist = sorted(path.glob("*-ubyte*"))
    cifar10 = not path.is_dir() or any((path / name).exists() for names in _BATCHES.values() for name in names)
    if cifar10 and mnist:
        raise ValueError(f"{path} holds files of CIFAR-10 and of MNIST; they need folders of their own")
    if cifar10:
        return "CIFAR-10", *_cifar10(path, split)
    if mnist:
        return "MNIST", *_mnist(path, "train" if split == "train" else "t10k")
    raise FileNotFoundError(f"{path} holds no data set; {_WANTED} or MNIST (train-images-idx3-ubyte, ...)")


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


def _cifar10(path, split):
    names = _BATCHES[split]
    if path.is_dir():
        contents = {name: _content(path / name) for name in names if (path / name).exists()}
    else:
        contents = _from_archive(path, names)
    if missing := [name for name in names if name not in contents]:
        raise FileNotFoundError(f"{path} lacks {', '.join(missing)}; {_WANTED}")
    sizes = {name: len(content) for name, content in contents.items()}
    if len(set(sizes.values())) > 1 or any(size == 0 or size % _RECORD for size in sizes.values()):
        wanted = f"batches must be of one size, and of records of {_RECORD} bytes"
        raise files.CorruptFileError(f"{path}: {wanted}, got bytes {sizes}")
    records = np.concatenate([np.frombuffer(contents[name], np.uint8) for name in names]).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), _classes(records[:, 0], path)


def _mnist(path, prefix):
    """Read gray images, which get a margin of zeros and three equal channels, and their labels."""
    images, labels = _idx(path, f"{prefix}-images", 3), _idx(path, f"{prefix}-labels", 1)
    if images.shape[1:] != (28, 28) or len(images) != len(labels):
        raise ValueError(f"{path} must have images (N, 28, 28) and N labels, got {images.shape} and {len(labels)}")
    padded = np.pad(images[:, None], ((0, 0), (0, 0), (2, 2), (2, 2)))
    return padded.repeat(3, axis=1), _classes(labels, path)


def _idx(path, stem, dimensions):
    """Read an idx file: big-endian integers, a magic number and then the sizes, and after that bytes."""
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
