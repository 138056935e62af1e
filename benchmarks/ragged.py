"""Sequences that begin anew in the middle, and sequences of their own lengths: layers for PyTorch beside PyTorch's.

Run ``python benchmarks/ragged.py``. Forward and back, on a CPU, taking turns in one process; each result is held
against ours first. Streams of 128 environments, of which 3 % end at each step, are read with `resets`; by `torch.nn`,
cut at every step at which some environment ends, or as one sequence per episode, padded or packed; and by TorchRL's
module, where it is installed. Sequences of exponential lengths are packed for both. PyTorch goes on one thread and on
all.
"""

import argparse
from functools import partial

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from turns import quartiles, take_turns

import bppsa_nb.torch as ours
from bppsa_nb.papers import provenance

RESETS = [("GRU", 128, 128, 256, 256, 0.03), ("LSTM", 128, 128, 64, 64, 0.03), ("GRU", 128, 16, 32, 64, 0.03)]
RAGGED = [("GRU", 200, 64, 64, 128), ("LSTM", 200, 64, 32, 64), ("GRU", 1000, 16, 38, 20)]


def with_resets(kind, T, B, inputs, H, share):
    """Return the ways to read streams that begin anew: callables that return outputs (T, B, H), with their layers."""
    layers, theirs = pair(kind, inputs, H)
    x, resets = torch.randn(T, B, inputs), torch.rand(T, B) < share
    cuts = sorted({0, *np.flatnonzero(resets.any(1).numpy()).tolist(), T})

    def cut():
        states, outputs = None, []
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
            if states is not None:
                keep = ~resets[start][None, :, None]
                states = tuple(keep * each for each in states) if kind == "LSTM" else keep * states
            output, states = theirs(x[start:stop], states)
            outputs.append(output)
        return torch.cat(outputs)

    there, sizes = episodes(resets)
    back = torch.empty_like(there).index_copy_(0, there, torch.arange(len(there)))

    def apart(own, padded=False):
        packed = PackedSequence(x.reshape(T * B, -1)[there], sizes)
        if padded:
            output = own(pad_packed_sequence(packed)[0])[0]
            rows = output[torch.arange(output.shape[1]) < sizes[:, None]]
        else:
            rows = own(packed)[0].data
        return rows[back].reshape(T, B, H)

    ways = {
        "ours, resets": (lambda: layers(x, resets=resets)[0], layers),
        "torch.nn, cut where any ends": (cut, theirs),
        "torch.nn, an episode a sequence, padded": (partial(apart, theirs, padded=True), theirs),
        "torch.nn, an episode a sequence, packed": (partial(apart, theirs), theirs),
        "ours, an episode a sequence, packed": (partial(apart, layers), layers),
    }
    return ways | torchrl(kind, theirs, x, resets)


def episodes(resets):
    """Return where the steps of all episodes are among all steps, packed, the longest first; and batch sizes."""
    T, B = resets.shape
    every = []
    for b, marks in enumerate(resets.numpy().T):
        starts = [0, *(t for t in range(1, T) if marks[t])]
        every += [np.arange(start, stop) * B + b for start, stop in zip(starts, [*starts[1:], T], strict=True)]
    every.sort(key=len, reverse=True)
    steps = [[each[t] for each in every if len(each) > t] for t in range(len(every[0]))]
    return torch.tensor(np.concatenate(steps)), torch.tensor(list(map(len, steps)))


def torchrl(kind, theirs, x, resets):
    """Return TorchRL's way, by name, or none where it is not installed."""
    try:
        from tensordict import TensorDict
        from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode
    except ImportError:
        return {}
    states = ["h", "c"][: 2 if kind == "LSTM" else 1]
    keys = {"in_keys": ["x", *states], "out_keys": ["y", *(("next", name) for name in states)]}
    module = {"GRU": GRUModule, "LSTM": LSTMModule}[kind](theirs.input_size, theirs.hidden_size, **keys)
    getattr(module, kind.lower()).load_state_dict(theirs.state_dict())
    (T, B, _), zeros = x.shape, {name: torch.zeros(x.shape[1], len(x), 1, theirs.hidden_size) for name in states}

    def run():
        given = {"x": x.transpose(0, 1), "is_init": resets.T[..., None]} | zeros
        with set_recurrent_mode("recurrent"):
            return module(TensorDict(given, batch_size=[B, T]))["y"].transpose(0, 1)

    return {f"torchrl.modules.{kind}Module": (run, module)}


def with_lengths(kind, T, B, inputs, H):
    """Return the ways to read sequences of exponential lengths, T at most and T / 5 on average before they are cut."""
    layers, theirs = pair(kind, inputs, H)
    lengths = np.random.default_rng(0).exponential(T / 5, B - 1).astype(int)
    lengths = torch.tensor(sorted([T, *np.clip(lengths, 1, T).tolist()], reverse=True))
    sizes = (lengths > torch.arange(T)[:, None]).sum(1)
    packed = PackedSequence(torch.randn(int(sizes.sum()), inputs), sizes)
    ways = {
        f"{name}, packed": (lambda own=own: own(packed)[0].data, own)
        for name, own in (("ours", layers), ("torch.nn", theirs))
    }

    def padded():
        output = theirs(pad_packed_sequence(packed)[0])[0]
        return output[torch.arange(B) < sizes[:, None]]

    return ways | {"torch.nn, padded": (padded, theirs)}


def pair(kind, *sizes, **how):
    """Make our layers, and PyTorch's, with the same parameters."""
    torch.manual_seed(0)
    layers, theirs = (getattr(nn, kind)(*sizes, **how) for nn in (ours, torch.nn))
    layers.load_state_dict(theirs.state_dict())
    return layers, theirs


def compare(title, ways, seconds):
    """Time ways forward and back, and print them beside ours."""
    expected, competitors = next(iter(ways.values()))[0](), {}
    for name, (run, layers) in ways.items():
        torch.testing.assert_close(run(), expected, rtol=1e-4, atol=1e-5)
        for threads in sorted({1, provenance.cores()}, reverse=True):

            def step(run=run, layers=layers, threads=threads):
                torch.set_num_threads(threads)
                layers.zero_grad()
                run().square().mean().backward()

            competitors[f"{name}, {threads} threads"] = [step]
    timed = take_turns(competitors, seconds, (3, 51))
    first = np.median(next(iter(timed.values())))
    print(title)
    for name, rounds in timed.items():
        found = quartiles("s", 1e3 * rounds.sum(axis=1))
        spread = f"[{found['s_low']:.2f}, {found['s_high']:.2f}]"
        print(f"  {name:<52} {found['s']:9.2f} ms  {spread:<22} {found['s'] / 1e3 / first:6.2f}x", flush=True)


def main():
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="for each comparison")
    seconds = parser.parse_args().seconds
    for kind, T, B, inputs, H, share in RESETS:
        title = f"{kind}, {T} steps of {B} streams, {100 * share:g} % begin anew at each; I = {inputs}, H = {H}"
        compare(title, with_resets(kind, T, B, inputs, H, share), seconds)
    for kind, T, B, inputs, H in RAGGED:
        title = f"{kind}, {B} sequences of up to {T} steps; I = {inputs}, H = {H}"
        compare(title, with_lengths(kind, T, B, inputs, H), seconds)


if __name__ == "__main__":
    main()
