"""How long it takes to issue a training step's kernels to a GPU, beside how long they run (Figures 1 and 2 of ooo)."""

import time

import numpy as np
import on_gpu
import peers
from comparisons import problem
from turns import quartiles

from bppsa_nb.training.datasets.audio import FEATURES

FRAMES, SIZE = FEATURES["S"].frames, FEATURES["S"].size
STEPS = {  # cell, layers, T, B, H, I
    "RNN": ("RNN", 1, 1000, 16, 20, 1),
    "GRU": ("GRU", 1, FRAMES, 16, 20, SIZE),
    "GRU, 4 layers": ("GRU", 4, FRAMES, 16, 20, SIZE),
}


def kernel_issue(present, seconds, say):
    """Time training steps on a GPU: until they are issued, and until they are done.

    Returns
    -------
    list of dict
        A row for each model and way to issue its step: medians and quartiles of `issue` and `run` in seconds.
    """
    rows = []
    for cell, (kind, layers, T, B, H, inputs) in STEPS.items():
        model, x, y = problem(kind, T, B, H, inputs, np.random.default_rng(0), layers)
        for name, times in time_issue(ways(model, x, y, present), seconds).items():
            row = {"cell": cell, "T": T, "B": B, "H": H, "I": inputs, "name": name, "rounds": len(times)}
            rows.append(row | quartiles("issue", times[:, 0]) | quartiles("run", times[:, 1]))
            issued, done = 1e6 * np.median(times, axis=0)
            say(f"  {cell} {name:<28} issued in {issued:9.1f} us, done after {done:9.1f} us")
    return rows


def time_issue(ways, seconds, rounds=(10, 200)):
    """Time steps that take turns: when the host is free again, and when the device is done.

    Parameters
    ----------
    ways : dict of str to (callable, callable)
        What issues a step without waiting for it, and what waits.
    seconds : float
        About how long to go on.
    rounds : (int, int)
        How many at least, and at most.

    Returns
    -------
    dict of str to np.ndarray [shape=(rounds, 2)]
        Seconds from the start until the step is issued, and until it is done.
    """
    measured = {name: [] for name in ways}
    for issue, wait in ways.values():
        for _ in range(3):  # compiles, and records graphs
            issue()
            wait()
    start, (least, most) = time.perf_counter(), rounds
    for done in range(most):
        if done >= least and time.perf_counter() - start > seconds:
            break
        for name, (issue, wait) in ways.items():
            began = time.perf_counter()
            issue()
            issued = time.perf_counter()
            wait()
            measured[name].append((issued - began, time.perf_counter() - began))
    return {name: np.array(times) for name, times in measured.items()}


def ways(model, x, y, present):
    """List ways to issue a training step: PyTorch's, ours launch by launch, ours as a recorded graph.

    Of a stack of layers, weight gradients run on a stream of their own, and for comparison on the same one.
    """
    found = {}
    if "torch" in present:
        import torch

        stages = peers.torch_step(model, x, y, "cuda", wait=False)

        def step():
            for stage in stages:
                stage()

        found["PyTorch"] = step, torch.cuda.synchronize
    found["ours, launch by launch"] = on_gpu.training_step(model, x, y, "auto", graph=False)
    found["ours, recorded graph"] = on_gpu.training_step(model, x, y, "auto", graph=True)
    if model.num_layers > 1:
        found["ours, graph of one stream"] = on_gpu.training_step(model, x, y, "auto", graph=True, sub_stream=False)
    return found
