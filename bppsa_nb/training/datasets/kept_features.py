"""Where the features of clips are kept, so that a file that has not changed is computed once."""

import hashlib
import os
import sys
from contextlib import contextmanager
from importlib import metadata

import numpy as np

from bppsa_nb.machine import files


class Kept:
    """The features `clips` [shape=(N, F, C), dtype=float32] of a folder's clips, kept in files of a few clips each.

    `settings` say how features are computed: what `repr` tells apart is kept apart. OSError if they cannot be kept.
    """

    def __init__(self, folder, names, settings, shape):
        # Before any is read, so that a file that changes meanwhile is found changed the next time.
        self._entries = [f"{name} {_stamp(folder / name)}" for name in names]
        self.clips = np.empty((len(names), *shape), np.float32)
        settings = repr((str(folder.resolve()), *settings, metadata.version("librosa")))
        key = hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()
        frames, size = shape
        self._folder = files.root() / "data" / "downloads" / "features" / f"{frames}x{size}-{key}"
        with self._explained():
            self._folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _explained(self):
        try:
            yield
        except OSError as error:
            raise OSError(f"features cannot be kept in {self._folder}: {error}") from error

    def store(self, chosen):
        """Write the features of the clips with these indices."""
        entries = [self._entries[i] for i in chosen]
        key = hashlib.blake2b(os.fsencode("\n".join(entries)), digest_size=8).hexdigest()
        with self._explained(), files.atomic_write(self._folder / f"{key}.npz") as file:
            np.savez(file, entries=np.array(entries), clips=self.clips[chosen])

    def pick_up(self):
        """Fill in the features that are kept; return the indices of the other clips."""
        wanted = {entry: i for i, entry in enumerate(self._entries)}
        filled = set()
        with self._explained():
            for path in sorted(self._folder.glob("*.npz")):
                try:
                    entries, values = self._read(path)
                except Exception as error:  # a damaged archive shows itself in many ways
                    print(f"features kept in {path} cannot be read and are computed anew: {error}", file=sys.stderr)
                    path.unlink()
                    continue
                rows = {wanted[entry]: row for row, entry in enumerate(entries) if entry in wanted}
                if not rows:
                    path.unlink()  # all of its clips are gone or have changed
                self.clips[list(rows)] = values[list(rows.values())]
                filled |= rows.keys()
        return sorted(set(range(len(self.clips))) - filled)

    def _read(self, path):
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as kept:
            entries, values = kept["entries"].tolist(), kept["clips"]
        if values.shape != (len(entries), *self.clips.shape[1:]) or values.dtype != self.clips.dtype:
            raise ValueError(f"shape {values.shape}, dtype {values.dtype}")
        if not np.isfinite(values).all():
            raise ValueError("NaN or infinity")
        return entries, values


def _stamp(path):
    try:
        status = os.stat(path)
    except OSError:
        return "unknown"  # reading it says why
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
