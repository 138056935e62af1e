"""Whose code is faster for a plain batch on the host, torch.nn's or ours: measured for some sizes (`choice.json`)."""

import itertools
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch

from bppsa_nb.chains import prices
from bppsa_nb.machine import files, process

GRID = {"T": (1, 4, 16, 64), "B": (1, 8, 32, 128), "H": (16, 64, 128, 256, 512)}  # with as many inputs as H


@cache
def table():
    """Return torch.nn's time over ours, logarithms [shape=(T, B, H, 2)]: forward, and training; by kind and threads."""
    path = files.cache_folder() / "torch.json"
    own, shape = files.read_json(path) if path.exists() else {"machine": None}, (*map(len, GRID.values()), 2)
    try:
        if own["machine"] != prices.machine():
            own = files.read_json(Path(__file__).with_suffix(".json"))
        return {name: np.log(ratios).reshape(shape) for name, ratios in own["ratios"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise files.CorruptFileError(f"{path} is damaged: {error!r}; `bppsa-nb calibrate` writes it anew") from error


def ratio(kind, sizes, training):
    """Predict torch.nn's time over ours for sizes T, B and H: interpolated, on axes of logarithms; as at the edges."""
    from scipy.interpolate import interpn

    part = table()[f"{kind}, {min(torch.get_num_threads(), 2)}"]
    axes = [np.log(own) for own in GRID.values()]
    point = [np.clip(np.log(size), axis[0], axis[-1]) for size, axis in zip(sizes, axes, strict=True)]
    return float(np.exp(interpn(axes, part[..., int(training)], point).item()))


def measure(kinds, progress):
    """Time pairs of classes, torch.nn's and ours, on this machine, with one thread of PyTorch's and with all."""
    files.check_writable(path := files.cache_folder() / "torch.json")
    threads, ratios, sizes = torch.get_num_threads(), {}, list(itertools.product(*GRID.values()))
    with process.bar(total=2 * len(kinds) * len(sizes), desc="torch", disable=None if progress else True) as bar:
        try:
            for count, (theirs, ours) in itertools.product((1, max(2, threads)), kinds.items()):
                torch.set_num_threads(count)
                found = []
                for T, B, H in sizes:
                    both, x = (theirs(H, H), ours(H, H, backend="cpu")), torch.randn(T, B, H)
                    found.append([_time(both, x, training) for training in (False, True)])
                    bar.update()
                found = np.reshape(found, (*map(len, GRID.values()), 2))
                ratios[f"{ours.__name__}, {min(count, 2)}"] = found.round(3).tolist()
        finally:
            torch.set_num_threads(threads)
    files.write_json(path, {"machine": prices.machine(), "torch": torch.__version__, "ratios": ratios})
    table.cache_clear()
    return path


def _time(both, x, training):
    """Return torch.nn's time over ours, of medians, which take turns."""
    began, times = time.perf_counter(), []
    with torch.set_grad_enabled(training):
        while len(times) < 4 or (time.perf_counter() - began < 0.1 and len(times) < 50):
            ticks = [time.perf_counter()]
            for layers in both:
                output, _ = layers(x)
                if training:
                    output.sum().backward()
                ticks.append(time.perf_counter())
            times.append(np.diff(ticks))
    return np.divide(*np.median(times[1:], axis=0))
