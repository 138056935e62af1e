"""Hold Ctrl-C back while something changes that must not be left half changed."""

import signal
import threading
from contextlib import contextmanager


@contextmanager
def interrupts_held():
    """Let Ctrl-C wait until the block is through, and SIGTERM, where it does not simply end the process."""
    arrived, handlers = [], {}
    if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
        handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(arrived):
        signal.raise_signal(number)
