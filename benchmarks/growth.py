"""How time and memory grow with the length, the batch, the hidden size and the layers, ours and the peers'.

Whole training steps of an RNN. Times are taken in turns, in one process; memory in a process each, for what one
library keeps for its next step would be another's, too. Memory is by how much a process that has taken a step before
grows at most for the next one; input, parameters and compiled code are there by then. Linux counts it.
"""

import ctypes
import gc
import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import comparisons
import numpy as np
import peers
from turns import quartiles, take_turns

import bppsa_nb as bp
from bppsa_nb.papers import provenance

BASE = {"T": 1000, "B": 16, "H": 20, "layers": 1}
SWEEPS = {  # over: its sizes, and what else is not as in BASE
    "T": ([10, 100, 1000, 10_000, 100_000, 1_000_000], {"B": 1}),
    "B": ([1, 4, 16, 64, 256, 1024], {}),
    "H": ([8, 16, 32, 64, 128, 256, 512], {}),
    "layers": ([1, 2, 4, 8], {}),
}
PEAK = Path("/proc/self/clear_refs")  # where Linux is told to forget a process's peak


def points(scale):
    """List the sizes: dicts of `over`, T, B, H and layers."""
    return [
        {"over": over} | BASE | others | {over: size}
        for over, (sizes, others) in SWEEPS.items()
        for size in (sizes[:3] if scale == "quick" else sizes)
    ]


def competitors(point, present):
    """Return, by name, what makes the stages of a training step of that size."""
    T, B, H = (point[key] for key in "TBH")
    model, x, y = comparisons.problem("RNN", T, B, H, 1, np.random.default_rng(0), point["layers"])

    def ours(every=None):
        trainer = bp.Trainer(model, bp.Adam(lr=1e-5), backend="cpu", checkpoint_every=every)
        return [partial(trainer.step, x, y)]

    made = {"ours": ours, "ours, checkpoint_every=√T": partial(ours, math.isqrt(T))}
    if "torch" in present:
        made["torch.nn.RNN, 1 thread"] = partial(peers.torch_step, model, x, y, flush=True)
        if B * H >= comparisons.WIDE:
            cores = provenance.cores()
            made[f"torch.nn.RNN, {cores} threads"] = partial(peers.torch_step, model, x, y, threads=cores)
    if "jax" in present:
        made |= {f"jax.lax.scan, unroll={unroll}": partial(peers.jax_step, model, x, y, unroll) for unroll in (1, 8)}
    return made


def growth(sizes, present, seconds, say):
    """Time training steps, and see how much memory they take. Return a row for each size and competitor."""
    rows = []
    for point in sizes:
        made, said = competitors(point, present), []
        timed = take_turns({name: make() for name, make in made.items()}, seconds, (3, 101))
        for name, rounds in timed.items():
            row = point | {"name": name, "rounds": len(rounds)} | quartiles("seconds", rounds.sum(axis=1))
            rows.append(row | {"bytes": memory(point, name)})
            said.append(f"{name} {1e3 * rows[-1]['seconds']:.3g} ms, {rows[-1]['bytes'] / 2**20:.1f} MiB")
        say(f"  {', '.join(f'{key}={value}' for key, value in list(point.items())[1:])}: {'; '.join(said)}")
    return rows


def memory(point, name):
    """Return by how many bytes a process of its own grows at most for a training step."""
    command = [sys.executable, __file__, json.dumps(point), name]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def grow(point, name):
    """Take a step as `memory` says, here, and return the bytes."""
    stages = competitors(point, peers.installed())[name]()
    for stage in stages:  # compiles
        stage()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident("VmRSS")
    PEAK.write_text("5")  # from now on
    for stage in stages:
        stage()
    return max(0, _resident("VmHWM") - before)


def _resident(key):
    """Return how many bytes of this process are in memory ("VmRSS"), or were at most ("VmHWM")."""
    return 1024 * int(re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    print(grow(json.loads(sys.argv[1]), sys.argv[2]))
