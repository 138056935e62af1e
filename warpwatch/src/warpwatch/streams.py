"""Streams and events: which of two operations, launches or copies, a GPU would let wait for the other.

An operation is done when its call returns; all the same it comes after another one only by a stream, an event or
what the host waited for. Stream 0, the legacy default stream, and all others but those `apart` wait for each other.
"""

import inspect
import time
import weakref
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from warpwatch.memory import owner_of

HERE = str(Path(__file__).parent)
ISSUING = "numba.", "numba_cuda", "contextlib", "functools"  # other modules that issue for those that call them
_numbers = count()
_live = set()  # operations that were watched, and are not over for all that is issued from now on
finish = _live.clear  # lets the host wait for all of them


class Stream:
    """What Numba's streams do; `done` comes before what is next."""

    numbered, some_apart = weakref.WeakValueDictionary(), False

    def __init__(self, apart=False):
        self.handle, self.done, self.apart = next(_numbers), frozenset(), apart
        Stream.some_apart |= apart
        self.name, self.numbered[self.handle] = f"stream {self.handle}", self

    def __int__(self):
        return self.handle

    def reach(self):
        """Return what comes before the operation that is issued next."""
        if self is LEGACY and not self.some_apart:
            _live.clear()
        others = () if self.apart else LEGACY.done if self is not LEGACY else [op for op in _live if not op.apart]
        return self.done.union(others) & _live

    def title(self, name):
        """Return what an operation that is issued now is called: its name, stream and line."""
        frame = inspect.currentframe()
        while frame.f_code.co_filename.startswith(HERE) or frame.f_globals.get("__name__", "").startswith(ISSUING):
            frame = frame.f_back
        return f"{name} on {self.name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"

    def begin(self, title, run, arguments):
        """Run an operation, a function of itself and arguments."""
        operation = Operation(title, before := self.reach(), self.apart)
        self.done = before | {operation}
        run(None if self is LEGACY and not self.some_apart else operation, arguments)

    def wait(self, other):
        """Let what is issued here from now on come after all that another stream has so far, or an event has seen."""
        self.done = self.reach() | other.reach()

    def synchronize(self):
        """Let the host wait: all that is issued from now on comes after this."""
        _live.difference_update(self.reach())
    sync = synchronize

    @contextmanager
    def auto_synchronize(self):
        """Let the host wait at the end of a block."""
        yield self
        self.synchronize()


LEGACY = Stream()


class Event:
    """A moment of a stream; between two of them, the milliseconds that the process took, which are no GPU's."""

    synchronize = Stream.synchronize

    def __init__(self, timing=True):
        self.done, self.at = frozenset(), None  # nothing comes before it

    def record(self, stream=0):
        """Take the moment."""
        self.done, self.at = (stream or LEGACY).reach(), time.perf_counter()

    def reach(self):
        """Return what comes before it."""
        return self.done

    def wait(self, stream=0):
        """Let a stream wait."""
        (stream or LEGACY).wait(self)

    def elapsed_time(self, end):
        """Return milliseconds up to another event."""
        return 1e3 * (end.at - self.at)


class Operation:
    """A launch or a copy; `before` are those that it comes after, as long as it runs; `apart` is that of its stream."""

    def __init__(self, title, before, apart=False):
        self.title, self.before, self.apart = title, before, apart

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
