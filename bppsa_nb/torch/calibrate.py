"""Measures whose layers are faster on this machine, torch.nn's or ours; see `choice`."""

import itertools
import time

import numpy as np
import torch

from bppsa_nb.chains import prices
from bppsa_nb.machine import files, process
from bppsa_nb.torch import choice
from bppsa_nb.torch.convert import KINDS


def calibrate(progress: bool = True) -> None:
    """Measure on this machine when layers run by torch.nn, with one thread of PyTorch's and with all; store it.

    It takes some minutes. From then on, layers go by that, in this process and others. ``bppsa-nb calibrate`` does it,
    too. Raises OSError, before anything is measured, if the file cannot be written.
    """
    files.check_writable(choice.path())
    threads, ratios = torch.get_num_threads(), {}
    sizes = list(itertools.product(*choice.GRID.values()))
    with process.bar(total=6 * len(sizes), desc="torch", disable=None if progress else True) as bar:
        try:
            for count, (theirs, ours) in itertools.product((1, max(2, threads)), KINDS.items()):
                torch.set_num_threads(count)
                found = []
                for T, B, H in sizes:
                    found.append(_ratios((theirs(H, H), ours(H, H, backend="cpu")), torch.randn(T, B, H)))
                    bar.update()
                for training, column in enumerate(np.round(found, 3).T.tolist()):
                    ratios[choice.name(ours.__name__, training)] = column
        finally:
            torch.set_num_threads(threads)
    files.write_json(choice.path(), {"machine": prices.machine(), "torch": torch.__version__, "ratios": ratios})
    choice.forget()


def _ratios(both, x):
    """Return torch.nn's time over ours, forward, and forward and back: of medians, which take turns."""

    def forward(layers):
        with torch.no_grad():
            layers(x)

    def train(layers):
        layers(x)[0].sum().backward()

    found = []
    for call in forward, train:
        began, times = time.perf_counter(), []
        while len(times) < 4 or (time.perf_counter() - began < 0.1 and len(times) < 50):
            ticks = [time.perf_counter()]
            for layers in both:
                call(layers)
                ticks.append(time.perf_counter())
            times.append(np.diff(ticks))
        found.append(np.divide(*np.median(times[1:], axis=0)))
    return found
