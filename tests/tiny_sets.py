"""Tiny sets of images, and the files in which CIFAR-10 and MNIST are published."""

import io
import struct
import tarfile

import numpy as np

RECORD = 3073  # bytes of an image of CIFAR-10 and its label
BATCHES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
IDX = {"train": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]}
IDX["test"] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def some(count, shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, *shape), dtype=np.uint8), rng.integers(10, size=count, dtype=np.uint8)


def idx(values, *header):
    header = header or (2048 + values.ndim, *values.shape)
    return struct.pack(f">{len(header)}I", *header) + values.tobytes()


# What is in the sets, by split, and their files by name.
SETS = {
    "CIFAR-10": {split: some(2 * len(names), (3, 32, 32), len(names)) for split, names in BATCHES.items()},
    "MNIST": {split: some(3, (28, 28), len(split)) for split in IDX},
}
CIFAR10, MNIST = {}, {}
for split, names in BATCHES.items():
    records = [bytes([label]) + image.tobytes() for image, label in zip(*SETS["CIFAR-10"][split], strict=True)]
    CIFAR10 |= {name: b"".join(records[2 * i : 2 * i + 2]) for i, name in enumerate(names)}
    MNIST |= {name: idx(values) for name, values in zip(IDX[split], SETS["MNIST"][split], strict=True)}


def write(folder, files):
    for name, content in files.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def pack(files, mode="w:gz"):
    """Pack contents, or where a link leads to, by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname, content = tarfile.SYMTYPE, content, b""
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
