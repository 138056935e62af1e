"""Streams, events and graphs: which of two operations, launches or copies, a GPU would let wait for the other.

An operation is done when its call returns; all the same it comes after another one only by a stream, an event, a graph
or what the host waited for. Stream 0, the legacy default stream, waits for all others, and all wait for it.
"""

import inspect
import time
import weakref
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from warpwatch.memory import Allocation, allocate, owner_of

HERE = str(Path(__file__).parent)
ISSUING = "numba.", "numba_cuda", "contextlib", "functools"  # other modules that issue for those that call them
_numbers = count()
_live = set()  # operations that were watched, and are not over for all that is issued from now on


class Stream:
    """What Numba's streams do, and those of cuda.core that `machine/cuda.py` makes; `done` comes before what is next.

    While launches are recorded, as steps of a `graph`, `done` has numbers of steps.
    """

    numbered = weakref.WeakValueDictionary()

    def __init__(self):
        self.handle, self.done, self.graph = next(_numbers), frozenset(), None
        self.name, self.numbered[self.handle] = f"stream {self.handle}", self

    def __int__(self):
        return self.handle

    def reach(self):
        """Return what comes before the operation that is issued next."""
        if self is LEGACY:
            if Graph.recording:
                raise RuntimeError("stream 0 waits for all others, and cannot while one is recorded: name a stream")
            _live.clear()
        return self.done if self.graph else self.done & _live

    def issue(self, name, run, arguments):
        """Run a launch or a copy, a function of an operation and arguments, or record it as a step."""
        before, frame = self.reach(), inspect.currentframe()
        while frame.f_code.co_filename.startswith(HERE) or frame.f_globals.get("__name__", "").startswith(ISSUING):
            frame = frame.f_back
        title = f"{name} on {self.name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
        if self.graph:
            self.done = before | {len(self.graph.steps)}
            self.graph.steps.append((before, title, run, [held(a) for a in arguments]))
        else:
            operation = Operation(title, before)
            self.done = before | {operation}
            run(None if self is LEGACY else operation, arguments)

    def wait(self, other):
        """Let what is issued here from now on come after all that another stream has so far, or an event has seen."""
        here = self.reach()
        if other.graph is not self.graph:
            if self.graph or other.graph is not Graph.recording:
                raise RuntimeError(f"{self.name} cannot wait for {other.name}: only one of them is recorded")
            here = other.graph.enter(self)
        self.done = here | other.reach()

    def synchronize(self):
        """Let the host wait: all that is issued from now on comes after this."""
        if self.graph:
            raise RuntimeError(f"the host cannot wait for {self.name}, which is recorded")
        _live.difference_update(self.reach())

    sync = synchronize

    @contextmanager
    def auto_synchronize(self):
        """Let the host wait at the end of a block."""
        yield self
        self.synchronize()

    def record(self, issue):
        """Return the graph of what a function launches on this stream, and on those that wait for it."""
        Graph.recording = graph = Graph()
        graph.enter(self)
        try:
            issue(self)
            missed = set(range(len(graph.steps))) - self.done
        finally:
            Graph.recording = None
            for stream, done in graph.outside.items():
                stream.done, stream.graph = done, None
        if missed:
            raise RuntimeError(f"{self.name}, which is recorded, does not wait for {graph.steps[min(missed)][1]}")
        return graph


LEGACY = Stream()


class Event:
    """A moment of a stream; between two of them, the milliseconds that the process took, which are no GPU's."""

    name, synchronize = "the event", Stream.synchronize

    def __init__(self, timing=True):
        self.done, self.graph, self.at = frozenset(), None, None  # nothing comes before it

    def record(self, stream=0):
        """Take the moment."""
        stream = stream or LEGACY
        self.done, self.graph, self.at = stream.reach(), stream.graph, time.perf_counter()

    def reach(self):
        """Return what comes before it."""
        return self.done

    def wait(self, stream=0):
        """Let a stream wait."""
        (stream or LEGACY).wait(self)

    def elapsed_time(self, end):
        """Return milliseconds up to another event."""
        return 1e3 * (end.at - self.at)


class Graph:
    """Launches that are recorded, and replayed."""

    recording = None  # the one whose launches are on their way

    def __init__(self):
        self.outside, self.steps, self.done = {}, [], frozenset()

    def enter(self, stream):
        """Let a stream be recorded; return what of the graph comes before."""
        self.outside[stream] = stream.done
        stream.done, stream.graph = frozenset(), self
        return stream.done

    def launch(self, stream):
        """Replay the steps, after what the stream has so far and after earlier replays."""
        before, made = (stream.reach() | self.done) & _live, []
        for inner, title, run, arguments in self.steps:
            made.append(Operation(f"{title}, recorded,", before.union(made[n] for n in inner)))
            run(made[-1], [find() for find in arguments])
        self.done = stream.done = before.union(made)


def held(argument):
    """Return what finds an argument again; a graph keeps no memory, and instead of what was freed it finds a dummy."""
    if not isinstance(argument, np.ndarray):
        return lambda: argument
    if (owner := owner_of(argument)) is None:
        raise RuntimeError("what copies an array of the host, or to it, cannot be recorded")
    there, size, start = weakref.ref(owner), owner.size, argument.ctypes.data - owner.ctypes.data
    form, strides = (argument.shape, argument.dtype), argument.strides
    return lambda: Allocation(*form, allocate(size, False) if there() is None else there(), start, strides)


class Operation:
    """A launch or a copy; `before` are those that it comes after, as long as it runs."""

    def __init__(self, title, before):
        self.title, self.before = title, before

    def unordered(self, owner):
        """List what others did to an allocation that nothing orders before this one: (operation, runs of bytes)."""
        return [(other, runs) for other, runs in owner.touched if other in _live and other not in self.before]

    def note(self, touched):
        """Note (allocation, runs of bytes that were read, written and updated); forget what tells no more than that."""
        _live.add(self)
        for owner, runs in touched:
            kept = [(other, theirs) for other, theirs in owner.touched if other in _live
                    and not (other in self.before and all(map(np.array_equal, theirs, runs)))]  # fmt: skip
            owner.touched = [*kept, (self, runs)]
        self.before = None  # all that was issued, where nobody waits

    def copy(self, source, target):
        """Read an array and write another, as a whole; an AssertionError tells of a race."""
        touched, none = [], np.empty((0, 2), int)
        for array, did, does in ((source, "reads", "writes"), (target, "writes", "reads or writes")):
            if (owner := owner_of(array)) is None or not array.size:
                continue
            low, high = np.lib.array_utils.byte_bounds(array)
            for other, (reads, *changes) in self.unordered(owner):
                theirs = np.concatenate([reads, *changes] if array is target else changes)
                met = theirs[(theirs[:, 0] < high) & (theirs[:, 1] > low), 0]
                if len(met):
                    what = f"{did} byte {max(int(met[0]) - low, 0)} of {high - low}, which {other.title} {does}"
                    raise AssertionError(f"race: {self.title} {what}, and does not wait for that")
            whole = np.array([[low, high]])
            touched.append((owner, (none, whole, none) if array is target else (whole, none, none)))
        self.note(touched)
