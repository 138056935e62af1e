"""Forward and backward passes of the GRU's variants, timed."""

from functools import partial

import numpy as np

from bppsa_nb.graphs import variants
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.papers.timing import quartiles, take_turns

SIZES = {"quick": (128, 256, 512, 1024, 2048), "paper": (128, 256, 512, 768, 1024, 1536, 2048)}
STEPS = {"quick": 4, "paper": 32}


def time_point(point, rng, names, seconds):
    """Time forward and backward passes of several variants at the `T`, `B` and `H` of `point`, taking turns.

    A row per variant: `forward` and `backward`, medians in seconds; `seconds`, the median of both together, with
    quartiles `seconds_low` and `seconds_high`; `relative`, the median over rounds of its time divided by the first
    variant's, with quartiles `relative_low` and `relative_high`; and how many `rounds` there were. The input size is H,
    too.
    """
    T, B, H = point["T"], point["B"], point["H"]
    params = variants.parameters(H, H, rng)
    x, grad_hidden = (rng.standard_normal((T, B, H), dtype=np.float32) for _ in range(2))
    h0, activations = np.zeros((B, H), np.float32), None

    def go_forward(name):
        nonlocal activations
        activations = variants.forward(name, params, x, h0)

    def go_back():
        variants.backward(params, x, activations, grad_hidden)

    keep_freed_memory()
    calls = [call for name in names for call in (partial(go_forward, name), go_back)]
    rounds = take_turns(calls, seconds).reshape(-1, len(names), 2)
    both = np.sum(rounds, axis=2)
    rows = []
    for i, name in enumerate(names):
        forward, backward = np.median(rounds, axis=0)[i]
        row = {"variant": name, "forward": forward, "backward": backward}
        row |= quartiles("seconds", both[:, i]) | quartiles("relative", both[:, i] / both[:, 0])
        rows.append(row | {"rounds": len(rounds)})
    return rows
