"""Damage to files, to their bytes or to what a JSON or arrays in them say, and what readers have to make of it."""

import functools
import io
import json
import operator
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from bppsa_nb.machine.files import CorruptFileError


class Pickled:
    """Ends the program that unpickles it."""

    def __reduce__(self):
        return sys.exit, ("something was unpickled",)


# What a file may hold instead, what may stand somewhere in a JSON instead, and what arrays become.
OTHERS = [b"", b"text, whatever it is called", b"\xff\xfe", b"PK\3\4", pickle.dumps(Pickled()), b"{}", b"null"]
OTHERS += [b"[" * 100_000]
VALUES = [None, -1, float("nan"), "text", [], {}]
ARRAYS = [
    *(lambda array: np.atleast_1d(array)[:1], lambda array: array[None], lambda array: array.astype("U")),
    *(lambda array: np.full(array.shape, Pickled(), object), lambda array: np.full(array.shape, np.nan, "f4")),
]

KINDS = ["cut", "flipped", "flipped", "replaced", "changed", "changed"]
PLACES = st.integers(-64, 63) | st.integers(0, 2**20)  # near an end, or anywhere
damages = st.tuples(st.sampled_from(KINDS), PLACES, st.integers(0, 7))


class Kept(NamedTuple):
    """Files that belong together, how they are read, and what may come of it where one of them is damaged."""

    paths: list[Path]
    read: Callable  # returns what can be compared
    sound: Callable = lambda found: False  # accepts what is read otherwise, where no checksum tells
    errors: type = CorruptFileError
    target: Callable = lambda: None  # what is read into
    named: str = ""  # by errors, in place of the file


def contents(folder):
    """Read all files below a folder, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewrite(path, content):
    """Write another file; over the old one, this would take milliseconds."""
    path.unlink()
    path.write_bytes(content)


def damaged(path, kind, at, how):
    """Return what a file may hold instead."""
    content = path.read_bytes()
    if kind == "cut":
        return content[: at % len(content)]
    if kind == "replaced":
        return OTHERS[how]
    if kind == "changed" and path.suffix == ".json":
        return _changed_json(json.loads(content), at, how)
    if kind == "changed" and path.suffix in (".npy", ".npz"):
        return _changed_arrays(np.load(io.BytesIO(content)), at, how)
    flipped = bytearray(content)
    flipped[at % len(content)] ^= 1 << how
    return bytes(flipped)


def _changed_json(whole, at, how):
    places = _places(whole)
    *above, last = places[at % len(places)]
    inner = functools.reduce(operator.getitem, above, whole)
    if how < len(VALUES):
        inner[last] = VALUES[how]
    else:
        gone = inner.pop(last)
        if how == 7 and isinstance(inner, dict):
            inner["another name"] = gone
    return json.dumps(whole).encode()


def _places(value):
    """List the ways to all that stands in nested dicts and lists: keys, from the outermost one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [[key, *more] for key, each in inner for more in ([], *_places(each))]


def _changed_arrays(loaded, at, how):
    file = io.BytesIO()
    if isinstance(loaded, np.ndarray):
        np.save(file, ARRAYS[how % len(ARRAYS)](loaded))
        return file.getvalue()
    arrays = dict(loaded)
    name = sorted(arrays)[at % len(arrays)]
    array = arrays.pop(name)
    if how < len(ARRAYS):
        arrays[name] = ARRAYS[how](array)
    elif how == 7:
        arrays |= {name: array, "more": array}
    np.savez(file, **arrays)
    return file.getvalue()
