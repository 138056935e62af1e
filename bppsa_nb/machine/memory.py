"""Ask whether large arrays fit into memory, and keep it between training steps."""

import numpy as np


def available():
    """Return how many bytes a program can still have by Linux's own estimate, None where the system has none."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (FileNotFoundError, KeyError):  # another system
        return None


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
