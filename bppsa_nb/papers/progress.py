"""A sweep over points that can be stopped at any time and goes on where it was."""

import itertools
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from bppsa_nb.machine import files, process
from bppsa_nb.machine.checks import generator


class Progress:
    """Measures the points of a sweep one by one, and saves each as soon as it is done.

    They are saved at `path` until the table is complete; in memory only if that is None. Points of a run before are
    used again where `provenance` (what the measurement depends on, as `provenance.describe` says, or {}) is the same
    but for its date; otherwise the sweep starts afresh. Either way it says so. With `show` there is a bar, where the
    output is a terminal or a notebook.
    """

    def __init__(self, path=None, provenance=None, show=True):
        self.path = None if path is None else Path(path)
        self.provenance = provenance or {}
        self.show = show
        self._sweeps = 0
        self._saved = {}
        if self.path is not None:
            self._folder = self.path.with_name(f"{self.path.name}.kept")
            if not (self.path.exists() and self._picked_up()):
                self._forget()

    def collect(self, points, measure_point, rng):
        """Measure every point that is not saved from a run that was stopped; return a pandas.DataFrame, in their order.

        Points are dicts of numbers and text, all different, else there is a ValueError. ``measure_point(point, rng)``
        returns rows, dicts of numbers, text or None, else there is a TypeError; the point's own values are added to
        them. Its generator is spawned from `rng` by the point's place in the sweep, stopped or not.
        """
        import pandas

        sweep, self._sweeps = self._sweeps, self._sweeps + 1
        points = [_plain(point, "point") for point in points]
        keys = [json.dumps([sweep, point], sort_keys=True) for point in points]
        for key, point in zip(keys, points, strict=True):
            if keys.count(key) > 1:
                raise ValueError(f"points must be different, got {point} more than once")
        work = zip(keys, points, generator(rng).spawn(len(points)), strict=True)
        left = [item for item in work if item[0] not in self._saved]
        bar = {"unit": "point", "initial": len(points) - len(left), "leave": True}
        with self.bar(None, self.provenance.get("name"), len(points), **bar) as shown:
            for key, point, own in left:
                shown.set_postfix(point)
                rows = measure_point(point, own)
                self._saved[key] = [point | _plain(row, "row") for row in rows]
                self._write()
                shown.update()
        return pandas.DataFrame([row for key in keys for row in self._saved[key]])

    def bar(self, steps, name, total=None, **options):
        """Return the steps of one point, shown as a bar while they are gone through; `total` if they have no length."""
        # disable=None: no bar where nobody watches
        return process.bar(steps, name, total, **{"leave": False, "disable": None if self.show else True} | options)

    def keep(self, name):
        """Return a path at which a long point keeps what it has so far, and finds it again; None in memory."""
        if self.path is None:
            return None
        self._write()  # what it depends on, for who finds it again
        self._folder.mkdir(exist_ok=True)
        return self._folder / name

    def finish(self):
        """Forget the saved points: the table is complete, and the next run measures afresh."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            self._forget()

    def _forget(self):
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _write(self):
        if self.path is not None:
            files.write_json(self.path, {"provenance": self.provenance, "points": self._saved})

    def _picked_up(self):
        saved = read_saved(self.path)
        if saved is None:
            self._say("starts afresh, the points saved before cannot be read")
            return False
        then, now = saved["provenance"], self.provenance
        keys = sorted((then.keys() | now.keys()) - {"date"})
        changed = ", ".join(key for key in keys if then.get(key) != now.get(key))
        if changed:
            self._say(f"starts afresh, {changed} changed since {len(saved['points'])} points were saved")
            return False
        self._saved = saved["points"]
        self._say(f"goes on after {len(self._saved)} points measured before")
        return True

    def _say(self, what):
        print(f"{self.provenance.get('name', self.path.name)}: {what}", file=sys.stderr)


def read_saved(path):
    """Read what a sweep that was stopped has saved; None where the file is damaged."""
    try:
        saved = files.read_json(path)
        points = saved["points"].values()
        if not isinstance(saved["provenance"], dict) or not all(isinstance(rows, list) for rows in points):
            return None
        for row in itertools.chain(*points):
            _plain(row, "row")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return saved


def _plain(values, what):
    # Through Python's own scalars at once, so that a point just measured is equal to one that was saved.
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str | None):
            raise TypeError(f"{what}[{name!r}] must be a number, text or None, got {type(value).__name__}")
    return plain
