"""Where the project keeps its files, and how they are written: whole, or not at all."""

import errno
import json
import os
import secrets
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


class CorruptFileError(ValueError):
    """A file holds something else than what was written to it; the message names it."""


def root():
    """Return the folder that holds `data/`, `figures/` and `notebooks/`, a `pathlib.Path`.

    It is the checkout that the package was imported from (the folder with `pyproject.toml`); for an installed copy
    without one, the current working directory.
    """
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def shipped(*names):
    """Return a folder, by names from `root` down, that only a checkout has, or raise FileNotFoundError."""
    folder = root().joinpath(*names)
    if not folder.is_dir():
        why = f"{'/'.join(names)}/ comes with a checkout of the project, not with the installed package"
        raise FileNotFoundError(f"{folder} is not there: {why}; run this in a checkout's folder")
    return folder


def cache_folder():
    """Return the cache folder: what ``BPPSA_NB_CACHE`` says, or ``bppsa-nb`` where the system keeps a user's caches.

    There is a FileNotFoundError if the user has no home folder, and nothing says where else.
    """
    if os.environ.get("BPPSA_NB_CACHE"):
        return Path(os.environ["BPPSA_NB_CACHE"])
    systems = {"win32": ("LOCALAPPDATA", ".cache"), "darwin": ("", "Library/Caches")}
    variable, usual = systems.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "bppsa-nb"
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home folder; BPPSA_NB_CACHE can name one") from error


def check_path(path, name="path"):
    """Return the pathlib.Path of a file, or raise TypeError or ValueError for what names none, by its `name`."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"{name} must be a str or an os.PathLike, got {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(f"{name} must be the name of a file or a folder, got {path!r}")
    return Path(path)


@contextmanager
def atomic_write(path, mode="wb"):
    """Write a file so that a reader sees the old one or the new one, never half of one: bytes, or with "w" UTF-8.

    The block gets a temporary sibling, which replaces `path` at its end, and is removed if the block raises. Missing
    folders are made, a symbolic link is followed, and permissions stay. Raises OSError where that cannot be done,
    TypeError or ValueError for what names no file.
    """
    target = Path(os.path.realpath(check_path(path)))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = str(target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp")
    text = {"encoding": "utf-8", "newline": ""} if mode == "w" else {}
    try:
        with open(temporary, mode.replace("w", "x"), **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, temporary):
            error.filename = os.fspath(path)  # of a full disk, nothing says which file it was
        raise


def check_writable(path):
    """Raise an OSError that names a path if it is a folder, or no file can be made there; raise as `check_path`."""
    target = Path(os.path.realpath(check_path(path)))
    folder = next(folder for folder in (target.parent, *target.parents) if folder.exists())  # / has no parents
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename = os.fspath(path)
        raise


@contextmanager
def folder_lock(folder, shared=False):
    """Hold a folder, made if need be, locked where possible: other processes wait, unless all want it `shared`."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(number, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def check_regular(path):
    """Raise ValueError unless a file is a regular one: nothing may come from a pipe, without end from a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} must be a regular file")


@contextmanager
def unpacking(said, advice=""):
    """Have a block read what is compressed or packed: what is `said` of a damaged file is a CorruptFileError."""
    try:
        yield
    except Exception as error:  # a damaged file shows itself in many ways
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # it is the system's
            raise
        why = str(error).partition("\n")[0].rstrip(":") or "it is cut off"
        raise CorruptFileError(f"{said}: {why}{advice}") from error


def read_npz(path, writer):
    """Read all arrays of an ``.npz`` file, by name; nothing in it is ever unpickled.

    One that is not there is a FileNotFoundError; one that is damaged, or not what `writer` writes, a CorruptFileError.
    """
    import zipfile

    import numpy as np

    check_regular(check_path(path))  # a pipe that nobody writes to would be waited for
    with unpacking(f"{path} is not an .npz file written by {writer}"), open(path, "rb") as file:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive of arrays")
        with np.load(file, allow_pickle=False) as entries:
            arrays = {name: entries[name] for name in entries.files}
        if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{other[0]!r} is no array")
        return arrays


def npz_entry(path, entries, name, like=None):
    """Return an entry of `read_npz`, row by row; ValueError unless it is there, finite, and fits `like`."""
    import numpy as np

    if name not in entries:
        raise ValueError(f"{path} has no entry {name!r}; it has {sorted(entries)}")
    array = entries[name]
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name!r} must be a numpy.ndarray, got {type(array).__name__}")
    if like is not None and (array.shape != like.shape or array.dtype != like.dtype):
        wanted, got = (f"{each.shape} and dtype {each.dtype}" for each in (like, array))
        raise ValueError(f"{path}: {name!r} must have shape {wanted} to fit the model, got {got}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{path}: {name!r} must be finite")
    if array.dtype.hasobject:
        raise ValueError(f"{path}: {name!r} must hold numbers or text, got Python objects")
    return np.asarray(array, order="C")


def write_json(path, value):
    """Write `value` as indented JSON, atomically; NumPy's scalars become Python's, what JSON lacks is a TypeError."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=python_scalar)
    with atomic_write(path, "w") as file:
        file.write(text + "\n")


def read_json(path):
    """Read a JSON file written by `write_json`, or raise CorruptFileError if it holds no JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is damaged: {error}") from error


def python_scalar(value):
    """Return Python's own scalar for one of NumPy's, as ``default`` of `json.dumps`; raise TypeError for others."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"JSON holds numbers, text, lists and dicts, got {type(value).__name__}: {value!r}")
