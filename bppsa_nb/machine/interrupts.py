"""Hold Ctrl-C back while something changes that must not be left half changed; end a program by it once."""

import signal
import threading
import time
from contextlib import contextmanager

_AGAIN = 1.0  # seconds: what comes sooner after a signal that ends a program means the same


@contextmanager
def interrupts_held():
    """Let Ctrl-C wait until the block is through, so that what changes together stays together.

    So waits SIGTERM where it does not simply end the process. The block gets a list of the signals that wait.
    """
    arrived, handlers = [], {}
    if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if handlers[signal.SIGINT] is None:  # something else than Python handles it
            del handlers[signal.SIGINT]
        if not callable(handlers[signal.SIGTERM]):
            del handlers[signal.SIGTERM]
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(arrived):
        signal.raise_signal(number)


@contextmanager
def ended_once():
    """Have SIGTERM raise KeyboardInterrupt as Ctrl-C does, and neither of them a second time at once.

    Whoever presses Ctrl-C twice means it once; what is kept for the next time must not be lost over that. Signals that
    are ignored, or handled by something else, are left alone. The block gets the list of signals that arrived.
    """
    arrived, last = [], None

    def end(number, frame):
        nonlocal last
        now = time.monotonic()
        arrived.append(number)
        if last is None or now - last > _AGAIN:
            last = now
            raise KeyboardInterrupt

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        handlers = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    try:
        for number in handlers:
            signal.signal(number, end)
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
