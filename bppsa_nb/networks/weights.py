"""Weights in files: written whole, read whole or not at all."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bppsa_nb.machine.arguments import Path, checked
from bppsa_nb.machine.checks import check_has, check_kind
from bppsa_nb.machine.files import atomic_write, npz_entry, read_npz


@checked
def save_weights(model: Any, path: Path) -> None:
    """Write a model's parameters to an ``.npz`` file, atomically.

    Parameters
    ----------
    model
        A `Network`, or anything with `params`.
    path
        The file, named as given. Its entries have the parameters' names, which are PyTorch's.

    Raises
    ------
    ValueError, OSError
        If a parameter is not finite; if the file cannot be written.
    """
    _check_model(model)
    for name in model.params:
        npz_entry("model.params", model.params, name)
    with atomic_write(path) as file:
        np.savez(file, **model.params)


@checked
def load_weights(model: Any, path: Path) -> None:
    """Take over parameters from an ``.npz`` file, all of them or, on an error, none.

    Masks are not kept in the file: pruned weights are those that are zero. A network that has masks takes only weights
    that are zero where the masks prune; one without keeps none, until told to by
    ``network.masks = masks_of(network.params)``.

    Parameters
    ----------
    model
        A `Network`, or anything with `params`, a mapping of names to arrays.
    path
        A file that `save_weights` wrote, or ``numpy.savez`` with PyTorch's names:
        ``np.savez(path, **{name: p.numpy() for name, p in module.state_dict().items()})``. Nothing is unpickled.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; if an entry is missing, left over, not finite, or of another shape or dtype than the
        model's; if a weight is not zero where the masks prune.
    """
    _check_model(model)
    entries = read_npz(path, "save_weights")
    params = {name: npz_entry(path, entries, name, param) for name, param in model.params.items()}
    if entries.keys() - params.keys():
        raise ValueError(f"{path} has entries that do not fit the model: {sorted(entries.keys() - params.keys())}")
    for name, mask in (getattr(model, "masks", None) or {}).items():
        if np.any(params[name][~mask]):
            raise ValueError(f"{path}: {name!r} must be zero where the model's masks prune it")
    model.params.update(params)  # at once: Ctrl-C leaves nothing half done


def _check_model(model):
    check_has("model", model, ["params"], "bppsa_nb.LeNet5()")
    check_kind("model.params", model.params, Mapping, "a dict of arrays")
