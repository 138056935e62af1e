"""Damage to files: to their bytes, or to what they say, where that is JSON or arrays."""

import io
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bppsa_nb.machine.files import CorruptFileError


class Kept(NamedTuple):
    """Files that belong together, how they are read, and what may come of it where one of them is damaged."""

    paths: list[Path]
    read: Callable  # returns what can be compared
    sound: Callable = lambda found: False  # accepts what is read otherwise, where no checksum tells
    errors: type = CorruptFileError
    target: Callable = lambda: None  # what is read into
    named: str = ""  # by errors, in place of the file


class Pickled:
    """Ends the program that unpickles it."""

    def __reduce__(self):
        return sys.exit, ("something was unpickled",)


OTHERS = [b"", b"text, whatever it is called", b"\xff\xfe", b"PK\3\4", b"[" * 100_000, pickle.dumps(Pickled())]
VALUES = [None, -1, float("nan"), "text", [], {}]
ARRAYS = [
    *(lambda array: np.atleast_1d(array)[:1], lambda array: array[None], lambda array: array.astype("U")),
    *(lambda array: np.full(array.shape, Pickled(), object), lambda array: np.full(array.shape, np.nan, "f4")),
]


def contents(folder):
    """Read all files below a folder, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewrite(path, content):
    """Write another file; over the old one, this would take milliseconds."""
    path.unlink()
    path.write_bytes(content)


def changes(path):
    """Make what a file may hold instead: something else, or the same but for a place in a JSON, or an array."""
    yield from OTHERS
    if path.suffix == ".json":
        yield from (json.dumps(each).encode() for each in _changed(json.loads(path.read_bytes())))
    elif path.suffix == ".npy":
        yield from (_saved(np.save, change(np.load(path))) for change in ARRAYS)
    elif path.suffix == ".npz":
        arrays = dict(np.load(path))
        for name, array in arrays.items():
            rest = {other: arrays[other] for other in arrays if other != name}
            yield from (_saved(np.savez, **rest, **{name: change(array)}) for change in ARRAYS)
            yield from (_saved(np.savez, **rest), _saved(np.savez, **rest, another=array))


def _changed(value):
    """Make all that differ from dicts and lists in one place: it has another value, is gone, or named otherwise."""
    yield from VALUES
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (value | {key: changed} for changed in _changed(inner))
            rest = {other: value[other] for other in value if other != key}
            yield from (rest, rest | {"another": inner})
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in _changed(inner))


def _saved(save, *array, **arrays):
    file = io.BytesIO()
    save(file, *array, **arrays)
    return file.getvalue()
