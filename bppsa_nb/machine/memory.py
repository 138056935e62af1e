"""Memory of arrays: whether large ones fit, how compiled code wants them laid out, and what is kept between steps."""

import math
from operator import attrgetter

import numpy as np

LINE = 64  # bytes of a cache line
_is_contiguous = attrgetter("flags.carray")  # and writable


def contiguous(*arrays):
    """Return arrays in the one layout that compiled code exists for: C-contiguous and writable; copies where needed."""
    if all(map(_is_contiguous, arrays)):
        return arrays
    return tuple(np.require(array, requirements=["C", "W"]) for array in arrays)


def aligned(shape, dtype):
    """Make an array without values that begins where a cache line does: vectors that cross two take longer to load."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def available():
    """Return how many bytes a program can still have by Linux's own estimate, None where the system has none."""
    try:
        with open("/proc/meminfo", "rb") as file:
            _, found, rest = file.read().partition(b"MemAvailable:")
    except FileNotFoundError:  # another system
        return None
    return 1024 * int(rest.split(maxsplit=1)[0]) if found else None


def require(size, what):
    """Raise MemoryError unless `size` bytes are available for `what`: Linux promises what it does not have.

    Where the system does not say, nothing is checked, and NumPy raises by itself.
    """
    free = available()
    if free is not None and size > free:
        raise MemoryError(f"{what} takes {size / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are available")


def keep_freed_memory():
    """Tell the C library to reuse the memory of large arrays rather than hand it back to the system.

    Every training step needs the same few large arrays again. Memory that went back to the system in between is
    fetched anew, page by page, which takes longer than a time loop does. glibc keeps chunks up to the size of
    the largest one it has seen freed, 32 MiB at most; so one is freed here, untouched and therefore free of
    charge. Other C libraries do not mind.
    """
    np.empty(2**25 - 2**13, np.uint8)
