"""What programs do where nobody reads what they print, as after the last line of ``bppsa-nb list | head``."""

import os
import select
import sys


def run(program, *arguments):
    """Run a program that prints, and have it end quietly where its reader is gone.

    Parameters
    ----------
    program : callable
    *arguments

    Returns
    -------
    int or object
        What `program` returns; 1 where nobody read all of it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from the start; the next file opened must not take its place
            setattr(sys, name, open(os.devnull, "w"))
    try:
        try:
            return program(*arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BrokenPipeError:
        unread = [stream for stream in (sys.stdout, sys.stderr) if _unread(stream)]
        if not unread:  # some other pipe broke
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in unread:  # which Python flushes at exit, once more
            os.dup2(nowhere, stream.fileno())
        return 1


def _unread(stream):
    """Tell whether nobody reads what a stream writes into a pipe."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
