"""Small color images of ten classes: CIFAR-10 or MNIST, or digits over photographs that stand in for them."""

import os
from pathlib import Path
from typing import Literal

import numpy as np

from bppsa_nb.machine.arguments import Rng, Size, checked
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.training.datasets import digits_on_photos, image_files, openml
from bppsa_nb.training.datasets.bitstream import Indices, check_range

STAND_IN = "stand-in"


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
            pixels, labels = digits_on_photos.compose(num_samples or digits_on_photos.COUNTS[split], split, rng)
        else:
            self.source, pixels, labels = _real(source, split)
            if (num_samples or 0) > len(labels):
                raise ValueError(f"num_samples must be at most {len(labels)}, got {num_samples}")
            pixels, labels = pixels[:num_samples], labels[:num_samples]
        pixels.flags.writeable = labels.flags.writeable = False
        self.pixels, self.labels = pixels, labels
        self.classes = image_files.CLASSES.get(self.source, image_files.CLASSES["MNIST"])
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


def _real(source, split) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the data set's name, pixels and labels."""
    if source in openml.SETS:
        return openml.load(source, split)
    try:
        os.stat(source)
    except (OSError, ValueError) as error:  # of a path that is too long, or holds a zero, too
        names = (STAND_IN, *openml.SETS)
        meant = [name for name in names if _plain(name) == _plain(os.fspath(source))]
        hint = f'; the name of this one is the str "{meant[0]}"' if meant else ""
        known = ", ".join(f'"{name}"' for name in names)
        raise FileNotFoundError(f"source must be {known}, or a path that exists, got {source!r}{hint}") from error
    return image_files.read(Path(source), split)


def _plain(name):
    return name.lower().replace("-", "")
