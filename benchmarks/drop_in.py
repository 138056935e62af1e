"""Layers for PyTorch beside PyTorch's own: forward alone, and forward and back, with one thread and with two.

Run ``python benchmarks/drop_in.py``, on a CPU that has nothing else to do. Both take turns in one process, in blocks of
calls that last a tenth of a second; a line has medians of nine turns: both times, PyTorch's over ours turn by turn,
with quartiles; and whose code ours ran.
"""

import argparse
import time
from functools import partial

import numpy as np
import torch
from ragged import pair
from torch.nn.utils.rnn import pack_sequence
from turns import take_turns

TURNS, BLOCK = 9, 0.1  # seconds
KINDS = ("RNN", "GRU", "LSTM")
SIZES = {  # T, B, inputs, H, layers; and how
    "one step": [(1, 1, 64, 64, 1), (1, 32, 256, 256, 1), (1, 8, 32, 128, 2)],
    "one step of one sample": [(1, None, 64, 64, 1)],
    "one sample": [(20, None, 32, 64, 1), (300, None, 32, 64, 1)],
    "short": [(5, 8, 32, 64, 1), (16, 128, 64, 128, 1)],
    "language": [(64, 32, 64, 128, 1), (64, 32, 64, 256, 1), (64, 32, 64, 256, 2), (64, 32, 256, 512, 1)],
    "long": [(128, 8, 64, 64, 1), (1000, 16, 4, 20, 1), (2000, 4, 8, 64, 2)],
    "two directions": [(5, 4, 32, 32, 1), (64, 32, 64, 128, 2)],
    "packed": [(5, 4, 32, 32, 1), (20, 16, 32, 64, 1), (64, 32, 64, 128, 1)],
    "float64": [(5, 8, 32, 64, 1), (64, 32, 64, 128, 1)],
    "bfloat16": [(5, 8, 32, 64, 1), (64, 32, 64, 128, 1)],
}


def cell(kind, how, sizes):
    """Return torch.nn's layers and ours, and an input."""
    T, B, inputs, H, layers = sizes
    both = pair(kind, inputs, H, layers, bidirectional=how == "two directions")
    x = torch.randn(*((T, inputs) if B is None else (T, B, inputs)))
    if how == "packed":
        lengths = [T, *np.random.default_rng(0).integers(1, T + 1, B - 1).tolist()]
        x = pack_sequence([x[:n, b] for b, n in enumerate(lengths)], enforce_sorted=False)
    dtype = getattr(torch, how) if how in ("float64", "bfloat16", "float16") else torch.float32
    return [each.to(dtype) for each in reversed(both)], x.to(dtype)


def call(layers, x, training, threads):
    """Go forward, and back."""
    output, _ = layers(x)
    if training:
        (output.data if isinstance(x, tuple) else output).sum().backward()


def compare(kind, how, sizes, training, threads):
    """Time a cell, and print it."""
    torch.set_num_threads(threads)
    both, x = cell(kind, how, sizes)
    with torch.set_grad_enabled(training):
        calls = [partial(call, layers, x, training, threads) for layers in both]
        for each in (*calls, *calls):
            began = time.perf_counter()
            each()
            took = time.perf_counter() - began
        count = max(1, int(BLOCK / took))

        def block(each):
            for _ in range(count):
                each()

        named = zip(("torch.nn", "ours"), calls, strict=True)
        timed = take_turns({name: [partial(block, each)] for name, each in named}, np.inf, (TURNS, TURNS))
        whose, _ = both[1].runs_by(x)
    theirs, own = (1e6 * timed[name].sum(axis=1) / count for name in ("torch.nn", "ours"))
    low, ratio, high = np.percentile(theirs / own, (25, 50, 75))
    what = f"{kind} {how} {sizes}, {'training' if training else 'forward'}, {threads} threads"
    times = f"{np.median(theirs):10.0f} {np.median(own):10.0f} us"
    print(f"{what:<72} {times} {ratio:6.2f} [{low:.2f}, {high:.2f}] {whose}", flush=True)


def main():
    """Run all cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SIZES), choices=list(SIZES), metavar="NAME", help="cells")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    asked = parser.parse_args()
    for how in asked.only:
        for sizes in SIZES[how]:
            for kind in asked.kinds:
                for training in (False, True):
                    for threads in (1, 2):
                        compare(kind, how, sizes, training, threads)


if __name__ == "__main__":
    main()
