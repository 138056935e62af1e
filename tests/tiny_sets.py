"""Tiny sets of images, and the files and pages in which CIFAR-10 and MNIST are published."""

import hashlib
import io
import json
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


def openml_pages(name, images, labels):
    """Make what OpenML says of a set of images, and the set."""
    rows = [",".join(map(str, [*image.ravel(), label])) for image, label in zip(images, labels, strict=True)]
    names = [f"a{i}" for i in range(images[0].size)]
    about = [*(f"@ATTRIBUTE {name} INTEGER" for name in names), "@ATTRIBUTE class {0,1,2}"]
    arff = "\n".join(["@RELATION digits", *about, "@DATA", *rows, ""]).encode()
    usual = {"data_type": "numeric", "is_target": "false", "is_ignore": "false", "is_row_identifier": "false"}
    target = usual | {"name": "class", "data_type": "nominal", "is_target": "true", "number_of_missing_values": "0"}
    said = {"md5_checksum": hashlib.md5(arff).hexdigest(), "url": "https://www.openml.org/get/images.arff"}
    api = "api/v1/json/data"
    pages = {
        f"{api}/list/data_name/{name.lower()}/limit/2/data_version/1": {"data": {"dataset": [{"did": 7}]}},
        f"{api}/7": {"data_set_description": said | {"status": "active", "format": "ARFF"}},
        f"{api}/features/7": {"data_features": {"feature": [*(usual | {"name": name} for name in names), target]}},
        f"{api}/qualities/7": {},
    }
    return {path: json.dumps(page).encode() for path, page in pages.items()} | {"get/images.arff": arff}
