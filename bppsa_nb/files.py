"""Where the project keeps its files, and how they are written: whole, or not at all."""

import json
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile


class DamagedError(ValueError):
    """A file holds something else than what was written to it; the message names it."""


def root():
    """Find the folder that holds `data/`, `figures/` and `notebooks/`.

    Returns
    -------
    pathlib.Path
        The checkout that the package was imported from (the folder with `pyproject.toml`); for an installed
        copy without one, the current working directory.
    """
    checkout = Path(__file__).resolve().parents[1]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def shipped(*names):
    """Find a folder that comes with a checkout of the project, and not with an installed package.

    Parameters
    ----------
    *names : str
        From `root` down.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    FileNotFoundError
        If it is not there; the message says where it would be.
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


@contextmanager
def atomic_write(path, mode="wb"):
    """Write a file so that a reader sees the old one or the new one, never half of one.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write; missing folders are made.
    mode : {"wb", "w"}
        Bytes, or text (UTF-8, newlines as written).

    Yields
    ------
    file object
        A temporary sibling. It replaces `path` when the block ends, and is removed if the block raises.

    Raises
    ------
    ValueError
        If `mode` is neither "wb" nor "w".
    OSError
        If it cannot be written; `path` is named, on a full disk too.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f'mode must be "wb" or "w", got {mode!r}')
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"dir": path.parent, "prefix": f".{path.name}.", "suffix": ".tmp", "delete": False}
    if mode == "w":
        options |= {"encoding": "utf-8", "newline": ""}
    file = NamedTemporaryFile(mode, **options)
    try:
        with naming(path), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def check_regular(path):
    """Raise ValueError unless a file is a regular one: nothing may come from a pipe, without end from a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} must be a regular file")


def check_writable(folder):
    """Raise OSError, naming the folder, unless files can be made there; a missing one is made."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        error.filename = str(folder)
        raise


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
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no such file, or damaged.
    """
    import numpy as np

    with open(path, "rb") as file:
        try:
            entries = np.load(file, allow_pickle=False)
            if isinstance(entries, np.ndarray):
                raise ValueError("it holds one array, as an .npy file does")
            with entries:
                return {name: entries[name] for name in entries.files}
        except Exception as error:  # a damaged archive shows itself in many ways
            raise ValueError(f"{path} is not an .npz file written by {writer}: {error}") from error


def npz_entry(path, entries, name, like=None):
    """Return one of the arrays that `read_npz` read, finite, and of the shape and dtype of `like` if given.

    Raises
    ------
    ValueError
        If it is not there, or not so; `path` and `name` are named.
    """
    import numpy as np

    if name not in entries:
        raise ValueError(f"{path} has no entry {name!r}; it has {sorted(entries)}")
    array = entries[name]
    if like is not None and (array.shape != like.shape or array.dtype != like.dtype):
        raise ValueError(
            f"{path}: {name!r} must have shape {like.shape} and dtype {like.dtype} to fit the model, "
            f"got {array.shape} and {array.dtype}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{path}: {name!r} must be finite")
    return array


def write_json(path, value):
    """Write `value` as indented JSON, atomically.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write.
    value : dict or list
        Anything that JSON can hold; NumPy scalars become Python's.

    Raises
    ------
    TypeError
        If `value` holds something else.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_python_scalar)
    with atomic_write(path, "w") as file:
        file.write(text + "\n")


def read_json(path):
    """Read a JSON file written by `write_json`.

    Raises
    ------
    DamagedError
        If it holds no JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


def _umask():
    # A temporary file is private to its owner; a result is as readable as any file the user makes.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _python_scalar(value):
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"JSON holds numbers, text, lists and dicts, got {type(value).__name__}: {value!r}")
