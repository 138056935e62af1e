"""Where the project keeps its files, and how they are written: whole, or not at all."""

import errno
import hashlib
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

try:
    import fcntl
except ImportError:  # Windows: writers are not told from what they left there
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
    """Return a folder, by the names from `root` down, that comes with a checkout, and not with an installed package.

    If it is not there, a FileNotFoundError says where it would be.
    """
    folder = root().joinpath(*names)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there: {'/'.join(names)}/ comes with a checkout of the project, not with the installed "
            "package; run this in a checkout's folder"
        )
    return folder


@contextmanager
def naming(path):
    """Have errors of the system name a file where they name none, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def check_path(path, name="path"):
    """Return the pathlib.Path of a file, or raise TypeError or ValueError for what names none, by its `name`."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"{name} must be a str or an os.PathLike, got {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(f"{name} must be the name of a file or a folder, got {path!r}")
    return Path(path)


@contextmanager
def atomic_write(path, mode="wb"):
    """Write a file so that a reader sees the old one or the new one, never half of one.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write; missing folders are made. A symbolic link stays one: what it leads to is written. A file that
        is there already keeps its permissions.
    mode : {"wb", "w"}
        Bytes, or text (UTF-8, newlines as written).

    Yields
    ------
    file object
        A temporary sibling. It replaces `path` when the block ends, and is removed if the block raises; if the process
        is killed, by the next one that writes `path`.

    Raises
    ------
    TypeError, ValueError
        If `path` names no file, or `mode` is neither "wb" nor "w".
    OSError
        If the file cannot be written, or is a folder, a device, a pipe or a socket.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f'mode must be "wb" or "w", got {mode!r}')
    given, (path, permissions) = path, _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    options = {"dir": path.parent, "prefix": f".{path.name}.", "suffix": ".tmp", "delete": False}
    if mode == "w":
        options |= {"encoding": "utf-8", "newline": ""}
    file = None
    try:
        file = NamedTemporaryFile(mode, **options)
        with locked(file.name):
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(file.name, permissions)
            os.replace(file.name, path)
    except BaseException as error:
        if file:
            Path(file.name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and (error.filename is None or not file):
            error.filename = os.fspath(given)  # of a full disk, nothing says which file it was
        raise


def check_writable(path):
    """Raise what `atomic_write` raises for a path, but for what only writing shows; nothing is made or changed."""
    target, _ = _target(path)
    folder = next(folder for folder in target.parents if folder.exists())
    try:
        with NamedTemporaryFile(dir=folder, prefix=f".{target.name}.", suffix=".tmp"):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextmanager
def one_at_a_time(folder):
    """Have processes that write several files of a folder, which belong together, wait for each other; it is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield


def _target(path):
    """Return the file that a path leads to, and the permissions that it is to have; raise if it cannot be replaced."""
    path = check_path(path)
    target = Path(os.path.realpath(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return target, 0o666 & ~_umask()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a file can be replaced, a device, a pipe or a socket cannot", str(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target, stat.S_IMODE(status.st_mode)


def _remove_leftovers(path):
    # A writer holds its file locked from before the first byte. Of one that was killed, on whatever machine, the lock
    # is gone.
    mine = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}\.tmp")
    for entry in os.scandir(path.parent) if fcntl else ():
        if mine.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError), open(entry, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_size:
                    os.unlink(entry)


@contextmanager
def locked(path, wait=True):
    """Hold a file or a folder locked, where that can be done; whoever holds it is waited for, or a BlockingIOError."""
    if fcntl is None:
        yield
        return
    number = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # not every file system has locks
            pass
        yield
    finally:
        os.close(number)


def checksum(path, algorithm):
    """Return a file's checksum by an algorithm that `hashlib` has, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def check_regular(path):
    """Raise ValueError unless a file is a regular one: nothing may come from a pipe, without end from a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} must be a regular file")


def read_npz(path, writer):
    """Read all arrays of an ``.npz`` file; nothing in it is ever unpickled.

    Parameters
    ----------
    path : str or os.PathLike
    writer : str
        What writes such files, for the error.

    Returns
    -------
    dict of str to np.ndarray

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        If `path` names no file, or a pipe or a device; if it is no such file, or damaged.
    """
    import numpy as np

    check_regular(check_path(path))  # a pipe that nobody writes to would be waited for
    with open(path, "rb") as file:
        try:
            entries = np.load(file, allow_pickle=False)
            if isinstance(entries, np.ndarray):
                raise ValueError("it holds one array, as an .npy file does")
            with entries:
                arrays = {name: entries[name] for name in entries.files}
            if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{other[0]!r} is no array")
            return arrays
        except Exception as error:  # a damaged archive shows itself in many ways
            raise ValueError(f"{path} is not an .npz file written by {writer}: {error}") from error


def npz_entry(path, entries, name, like=None):
    """Return one of the arrays that `read_npz` read, finite, row by row, of the shape and dtype of `like` if given.

    If it is not there, or not so, a ValueError names `path` and `name`.
    """
    import numpy as np

    if name not in entries:
        raise ValueError(f"{path} has no entry {name!r}; it has {sorted(entries)}")
    array = entries[name]
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {name!r} must be a numpy.ndarray, got {type(array).__name__}")
    if like is not None and (array.shape != like.shape or array.dtype != like.dtype):
        raise ValueError(
            f"{path}: {name!r} must have shape {like.shape} and dtype {like.dtype} to fit the model, "
            f"got {array.shape} and {array.dtype}"
        )
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


def _umask():
    # A temporary file is private to its owner; a result is as readable as any file the user makes.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def python_scalar(value):
    """Return Python's own scalar for one of NumPy's, as ``default`` of `json.dumps`; raise TypeError for others."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"JSON holds numbers, text, lists and dicts, got {type(value).__name__}: {value!r}")
