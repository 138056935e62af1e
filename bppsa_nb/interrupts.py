"""Hold Ctrl-C back while something changes that must not be left half changed."""

import signal
import threading
from contextlib import contextmanager


@contextmanager
def interrupts_held():
    """Let Ctrl-C wait until the block is through, so that what changes together stays together.

    Yields
    ------
    list
        Not empty from when one waits.
    """
    arrived = []
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield arrived  # Python delivers signals to the main thread only, or something else handles them
        return
    handler = signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        signal.raise_signal(signal.SIGINT)
