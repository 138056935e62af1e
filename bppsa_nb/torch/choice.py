"""Whose code is faster on the host, torch.nn's or ours: measured for some sizes (`choice.json`)."""

import itertools
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from bppsa_nb.chains import prices
from bppsa_nb.machine import files, process

GRID = {"T": (1, 4, 16, 64, 256), "B": (1, 8, 32), "H": (16, 64, 128, 256, 512)}  # with as many inputs as H
KNOWN = Path(__file__).with_suffix(".json")  # tables of the machines that the package knows
TIE = 1.05  # up to this ratio torch.nn's runs, for ratios are some percent off


@cache
def table():
    """Return torch.nn's time over ours, logarithms [shape=(T, B, H, 2)]: forward, and training; by kind and threads.

    They are of this machine, where it was measured; else the least of those of the machines that the package knows.
    """
    path, shape = files.cache_folder() / "torch.json", (*map(len, GRID.values()), 2)
    known = files.read_json(KNOWN)
    try:
        measured = [*known, files.read_json(path)] if path.exists() else known
        here = [each for each in measured if (each["machine"], each["sizes"]) == (prices.machine(), str(GRID))]
        own, others = here[-1]["ratios"] if here else {}, [each["ratios"] for each in known]
        names = {name: [each[name] for each in others if name in each] for each in others for name in each}
        return {name: np.log(own.get(name) or np.min(names[name], 0)).reshape(shape) for name in names}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise files.CorruptFileError(f"{path} is damaged: {error!r}; `bppsa-nb calibrate` writes it anew") from error


def ratio(kind, sizes, training):
    """Predict torch.nn's time over ours for sizes T, B and H: interpolated, on axes of logarithms; as at the edges.

    Of packed sequences, T is the longest one's length, and B how many there are on average at a step.
    """
    found = table()[f"{kind}, {min(torch.get_num_threads(), 2)}"][..., int(training)]
    for size, own in zip(sizes, GRID.values(), strict=True):
        place = np.interp(np.log(size), np.log(own), range(len(own)))
        low = min(int(place), len(own) - 2)
        found = found[low] + (place - low) * (found[low + 1] - found[low])
    return float(np.exp(found))


def measure(kinds, progress):
    """Time pairs of classes, torch.nn's and ours, on this machine, with one thread of PyTorch's and with all."""
    files.check_writable(path := files.cache_folder() / "torch.json")
    threads, ratios, sizes = torch.get_num_threads(), {}, list(itertools.product(*GRID.values()))
    ways = list(itertools.product(kinds.items(), ("", ", packed")))
    ways += [(both, ", bfloat16") for both in kinds.items() if issubclass(both[0], torch.nn.LSTM)]  # oneDNN's, too
    with process.bar(total=2 * len(ways) * len(sizes), desc="torch", disable=None if progress else True) as bar:
        try:
            for count, ((theirs, ours), how) in itertools.product((1, max(2, threads)), ways):
                torch.set_num_threads(count)
                found = []
                for T, B, H in sizes:
                    both, x = (theirs(H, H), ours(H, H, backend="cpu")), _draw(T, B, H, how)
                    if how == ", bfloat16":
                        both, x = [layers.bfloat16() for layers in both], x.bfloat16()
                    found.append([_time(both, x, training) for training in (False, True)])
                    bar.update()
                ratios[f"{ours.__name__}{how}, {min(count, 2)}"] = np.round(found, 3).ravel().tolist()
        finally:
            torch.set_num_threads(threads)
    about = {"machine": prices.machine(), "sizes": str(GRID), "torch": torch.__version__}
    files.write_json(path, about | {"ratios": ratios})
    table.cache_clear()
    return path


def _draw(T, B, H, how):
    """Draw inputs [shape=(T, B, H)], or about as many rows, packed: twice as many sequences, of up to T steps."""
    if how != ", packed":
        return torch.randn(T, B, H)
    lengths = [T, *np.random.default_rng(0).integers(1, T + 1, 2 * B - 1).tolist()]
    return pack_sequence([torch.randn(n, H) for n in lengths], enforce_sorted=False)


def _time(both, x, training):
    """Return torch.nn's time over ours, of medians, which take turns."""
    (x.data if isinstance(x, PackedSequence) else x).requires_grad_(training)  # as with an embedding below
    turns = []
    with torch.set_grad_enabled(training):
        while len(turns) < 4 or (turns[-1][-1] - turns[0][-1] < 0.1 and len(turns) < 50):
            ticks = [time.perf_counter()]
            for layers in both:
                output, _ = layers(x)
                if training:
                    (output.data if isinstance(output, PackedSequence) else output).sum().backward()
                ticks.append(time.perf_counter())
            turns.append(ticks)
    return np.divide(*np.median(np.diff(turns[1:]), axis=0))  # the first turn compiles
