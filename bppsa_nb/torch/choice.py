"""Whose code is faster for a plain batch on the host, torch.nn's or ours: a table of what was measured for some sizes.

The package's own is `choice.json`; `bppsa_nb.torch.calibrate` stores one of this machine.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from bppsa_nb.chains import prices
from bppsa_nb.machine import files

GRID = {"T": (1, 4, 16, 64), "B": (1, 8, 32, 128), "H": (16, 64, 128, 256, 512)}  # with as many inputs as H
_AXES = [np.log(sizes) for sizes in GRID.values()]


def path():
    """Name the file that holds this machine's table."""
    return files.cache_folder() / "torch.json"


@cache
def _table():
    own = files.read_json(path()) if path().exists() else None
    if own is None or own["machine"] != prices.machine():
        own = files.read_json(Path(__file__).with_suffix(".json"))
    shape = [len(sizes) for sizes in GRID.values()]
    return {name: np.log(ratios).reshape(shape) for name, ratios in own["ratios"].items()}


def forget():
    """Have the table be read anew."""
    _table.cache_clear()


def name(kind, training):
    """Name a part of the table: of layers of a kind, and of as many threads as PyTorch has."""
    return f"{kind}, {'training' if training else 'forward'}, {min(torch.get_num_threads(), 2)}"


def ratio(kind, sizes, training):
    """Predict torch.nn's time over ours for sizes T, B and H: interpolated, on axes of logarithms; as at the edges."""
    from scipy.interpolate import interpn

    point = [np.clip(np.log(size), axis[0], axis[-1]) for size, axis in zip(sizes, _AXES, strict=True)]
    return float(np.exp(interpn(_AXES, _table()[name(kind, training)], point).item()))
