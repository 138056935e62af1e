"""Run what a learner wrote in a thread of its own, which is ended when it takes too long: Ctrl-C stays the reader's."""

import builtins
import contextvars
import ctypes
import sys
import threading
import time
from contextlib import contextmanager

from bppsa_nb.puzzles.checker import TooLong, Wrong

MEMORY = 2**30  # that an answer may fill, in bytes: more than any needs, and less than a notebook's kernel dies of


def within(seconds, work):
    """Return what ``work()`` returns, or raise what it raises.

    After some seconds all Python that it runs is ended, whichever file or cell that is from, and `TooLong` is raised.
    It says so if something still runs, in what is no Python, or in what keeps every exception. What fills the memory is
    ended sooner.
    """
    outcome, stop, most = {}, time.monotonic() + seconds, _peak() + MEMORY
    # No Event: its lock is taken in Python, where `TooLong` may arrive, and would then be kept for ever.
    running = threading.Lock()
    running.acquire()

    def run():
        try:
            outcome["found"] = work()
        except KeyboardInterrupt:  # Ctrl-C reaches the main thread only
            outcome["raised"] = Wrong("it raises KeyboardInterrupt, as if somebody had pressed Ctrl-C")
        except BaseException as error:
            outcome["raised"] = error
        running.release()

    thread = threading.Thread(None, contextvars.copy_context().run, "an answer", (run,), daemon=True)
    try:
        with _exit_only_raises():
            thread.start()
            while not running.acquire(timeout=min(0.1, seconds)) and time.monotonic() < stop and _peak() <= most:
                pass  # Ctrl-C waits for no more than that, on Windows too
    finally:
        late = not outcome
        ended = not late or _ended(thread, running)
    if late:
        said = f"still running after {seconds} seconds" if time.monotonic() >= stop else "it fills the memory"
        said += ". Does every loop of yours end?"
        raise TooLong(said if ended else f"{said} It cannot be stopped; restart Python.")
    if "raised" in outcome:
        raise outcome["raised"]
    return outcome["found"]


def _peak():
    """Return the most memory that this process has had so far, in bytes; 0 on Windows, where nothing tells it."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def _exit_only_raises():
    """Have ``exit()`` raise SystemExit and no more: a notebook's ends its kernel, Python's closes what it reads."""
    spaces, kinds = (vars(builtins), vars(sys.modules["__main__"])), ("Quitter", "ExitAutocall", "ZMQExitAutocall")
    found = [(space, name, space.get(name)) for space in spaces for name in ("exit", "quit")]
    found = [each for each in found if type(each[2]).__name__ in kinds]
    for space, name, _ in found:
        space[name] = sys.exit
    try:
        yield
    finally:
        for space, name, value in found:
            space[name] = value


def _ended(thread, running):
    """Raise `TooLong` in a thread, again and again, for it may be caught there; tell whether it ended."""
    for _ in range(20):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TooLong))
        if running.acquire(timeout=0.05) or not thread.is_alive():
            return True
    return False
