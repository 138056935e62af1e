"""A double of CUDA graphs where kernels run on the CPU: launches recorded and replayed, by a GPU's rules, and watched.

Without it, steps of training are launched there one by one.
"""

import os
import weakref
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from warpwatch.memory import Allocation, owner_of
from warpwatch.streams import LEGACY, Stream
from warpwatch.virtual import Device, current


def stand_in(patch):
    """Let training steps be recorded here."""
    patch.setattr("bppsa_nb.training.step_cuda.record", record)
    patch.setattr("bppsa_nb.training.step_cuda.records", lambda: os.environ.get("BPPSA_NB_CUDA_GRAPH", "1") != "0")


def record(issue, stream):
    """Return a graph of all that a function launches on a stream, and on those that wait for it.

    What a GPU refuses is a RuntimeError.
    """
    recorder = Recorder(stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "wait", recorder.wait)
        for name in ("sync", "synchronize"):
            patch.setattr(Stream, name, refuse)
        recorder.turn_on()
        try:
            issue(stream)
        finally:
            recorder.turn_off()
    before = {stream: set()}  # numbers of the calls that come before what is next
    for n, (here, other, *_) in enumerate(recorder.calls):
        if (asked := other or here) not in before:
            raise RuntimeError(f"{here.name} cannot wait for {asked.name}: only one of them is recorded")
        before.setdefault(here, set()).update(before[other] if other else {n})
    if missed := [call[2] for n, call in enumerate(recorder.calls) if not call[1] and n not in before[stream]]:
        raise RuntimeError(f"{stream.name}, which is recorded, does not wait for {missed[0]}")
    return SimpleNamespace(launch=recorder.replay)


def refuse(stream):
    raise RuntimeError(f"the host cannot wait for {stream.name} while launches are recorded")


class Recorder(Device):
    """A device that keeps launches: their stream, None, their title, what runs and arguments; of waits both streams."""

    def __init__(self, stream):
        super().__init__()
        vars(self).update({name: getattr(current(), name) for name in ("watch", "steps", "found", "refused")})
        self.stream, self.calls, self.done = stream, [], frozenset()
        self.wait = lambda stream, other: self.calls.append((stream, other))

    def issue(self, stream, title, run, arguments):
        if stream is LEGACY:
            raise RuntimeError("stream 0 waits for all others, and cannot while one is recorded: name a stream")
        self.calls.append((stream, None, f"{title}, recorded,", run, [held(each) for each in arguments]))

    def replay(self, stream):
        """Launch all, after what the stream has so far and after earlier replays; other streams begin anew."""
        own = defaultdict(Stream, {self.stream: stream})
        stream.done = stream.reach() | self.done
        for here, other, *call in self.calls:
            if other:
                own[here].wait(own[other])
            else:
                title, run, arguments = call
                own[here].begin(title, run, [find() for find in arguments])
        self.done = stream.done


def held(argument):
    """Return what finds an argument again; a graph keeps no memory, and what was freed is an AssertionError."""
    if not isinstance(argument, np.ndarray):
        return lambda: argument
    if (owner := owner_of(argument)) is None:
        raise RuntimeError("what copies an array of the host, or to it, cannot be recorded")
    there, start = weakref.ref(owner), argument.ctypes.data - owner.ctypes.data
    form, strides = (argument.shape, argument.dtype), argument.strides

    def find():
        assert there() is not None, f"freed: an array of shape {form[0]} of what is replayed"
        return Allocation(*form, there(), start, strides)

    return find
