"""What `Trainer` saves: entries of an ``.npz`` file, and the one rule of what they must be, to be written or read."""

import json
import math
from functools import partial
from typing import NamedTuple

import numpy as np

from bppsa_nb.machine.checks import as_float, check_count
from bppsa_nb.machine.files import atomic_write, check_writable, npz_entry, python_scalar, read_npz

_FORMAT = 1
_MOST = 2**63 - 1  # of what is counted


class Checkpoint(NamedTuple):
    """What there is in a file, by the names of the parameters."""

    params: dict
    masks: dict | None
    state: dict  # the optimizer's averages, a dict of arrays each
    note: dict  # steps of the optimizer; epoch, position, seed, plan and forward of the trainer
    loss: np.ndarray  # [shape=(iterations,), dtype=float64]
    seconds: np.ndarray  # the same

    def restore(self, model, optimizer):
        """Put a model and an optimizer where they were when a file was written."""
        model.params.update(self.params)
        if hasattr(model, "masks"):
            model.masks = self.masks
        state = optimizer.zeros(model.params)
        for average, arrays in self.state.items():
            state[average].update(arrays)
        optimizer.state, optimizer.steps = state, self.note["steps"]


def check_saving(save_to, save_every, writes):
    """Raise TypeError, ValueError or OSError unless a file can be saved so; only a process that `writes` tries it."""
    if (save_to is None) != (save_every is None):
        raise ValueError(f"save_to and save_every go together, got {save_to!r} and {save_every!r}")
    if save_every is not None and writes:
        check_writable(save_to)  # found out now, and not after so many iterations


def write(path, model, optimizer, history, place):
    """Write a file for `read`, or raise as `Trainer.save`; `place` has epoch, position, seed, plan, forward."""
    try:
        note = {"format": _FORMAT, "optimizer": _settings(optimizer), "steps": optimizer.steps} | place
        entries = {"note": np.array(_json(note)), "loss": history.loss, "seconds": history.seconds}
        state = optimizer.state or optimizer.zeros(model.params)
        masks = getattr(model, "masks", None) or {}
        for group, arrays in {"params": model.params, "masks": masks, **state}.items():
            entries |= {f"{group}/{name}": array for name, array in arrays.items()}
        _checkpoint(path, entries, model, optimizer)
    except (TypeError, ValueError) as error:
        raise type(error)(f"nothing was saved, for it could not be loaded: {error}") from error
    with atomic_write(path) as file:
        np.savez(file, **entries)


def read(path, model, optimizer):
    """Return the arrays of a file, and the `Checkpoint` that they are; what it raises is said by `Trainer.load`."""
    entries = read_npz(path, "Trainer.save")
    return entries, _checkpoint(path, entries, model, optimizer)


def _checkpoint(path, entries, model, optimizer):
    """Check the entries of a file, and tell them apart; ValueError names what is missing, left over or damaged."""
    entry = partial(npz_entry, path, entries)
    note = _checked_note(path, entry("note"))
    if note["optimizer"] != _settings(optimizer):
        written, here = note["optimizer"], _settings(optimizer)
        raise ValueError(f"{path} was written with the optimizer {written}, this trainer has {here}")
    loss, seconds = entry("loss"), entry("seconds")
    if loss.ndim != 1 or loss.shape != seconds.shape or not loss.dtype == seconds.dtype == np.float64:
        came = f"{loss.shape} of {loss.dtype} and {seconds.shape} of {seconds.dtype}"
        raise ValueError(f"{path}: 'loss' and 'seconds' must be equally long, of float64, got {came}")
    groups = {"params": model.params, **optimizer.zeros(model.params)}
    state = {group: {n: entry(f"{group}/{n}", like) for n, like in likes.items()} for group, likes in groups.items()}
    known = {"note", "loss", "seconds"} | {f"{group}/{name}" for group, likes in groups.items() for name in likes}
    params, masks = state.pop("params"), None
    if hasattr(model, "masks"):
        masks = {name.removeprefix("masks/"): entries[name] for name in entries if name.startswith("masks/")} or None
        known |= {f"masks/{name}" for name in masks or ()}
        try:
            model.check_masks(masks, params)
        except ValueError as error:
            raise ValueError(f"{path} has masks that do not fit the model: {error}") from error
    if entries.keys() - known:
        raise ValueError(f"{path} has entries that do not fit the model: {sorted(entries.keys() - known)}")
    return Checkpoint(params, masks, state, note, loss, seconds)


def _settings(optimizer):
    """Return the settings of an optimizer as they come back from a file."""
    return json.loads(_json(optimizer.settings()))


def _json(value):
    return json.dumps(value, allow_nan=False, default=python_scalar)


def _checked_note(path, array):
    """Return the note of a file, or raise ValueError unless it says where a trainer can be."""
    try:
        note = json.loads(str(array))
        if note["format"] != _FORMAT:
            raise ValueError(f"format {note['format']}, where this version reads {_FORMAT}")
        seed, plan, _ = note["seed"], note["plan"], note["optimizer"]
        spent, rest = note["forward"]
        counts = {name: note[name] for name in ("steps", "epoch", "position")} | {"forward": rest}
        begun = note["epoch"] or note["position"]
        if begun or seed is not None:
            counts["seed"] = seed
        for name, count in counts.items():
            check_count(name, count, 0, _MOST)
        if begun or plan is not None:
            check_count("num_samples", plan["num_samples"], 1 + note["position"], _MOST)
            check_count("batch_size", plan["batch_size"], 1, _MOST)
        if spent is not None and not 0 <= as_float("forward", spent) < math.inf:
            raise ValueError(f"forward must be finite and at least 0, got {spent}")
        return note
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: the entry 'note' is damaged: {error!r}") from error
