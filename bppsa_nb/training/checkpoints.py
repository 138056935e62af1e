"""What `Trainer` saves: entries of an ``.npz`` file, and the one rule of what they must be, to be written or read."""

import json
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb.machine.checks import check_count
from bppsa_nb.machine.files import atomic_write, check_path, check_writable, npz_entry, python_scalar, read_npz

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What there is in a file, by the names of the parameters."""

    params: dict
    masks: dict | None
    state: dict  # the optimizer's averages, a dict of arrays each
    note: dict  # steps of the optimizer; epoch, position, seed and plan of the trainer
    loss: np.ndarray  # [shape=(iterations,), dtype=float64]
    seconds: np.ndarray  # the same


def check_saving(save_to, save_every, writes):
    """Raise TypeError, ValueError or OSError unless a file can be saved so; only a process that `writes` tries it."""
    if (save_to is None) != (save_every is None):
        raise ValueError(f"save_to and save_every go together, got {save_to!r} and {save_every!r}")
    if save_every is not None:
        check_count("save_every", save_every, 1)
        check_path(save_to, "save_to")
        if writes:
            check_writable(save_to)  # found out now, and not after so many iterations


def write(path, trainer):
    """Write a file that `read` takes, or none; what it raises is said by `Trainer.save`."""
    check_path(path)
    model, optimizer, history = trainer.model, trainer.optimizer, trainer.history
    try:
        note = {"format": _FORMAT, "optimizer": _settings(optimizer), "steps": optimizer.steps}
        note |= {"epoch": trainer.epoch, "position": trainer.position, "seed": trainer._seed, "plan": trainer._plan}
        note |= {"forward": [trainer.forward.spent, trainer.forward.rest]}
        entries = {"note": np.array(_json(note))}
        entries |= {"loss": history.loss, "seconds": history.seconds}
        state = optimizer.state or optimizer.zeros(model.params)
        masks = getattr(model, "masks", None) or {}
        for group, arrays in {"params": model.params, "masks": masks, **state}.items():
            entries |= {f"{group}/{name}": array for name, array in arrays.items()}
        _unpack(path, entries, model, optimizer)
    except (TypeError, ValueError) as error:
        raise type(error)(f"nothing was saved, for it could not be loaded: {error}") from error
    with atomic_write(path) as file:
        np.savez(file, **entries)


def read(path, model, optimizer):
    """Return the arrays of a file, and the `Checkpoint` that they are; what it raises is said by `Trainer.load`."""
    entries = read_npz(path, "Trainer.save")
    return entries, _unpack(path, entries, model, optimizer)


def restore(trainer, checkpoint):
    """Put a trainer where it was when a file was written."""
    model, optimizer, note = trainer.model, trainer.optimizer, checkpoint.note
    model.params.update(checkpoint.params)
    if hasattr(model, "masks"):
        model.masks = checkpoint.masks
    optimizer.state, optimizer.steps = checkpoint.state, note["steps"]
    trainer.epoch, trainer.position = note["epoch"], note["position"]
    trainer._seed, trainer._plan = note["seed"], note["plan"]
    trainer.forward.spent, trainer.forward.rest = note["forward"]
    trainer._loss, trainer._seconds = checkpoint.loss.tolist(), checkpoint.seconds.tolist()


def _unpack(path, entries, model, optimizer):
    """Check the entries of a file, and tell them apart; ValueError names what is missing, left over or damaged."""
    entry = partial(npz_entry, path, entries)
    note = _read_note(path, entry("note"))
    if note["optimizer"] != _settings(optimizer):
        raise ValueError(
            f"{path} was written with the optimizer {note['optimizer']}, this trainer has {_settings(optimizer)}"
        )
    loss, seconds = entry("loss"), entry("seconds")
    if loss.ndim != 1 or loss.shape != seconds.shape:
        raise ValueError(f"{path}: 'loss' and 'seconds' must be equally long, got {loss.shape} and {seconds.shape}")
    for name, array in {"loss": loss, "seconds": seconds}.items():
        if array.dtype != np.float64:
            raise ValueError(f"{path}: {name!r} must have dtype float64, got {array.dtype}")
    groups = {"params": model.params, **optimizer.zeros(model.params)}
    state = {
        group: {name: entry(f"{group}/{name}", like) for name, like in likes.items()} for group, likes in groups.items()
    }
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


def _read_note(path, array):
    try:
        note = json.loads(str(array))
        if note["format"] != _FORMAT:
            raise ValueError(f"format {note['format']}, where this version reads {_FORMAT}")
        counts = [note[name] for name in ("steps", "epoch", "position")]
        seed, plan, _ = note["seed"], note["plan"], note["optimizer"]
        sound = all(type(count) is int and 0 <= count < 2**63 for count in counts)
        sound &= seed is None or (type(seed) is int and 0 <= seed < 2**63)
        if plan is not None:
            sound &= plan.keys() == {"num_samples", "batch_size"}
            sound &= all(type(count) is int and 0 < count for count in plan.values())
        spent, rest = note.setdefault("forward", [None, 0])  # files of earlier versions do not have it
        sound &= type(rest) is int and 0 <= rest and (spent is None or 0 <= spent < math.inf)
        if note["epoch"] or note["position"]:
            sound &= seed is not None and note["position"] < plan["num_samples"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: the entry 'note' is damaged: {error!r}") from error
    if not sound:
        raise ValueError(f"{path}: the entry 'note' is damaged: {note}")
    return note
