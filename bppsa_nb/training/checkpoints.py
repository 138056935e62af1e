"""What `Trainer` saves: entries of an ``.npz`` file, and the one rule of what they must be, to be written or read."""

import json
from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb.machine.files import atomic_write, check_path, npz_entry, python_scalar

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What there is in a file.

    Attributes
    ----------
    params : dict of str to np.ndarray
    masks : dict of str to np.ndarray or None
    state : dict of str to dict of str to np.ndarray
        The optimizer's averages.
    note : dict
        `steps` of the optimizer; `epoch`, `position`, `seed` and `plan` of the trainer.
    loss, seconds : np.ndarray [shape=(iterations,), dtype=float64]
    """

    params: dict
    masks: dict | None
    state: dict
    note: dict
    loss: np.ndarray
    seconds: np.ndarray


def write(path, model, optimizer, place, history):
    """Write a file that `unpack` takes, or none.

    Parameters
    ----------
    path : str or os.PathLike
    model, optimizer
        Of the trainer.
    place : dict
        `epoch`, `position`, `seed` and `plan` of the trainer.
    history : bppsa_nb.training.trainer.History

    Raises
    ------
    TypeError, ValueError
        If `path` names no file, or `unpack` would refuse it.
    OSError
        If it cannot be written.
    """
    check_path(path)
    try:
        note = {"format": _FORMAT, "optimizer": _settings(optimizer), "steps": optimizer.steps} | place
        entries = {"note": np.array(_json(note))}
        entries |= {"loss": history.loss, "seconds": history.seconds}
        state = optimizer.state or optimizer.zeros(model.params)
        masks = getattr(model, "masks", None) or {}
        for group, arrays in {"params": model.params, "masks": masks, **state}.items():
            entries |= {f"{group}/{name}": array for name, array in arrays.items()}
        unpack(path, entries, model, optimizer)
    except (TypeError, ValueError) as error:
        raise type(error)(f"nothing was saved, for it could not be loaded: {error}") from error
    with atomic_write(path) as file:
        np.savez(file, **entries)


def unpack(path, entries, model, optimizer):
    """Check the entries of a file, and tell them apart.

    Parameters
    ----------
    path : str or os.PathLike
        Where they are from, for the error.
    entries : dict of str to np.ndarray
        From `bppsa_nb.machine.files.read_npz`.
    model, optimizer
        Whose they are to be.

    Returns
    -------
    Checkpoint

    Raises
    ------
    ValueError
        If an entry is missing, left over, damaged or does not fit the model, or the optimizer is another one.
    """
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
        if note["epoch"] or note["position"]:
            sound &= seed is not None and note["position"] < plan["num_samples"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: the entry 'note' is damaged: {error!r}") from error
    if not sound:
        raise ValueError(f"{path}: the entry 'note' is damaged: {note}")
    return note
