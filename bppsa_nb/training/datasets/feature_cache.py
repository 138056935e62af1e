"""The cache of the features of clips: a file for each, so that a clip that has not changed is computed once."""

import hashlib
import os
import sys
from importlib import metadata

import numpy as np

from bppsa_nb.machine import files


def paths_of(folder, names, settings):
    """Return where the features of clips are, as they are now: to be asked before one is read, which may change.

    `settings` say how features are computed: what `repr` tells apart has files of its own.
    """
    features = files.root() / "data" / "downloads" / "features"
    settings, paths = repr((str(folder.resolve()), *settings, metadata.version("librosa"))), []
    for name in names:
        try:
            status = os.stat(folder / name)
            stamp = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        except OSError:
            stamp = None  # reading it says why
        key = hashlib.blake2b(repr((settings, name, stamp)).encode(), digest_size=16).hexdigest()
        paths.append(features / key[:2] / f"{key}.npy")
    return paths


def load(path, out):
    """Read features into an array [dtype=float32]; return whether there are any that are whole."""
    try:
        with open(path, "rb") as file:
            features = np.load(file, allow_pickle=False)
        if features.shape != out.shape or features.dtype != np.float32 or not np.isfinite(features).all():
            raise ValueError(f"shape {features.shape}, dtype {features.dtype}, or NaN or infinity")
        out[:] = features
        return True
    except FileNotFoundError:
        return False
    except Exception as error:  # a damaged file shows itself in many ways
        print(f"features in {path} cannot be read and are computed anew: {error}", file=sys.stderr)
        return False


def save(path, features):
    """Write features so that `load` finds all of them, or nothing."""
    with files.atomic_write(path) as file:
        np.save(file, features)
